"""The statements about Hadamard memories: each verdict, with numbers that could come out otherwise."""

from __future__ import annotations

import pytest

from hadamem.experiments.studies import theory

from .studies import run


@pytest.fixture(scope="module")
def results():
    return run(theory.make(quick=True))[0]


def rows(results, name):
    return results.measures[name]["rows"]


def test_verdicts(results):
    verdicts = {claim: holds for claim, _, holds in theory.claims(results)}
    wrong = {"as printed", "can be used in float32", "C = 1 + tanh(z), z std 1"}
    assert len(verdicts) == 13
    for claim, holds in verdicts.items():
        assert holds is not any(part in claim for part in wrong), claim


def test_algorithm_1_is_wrong_as_printed_from_the_first_step(results):
    for row in rows(results, "algorithm-1"):
        assert row["printed"] > row["size"]
        assert row["repaired"] < 1e-12 * row["size"]


def test_the_repaired_form_leaves_float32(results):
    share = {(row["std"], row["T"]): row["not_finite"] for row in rows(results, "float32")}
    assert share[0.25, 256] == 0
    assert 0.05 < share[2.0, 64] < 0.3
    assert 0.5 < share[1.0, 256] < 0.85
    assert share[2.0, 256] > 0.99
    assert all(row["scan"] < 1e-5 and row["loop"] < 1e-5 for row in rows(results, "float32"))


def test_the_mean_is_one_and_the_median_is_not(results):
    for row in rows(results, "mean-product"):
        assert abs(row["mean"] - 1) < theory.WIDE * row["error"]
        assert row["error"] < 0.01
    last = rows(results, "mean-product")[-1]
    assert (last["std"], last["T"]) == (0.25, 16)
    assert 0.55 < last["median"] < 0.7          # exp(16 E[log C]) = 0.62


@pytest.mark.parametrize(("form", "drift"), [("tanh", -0.374), ("exp", 0.0)])
def test_the_drift_of_the_typical_product(results, form, drift):
    curve = next(c for c in results.measures["typical-product"]["curves"] if c["form"] == form and c["std"] == 1.0)
    assert curve["mean_log_C"] == pytest.approx(drift, abs=0.01)
    assert curve["typical"][-1] == pytest.approx(curve["median"][-1], rel=0.5)


def test_powers_of_a_fixed_calibration(results):
    by = {(row["start"], row["t"]): row for row in rows(results, "fixed-C")}
    assert by["U(0, 1)", 10]["vanished"] == pytest.approx(0.01 ** 0.1, abs=0.03)      # the share of entries below 0.01^(1/10)
    assert by["Xavier", 200]["vanished"] > 0.99
    assert by["N(1, 0.1²)", 200]["exploded"] > 0.3


def test_random_rows_decorrelate(results):
    for name, fixed in (("ar-0.5", 0.5), ("ar-0.95", 0.95)):
        row = rows(results, f"correlation-{name}")[0]
        assert row["fixed"] == pytest.approx(fixed, abs=0.03)         # that of the inputs: an entry is a function of one projection
        assert row["random"] < 0.1
        assert row["smaller"] == 1
    products = results.measures["correlation-ar-0.95"]["products"]
    assert products["fixed"]["mean"] > 100 * products["random"]["mean"]
    assert rows(results, "correlation-autoencode")[0]["random"] < 0.2 < rows(results, "correlation-autoencode")[0]["fixed"]


def test_closed_form(results):
    assert results.measures["closed-form"]["closed"] < 1e-12


def test_sizes():
    small, full, half = (theory.make(**kind) for kind in ({"quick": True}, {}, {"budget": 0.5}))
    samples = [next(t for t in s.measures if t.name == "mean-product").settings["samples"] for s in (small, full, half)]
    assert samples == [50_000, 2_000_000, 1_000_000]
