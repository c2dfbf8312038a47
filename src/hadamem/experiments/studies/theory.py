"""The paper's statements about Hadamard memories, checked with numbers: Algorithm 1, Propositions 3, 4 and 5, and the closed form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ... import diagnostics, envs, kernels
from ...kernels.shm.forms import calibrate
from ...memory import SHM
from ...reports.content import Figure, Section, Series, Table
from ...runs.config import make_config
from ..acting import record, untrained_policy
from ..measure import missing, present, sized
from ..study import MeasureTask, Study

WIDE = 3.29           # standard errors on each side of a 99.9 % interval: many intervals are looked at together
EXACT = 1e-9          # relative error in float64 below which two ways of computing the same count as equal
CLOSE = 1e-4          # the same in float32
FORMS = {"tanh": "C = 1 + tanh(z)", "exp": "C = e^z, bent to 1/2 .. 2"}      # calibrations of `hm.SHM`: the paper's, and one of ours


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol: of the untrained agents whose features are used; the other measurements do not depend on it."""
    lengths = [64, 128, 256] if quick else [64, 128, 256, 512, 1024]
    episodes = sized(256, 32, quick, budget)
    tasks = [
        MeasureTask("algorithm-1", "theory:algorithm_1", {"lengths": [1, 4, 17, 64], "std": 0.5, "cells": 256, "seed": seed}),
        MeasureTask("float32", "theory:float32_range", {"stds": [0.25, 0.5, 1.0, 2.0], "lengths": lengths,
                                                        "cells": sized(4096, 512, quick, budget), "seed": seed}),
        MeasureTask("mean-product", "theory:mean_product", {"stds": [0.05, 0.1, 0.25], "lengths": [4, 8, 16],
                                                            "samples": sized(2_000_000, 50_000, quick, budget), "seed": seed}),
        MeasureTask("typical-product", "theory:typical_product", {"stds": [0.25, 0.5, 1.0], "steps": 64 if quick else 256,
                                                                  "samples": sized(50_000, 4_000, quick, budget), "seed": seed}),
        MeasureTask("fixed-C", "theory:fixed_powers", {"steps": 200, "size": 64 if quick else 256, "seed": seed}),
        *(MeasureTask(f"correlation-{name}", "theory:correlation", {
            "source": source, "protocol": protocol, "lags": [1, 4, 16], "episodes": episodes, "steps": 48, "memory_size": 16, "seed": seed,
        }) for name, source in SOURCES.items()),
        MeasureTask("closed-form", "theory:closed_form", {"steps": 20 if quick else 100, "cells": 64, "seed": seed}),
    ]
    about = ("Which statements of the paper about Hadamard memories hold when they are computed? Algorithm 1 as printed and repaired, the "
             "mean of products of C (Proposition 4) beside the typical product, a fixed C (Proposition 3), the correlation between steps "
             "with random rows of theta (Proposition 5), and the closed form (eq. 10).")
    return Study("theory", "The theory in numbers", tasks, about, sections=sections)


SOURCES = {      # of the inputs of Proposition 5: AR(1) with this correlation from step to step, or an env
    "ar-0.5": 0.5, "ar-0.95": 0.95, "autoencode": "popgym/AutoencodeEasy", "pendulum": "popgym/PositionOnlyPendulumEasy",
}


# --- measurements


def prefix_form(C: Tensor, U: Tensor, M0: Tensor, repaired: bool) -> Tensor:
    """Algorithm 1 on C, U [B, T, ...]: prefix products P and prefix sums E of U / P. As printed, it returns P M0 + E."""
    P = C.cumprod(1)
    E = (U / P).cumsum(1)
    return P * (M0[:, None] + E) if repaired else P * M0[:, None] + E


def algorithm_1(lengths: list[int], std: float, cells: int, seed: int = 0) -> dict[str, Any]:
    """Errors of Algorithm 1, as printed and repaired, against the loop in float64; relative to the largest entry of M."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for T in lengths:
        C, U, M0 = _problem(T, std, cells, generator)
        want = _memories(C, U, M0)
        size = float(want.abs().max())
        printed, repaired = (float((prefix_form(C, U, M0, form) - want).abs().max()) for form in (False, True))
        rows.append({"T": T, "printed": printed, "repaired": repaired, "size": size})
    return {"std": std, "rows": rows}


def float32_range(stds: list[float], lengths: list[int], cells: int, seed: int = 0) -> dict[str, Any]:
    """The repaired form, the scan and the loop in float32 beside the loop in float64, at the last step."""
    rows = []
    for std in stds:
        C, U, M0 = _problem(max(lengths), std, cells, torch.Generator().manual_seed(seed))
        small = C.float(), U.float(), M0.float()
        loop, plain, scan = _memories(C, U, M0), _memories(*small), _memories(*small, backend="scan")
        divided = prefix_form(*small, repaired=True)
        for T in lengths:
            want, got = loop[:, T - 1], divided[:, T - 1]
            wrong = ~((got - want).abs() <= 0.01 * want.abs().clamp(min=1.0))
            size = float(want.abs().max())
            rows.append({"std": std, "T": T, "not_finite": float((~got.isfinite()).double().mean()), "wrong": float(wrong.double().mean()),
                         "scan": float((scan[:, T - 1] - want).abs().max()) / size,
                         "loop": float((plain[:, T - 1] - want).abs().max()) / size})
    return {"rows": rows}


def _memories(C: Tensor, U: Tensor, M0: Tensor, backend: str = "reference") -> Tensor:
    """All M_t; "reference" is the loop."""
    found = kernels.hadamard(C, U, M0=M0, backend=backend)
    assert isinstance(found, Tensor)
    return found


def _problem(T: int, std: float, cells: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """C = 1 + tanh(z), U and M0, as [1, T, 1, cells] and [1, 1, cells] in float64."""
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    return 1 + torch.tanh(std * normal(1, T, 1, cells)), normal(1, T, 1, cells), normal(1, 1, cells)


def mean_product(stds: list[float], lengths: list[int], samples: int, seed: int = 0) -> dict[str, Any]:
    """Mean of prod C with its standard error, and the median, over independent z ~ N(0, std²)."""
    rows = []
    for std in stds:
        generator = torch.Generator().manual_seed(seed)
        product, done = torch.ones(samples, dtype=torch.float64), 0
        for T in sorted(lengths):
            for _ in range(T - done):
                product *= 1 + torch.tanh(std * torch.randn(samples, dtype=torch.float64, generator=generator))
            done = T
            rows.append({"std": std, "T": T, "mean": float(product.mean()), "error": float(product.std()) / math.sqrt(samples),
                         "median": float(product.median())})
    return {"samples": samples, "rows": rows}


def typical_product(stds: list[float], steps: int, samples: int, seed: int = 0) -> dict[str, Any]:
    """Mean, median and exp(t E[log C]) of products over time: 1 + tanh(z), and the form "exp", whose logarithm has mean 0."""
    shown = sorted({1, *range(0, steps + 1, max(1, steps // 32))} - {0})
    found = []
    for std in stds:
        for name in FORMS:
            generator = torch.Generator().manual_seed(seed)
            curves = diagnostics.cumulative_products(
                calibrate(std * torch.randn(samples, 1, dtype=torch.float64, generator=generator), name) for _ in range(steps))
            at = torch.tensor(shown) - 1
            found.append({"std": std, "form": name, "steps": shown, "mean": curves.mean[at].tolist(), "median": curves.median[at].tolist(),
                          "typical": curves.typical[at].tolist(), "error": curves.error[at].tolist(),
                          "mean_log_C": float(curves.mean_log_C.mean())})
    return {"samples": samples, "curves": found}


def fixed_powers(steps: int, size: int, seed: int = 0) -> dict[str, Any]:
    """Entries of a fixed C to the power of t: shares that vanish, explode and stay, for three ways to draw C."""
    torch.manual_seed(seed)
    starts = {
        "U(0, 1)": torch.rand(size, size, dtype=torch.float64),
        "Xavier": torch.nn.init.xavier_uniform_(torch.empty(size, size, dtype=torch.float64)),
        "N(1, 0.1²)": 1 + 0.1 * torch.randn(size, size, dtype=torch.float64),
    }
    rows = []
    for name, C in starts.items():
        for t in (1, 10, 50, steps):
            power = C.abs() ** t
            rows.append({"start": name, "t": t, "vanished": float((power < 0.01).double().mean()),
                         "exploded": float((power > 100).double().mean()), "median": float(power.median())})
    return {"rows": rows}


def correlation(source: float | str, protocol: str, lags: list[int], episodes: int, steps: int, memory_size: int,
                seed: int = 0) -> dict[str, Any]:
    """Pearson correlation of each entry of C between steps, for one fixed row of theta and for rows drawn at every step."""
    torch.manual_seed(seed)
    if isinstance(source, str):
        x = _env_features(source, protocol, episodes, steps, seed)
    else:
        x = _autoregressive(source, episodes, steps, 16)
    memory = SHM.paper(x.shape[-1], memory_size=memory_size, theta_init=3.0)       # z of std near 0.5: tanh is no longer linear
    theta = memory.get_parameter("calibration.theta").data
    theta -= 0.2 * theta.std()                                                     # rows whose mean is not 0, as after training
    kinds = {"fixed": torch.zeros(x.shape[:2], dtype=torch.int64), "random": torch.randint(len(theta), x.shape[:2])}
    C = {name: torch.stack(list(diagnostics.calibrations(memory, x, rows=rows))) for name, rows in kinds.items()}      # [T, B, V, K]
    rows = []
    for lag in lags:
        fixed, random = (_pearson(C[name][:-lag].flatten(0, 1), C[name][lag:].flatten(0, 1)).abs() for name in ("fixed", "random"))
        rows.append({"lag": lag, "fixed": float(fixed.mean()), "random": float(random.mean()),
                     "smaller": float((random <= fixed).double().mean()),
                     "noise": 1 / math.sqrt((steps - lag) * episodes)})
    products = {name: diagnostics.cumulative_products(c.transpose(0, 1)) for name, c in C.items()}
    return {"rows": rows, "steps": steps, "samples": episodes * steps,
            "products": {name: {"mean": float(p.mean[-1]), "median": float(p.median[-1])} for name, p in products.items()}}


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    """Correlation over the first axis."""
    a, b = a - a.mean(0), b - b.mean(0)
    return (a * b).mean(0) / (a.square().mean(0) * b.square().mean(0)).sqrt().clamp(min=1e-12)


def _autoregressive(rho: float, episodes: int, steps: int, size: int) -> Tensor:
    x = [torch.randn(episodes, size)]
    for _ in range(steps - 1):
        x.append(rho * x[-1] + math.sqrt(1 - rho**2) * torch.randn(episodes, size))
    return torch.stack(x, 1)


def _env_features(name: str, protocol: str, episodes: int, steps: int, seed: int) -> Tensor:
    """What the memory of an untrained agent sees in the first steps of episodes."""
    policy = untrained_policy(make_config(env=name, preset=f"popgym-{protocol}", memory="shm", memory_size=16, num_envs=8, seed=seed,
                                          device="cpu", compile=False))
    env = envs.make(name, num_envs=episodes)
    try:
        return record(policy, env, steps, seed).x
    finally:
        env.close()


def closed_form(steps: int, cells: int, seed: int = 0) -> dict[str, Any]:
    """Largest relative difference of eq. 10, term by term, and of the scan from the recurrence in float64; with zeros in C."""
    C, U, M0 = _problem(steps, 0.5, cells, torch.Generator().manual_seed(seed))
    C[:, steps // 2, :, ::3] = 0.0
    want, scan = _memories(C, U, M0), _memories(C, U, M0, backend="scan")
    closed = torch.stack([_unrolled(C[:, : t + 1], U[:, : t + 1], M0) for t in range(steps)], 1)
    size = float(want.abs().max())
    return {"steps": steps, "closed": float((closed - want).abs().max()) / size, "scan": float((scan - want).abs().max()) / size}


def _unrolled(C: Tensor, U: Tensor, M0: Tensor) -> Tensor:
    """Eq. 10: M0 times all C, and every U times the C after it."""
    M = M0 * C.prod(1)
    for i in range(C.shape[1]):
        M = M + U[:, i] * C[:, i + 1:].prod(1)
    return M


# --- what the report says


def claims(results: Any) -> list[tuple[str, str, bool]]:
    """Each statement, what was measured, and whether it holds. Statements whose measurement is missing are left out."""
    found: list[tuple[str, str, bool]] = []
    for part in (_claims_of_algorithm_1, _claims_of_products, _claims_of_steps):
        found += part(results.measures)
    return found


def _claims_of_algorithm_1(measures: Any) -> list[tuple[str, str, bool]]:
    found = []
    if "algorithm-1" in measures:
        rows = measures["algorithm-1"]["rows"]
        printed, repaired = (max(row[form] / row["size"] for row in rows) for form in ("printed", "repaired"))
        found.append(("Algorithm 1 as printed, P M0 + E, equals the recurrence", f"error {printed:.1e} of the largest entry, float64",
                      printed < EXACT))
        found.append(("Algorithm 1 with the missing factor, P (M0 + E), equals it", f"error {repaired:.1e}, float64, up to T = "
                      f"{max(row['T'] for row in rows)}", repaired < EXACT))
    if "float32" in measures:
        rows = measures["float32"]["rows"]
        worst = max(rows, key=lambda row: row["not_finite"])
        found.append(("The repaired form can be used in float32", f"{worst['not_finite']:.0%} of results not finite at z std "
                      f"{worst['std']:g}, T = {worst['T']}", worst["not_finite"] == 0))
        scan = max(row["scan"] for row in rows)
        found.append(("The associative scan agrees with the loop in float32", f"largest relative error {scan:.1e}", scan < CLOSE))
    return found


def _claims_of_products(measures: Any) -> list[tuple[str, str, bool]]:
    found = []
    if "mean-product" in measures:
        rows = measures["mean-product"]["rows"]
        inside = sum(abs(row["mean"] - 1) <= WIDE * row["error"] for row in rows)
        found.append(("Proposition 4: E[prod C] = 1 for z std up to 0.25 and T up to 16", f"1 lies in {inside} of {len(rows)} 99.9 % "
                      "intervals", inside == len(rows)))
    for curve in measures.get("typical-product", {"curves": []})["curves"]:
        if curve["std"] == 1.0:
            median, T = curve["median"][-1], curve["steps"][-1]
            found.append((f"{FORMS[curve['form']]}, z std 1: the typical product stays near 1 (0.1 to 10)",
                          f"median {median:.1e} after {T} steps, mean log C = {curve['mean_log_C']:.3f}", 0.1 < median < 10))
    if "fixed-C" in measures:
        rows = measures["fixed-C"]["rows"]
        last = [row for row in rows if row["t"] == max(r["t"] for r in rows)]
        least = min(row["vanished"] + row["exploded"] for row in last)
        found.append(("Proposition 3: powers of a fixed C vanish or explode", f"at least {least:.0%} of entries below 0.01 or above 100 "
                      f"after {last[0]['t']} steps", least > 0.75))
    return found


def _claims_of_steps(measures: Any) -> list[tuple[str, str, bool]]:
    found = []
    for name in SOURCES:
        if f"correlation-{name}" in measures:
            rows = [row for row in measures[f"correlation-{name}"]["rows"] if row["fixed"] > 10 * row["noise"]]
            if not rows:
                continue
            lags = ", ".join(str(row["lag"]) for row in rows)
            text = "; ".join(f"{row['fixed']:.2f} -> {row['random']:.2f}" for row in rows)
            found.append((f"Proposition 5: random rows make |corr(C_t, C_t')| smaller ({name})", f"lag {lags}: {text}",
                          all(row["random"] < row["fixed"] for row in rows)))
    if "closed-form" in measures:
        result = measures["closed-form"]
        found.append(("Eq. 10, the closed form, equals the recurrence, also where C is 0", f"relative error {result['closed']:.1e}, scan "
                      f"{result['scan']:.1e}, T = {result['steps']}", max(result["closed"], result["scan"]) < EXACT))
    return found


def sections(results: Any) -> list[Section]:
    """Verdicts first, then the numbers behind each."""
    verdicts = Table("claims", "Statements and verdicts", ["statement", "measured", "verdict"],
                     [[claim, measured, "holds" if holds else "does not hold"] for claim, measured, holds in claims(results)])
    names = ["algorithm-1", "float32", "mean-product", "typical-product", "fixed-C", *(f"correlation-{name}" for name in SOURCES),
             "closed-form"]
    text = ("A verdict says what the computation shows; thresholds are in the statements. " + missing(results, *names)).strip()
    return [Section("Verdicts", text, [verdicts]), _parallel_section(results), _product_section(results), _fixed_section(results),
            _correlation_section(results)]


def _parallel_section(results: Any) -> Section:
    items: list[Any] = []
    for result in present(results, ["algorithm-1"]).values():
        items.append(Table("algorithm-1", f"Algorithm 1 against the loop, float64, z std {result['std']:g}",
                           ["T", "error as printed", "error repaired", "largest entry of M"],
                           [[row["T"], f"{row['printed']:.1e}", f"{row['repaired']:.1e}", f"{row['size']:.1f}"] for row in result["rows"]]))
    for result in present(results, ["float32"]).values():
        rows = result["rows"]
        items.append(Table("float32", "At the last step, in float32", ["z std", "T", "repaired: not finite", "repaired: wrong",
                                                                       "scan: relative error", "loop: relative error"],
                           [[row["std"], row["T"], f"{row['not_finite']:.1%}", f"{row['wrong']:.1%}", f"{row['scan']:.1e}",
                             f"{row['loop']:.1e}"] for row in rows],
                           "Wrong: not finite, or off by more than 1 % of the larger of 1 and the entry. Errors relative to the largest "
                           "entry, against the loop in float64."))
        series = []
        for std in dict.fromkeys(row["std"] for row in rows):
            own = [row for row in rows if row["std"] == std]
            series.append(Series(f"z std {std:g}", [row["T"] for row in own], [100 * row["wrong"] for row in own]))
        items.append(Figure("float32-wrong", "Repaired Algorithm 1 in float32: wrong or not finite", "steps T", "% of entries", series,
                            x_log=True, y_range=(0, 105)))
    text = ("Algorithm 1 forms the prefix product P of C and the prefix sum E of U / P. The sum that eq. 10 needs is P E, and the printed "
            "last line adds E alone, which is wrong from the first step on. With the factor it is right in exact arithmetic, but P leaves "
            "the range of float32, and the division then gives inf and nan. The associative scan combines pairs (C, U) and divides by "
            "nothing. " + missing(results, "algorithm-1", "float32"))
    return Section("The parallel form", text.strip(), items)


def _product_section(results: Any) -> Section:
    items: list[Any] = []
    for result in present(results, ["mean-product"]).values():
        items.append(Table("mean-product", f"Products of C = 1 + tanh(z), z ~ N(0, std²), {result['samples']:,} samples",
                           ["z std", "T", "mean", "99.9 % interval", "median"],
                           [[row["std"], row["T"], f"{row['mean']:.4f}", f"{row['mean'] - WIDE * row['error']:.4f} to "
                             f"{row['mean'] + WIDE * row['error']:.4f}", f"{row['median']:.3f}"] for row in result["rows"]]))
    for result in present(results, ["typical-product"]).values():
        for curve in result["curves"]:
            series = [Series("mean of the samples", curve["steps"], curve["mean"]), Series("median", curve["steps"], curve["median"]),
                      Series("exp(t E[log C])", curve["steps"], curve["typical"], dashed=True)]
            items.append(Figure(f"product-{curve['form']}-{str(curve['std']).replace('.', '')}",
                                f"{FORMS[curve['form']]}, z std {curve['std']:g}", "steps t", "product of C", series, y_log=True,
                                group="products", note=f"{result['samples']:,} samples."))
    text = ("E[C] = 1 for symmetric z, so the mean of a product of independent C is 1 at any length (Proposition 4). The median is not: it "
            "follows exp(t E[log C]), and E[log(1 + tanh z)] is negative. Few and huge products hold the mean up, and for large t no "
            "sample has them: its mean falls as well. With `calibration=\"exp\"`, log C has mean 0 and the typical product stays at 1, "
            "while the mean grows. No calibration that varies can have both. " + missing(results, "mean-product", "typical-product"))
    return Section("Products of C", text.strip(), items)


def _fixed_section(results: Any) -> Section:
    items = [Table("fixed-C", "Powers of a fixed C", ["start", "t", "below 0.01", "above 100", "median"],
                   [[row["start"], row["t"], f"{row['vanished']:.0%}", f"{row['exploded']:.0%}", f"{row['median']:.2g}"]
                    for row in result["rows"]]) for result in present(results, ["fixed-C"]).values()]
    text = "The products of a C that does not change are its powers, entry by entry (Proposition 3). " + missing(results, "fixed-C")
    return Section("A fixed C", text.strip(), items)


def _correlation_section(results: Any) -> Section:
    rows, products = [], []
    for name in SOURCES:
        for result in present(results, [f"correlation-{name}"]).values():
            rows += [[name, row["lag"], f"{row['fixed']:.3f}", f"{row['random']:.3f}", f"{row['smaller']:.0%}"] for row in result["rows"]]
            p = result["products"]
            products.append([name, result["steps"], *(f"{p[kind][value]:.2g}" for kind in ("fixed", "random")
                                                      for value in ("mean", "median"))])
    items = [Table("correlation", "Mean |correlation| of an entry of C between two steps", ["inputs", "lag", "one row of theta",
                                                                                            "random rows", "entries where it is smaller"],
                   rows, "ar-0.95: features with correlation 0.95 from step to step. autoencode, pendulum: what the memory of an untrained "
                   "agent sees. Where one row already has correlations near 0, which of the two is smaller is chance."),
             Table("correlation-products", "Products of C over the steps", ["inputs", "steps", "one row: mean", "one row: median",
                                                                            "random: mean", "random: median"], products)]
    text = ("Proposition 5: drawing the row of theta anew at every step makes C at two steps less correlated than one fixed row does. With "
            "correlated inputs a fixed row multiplies by similar factors again and again, and the mean of the product grows far above 1. "
            + missing(results, *(f"correlation-{name}" for name in SOURCES)))
    return Section("Correlation between steps", text.strip(), items)
