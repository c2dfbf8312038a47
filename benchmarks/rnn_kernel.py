"""Compare `hm.kernels.gru` and `lstm` with cuDNN's on this GPU: time of a layer inside a CUDA graph, and error against a float64 loop.

    PYTHONPATH=src python benchmarks/rnn_kernel.py [--kind gru lstm] [--quick] [--rep 30]

For each (B, T, H): the layer (the product with W_ih included) forward and backward, and forward alone, by cuDNN and by the kernel under
plans of several tiles and warps; the kernels alone; then the chosen plan with resets inside. --quick: the chosen plan only. A variant that
fails shows its error in the table, which is printed last.
"""

from __future__ import annotations

import argparse
import traceback

import torch
import triton
from torch import nn
from torch.nn import functional as F

from hadamem.kernels._tiles import padded_size
from hadamem.kernels.gru import triton as gru
from hadamem.kernels.gru.reference import gru_reference
from hadamem.kernels.lstm import triton as lstm
from hadamem.kernels.lstm.reference import lstm_reference

BACKENDS = {"gru": gru, "lstm": lstm}
SHAPES = {"gru": ((64, 101, 64), (32, 201, 128), (32, 276, 128), (32, 526, 128), (8, 1024, 128)),
          "lstm": ((64, 101, 64), (64, 101, 32), (300, 51, 64))}
WARPS = {16: (1, 2), 32: (1, 2, 4), 64: (2, 4, 8), 128: (8, 16)}     # by padded size
COLUMNS = (8, 16, 32)                                                # K of a plan


class Layer:
    """A layer with its inputs, as the kernel and as cuDNN run it."""

    def __init__(self, kind: str, B: int, T: int, H: int, resets: float = 0.0) -> None:
        g = torch.Generator("cuda").manual_seed(0)
        self.kind, self.backend = kind, BACKENDS[kind]
        self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](H, H, batch_first=True).cuda()
        self.x, self.dy = (torch.randn(B, T, H, device="cuda", generator=g) for _ in range(2))
        self.state = [torch.randn(B, H, device="cuda", generator=g) for _ in range(1 if kind == "gru" else 2)]
        self.reset = torch.rand(B, T, device="cuda", generator=g) < resets if resets else None
        rnn = self.rnn
        self.weights = [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]
        for x in (self.x, *self.state):
            x.requires_grad_()

    def cudnn(self) -> torch.Tensor:
        state = tuple(s[None] for s in self.state)
        return self.rnn(self.x, state[0] if self.kind == "gru" else state)[0]

    def arguments(self, x, W_ih, W_hh, b_ih, b_hh, *state):
        """Of the kernel's function."""
        if self.kind == "gru":
            return F.linear(x, W_ih, b_ih), W_hh[None], b_hh[None], *state, self.reset
        return F.linear(x, W_ih, b_ih + b_hh), W_hh[None], *state, self.reset

    def kernel(self) -> torch.Tensor:
        given = self.arguments(self.x, *self.weights, *self.state)
        return gru.gru_triton(*given) if self.kind == "gru" else lstm.lstm_triton(*given)[0]

    def grads(self, y: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(y, [self.x, *self.weights, *self.state], self.dy))

    def exact(self) -> list[torch.Tensor]:
        """Output and gradients in float64."""
        leaves = [x.detach().double().requires_grad_() for x in (self.x, *self.weights, *self.state)]
        given = self.arguments(*leaves)
        y = gru_reference(*given) if self.kind == "gru" else lstm_reference(*given)[0]
        return [y.detach(), *torch.autograd.grad(y, leaves, self.dy.double())]


def error(layer: Layer, y: torch.Tensor, want: list[torch.Tensor]) -> float:
    """The largest error of output and gradients, relative to the largest entry of each."""
    got = [y.detach(), *layer.grads(y)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))


def graph_ms(run, rep: int) -> float:
    """Median time of `run` in a CUDA graph of its own, replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(rep):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def measure(layer: Layer, call, want: list[torch.Tensor], rep: int) -> tuple[float, ...]:
    """(error, forward and backward ms, forward ms), and for the kernel the ms of its two walks alone, as training calls them."""
    off = error(layer, call(), want)

    def forward() -> None:
        with torch.no_grad():
            call()

    times = off, graph_ms(lambda: layer.grads(call()), rep), graph_ms(forward, rep)
    return times if call == layer.cudnn else (*times, *walks(layer, rep))


def attempt(label: str, run) -> tuple[str, object]:
    """`run`'s result, or the error it ends with."""
    try:
        result = run()
    except Exception as problem:   # a variant that does not compile or fit is a row of the table, not the end of it
        traceback.print_exc()
        torch.cuda.synchronize()
        result = f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else ''}"[:100]
    print(f"  {label}: {result}", flush=True)
    return label, result


def walks(layer: Layer, rep: int) -> tuple[float, float]:
    """Time of each kernel without the matrix products around it."""
    backend = layer.backend
    with torch.no_grad():
        given = layer.arguments(*(x.detach() for x in (layer.x, *layer.weights, *layer.state)))
        *_, saved = backend.forward(*given, True)
        forward = graph_ms(lambda: backend.forward(*given, True), rep)
        end = () if layer.kind == "gru" else (None,)
        return forward, graph_ms(lambda: backend.walk_back(given[1], layer.reset, saved, layer.dy, *end), rep)


def with_plans(backend, plan: tuple[int, int], P: int, run):
    """`run()` under this plan of both kernels."""
    kept = backend.FORWARD[P], backend.BACKWARD[P]
    backend.FORWARD[P] = backend.BACKWARD[P] = plan
    try:
        return run()
    finally:
        backend.FORWARD[P], backend.BACKWARD[P] = kept


def variants(P: int, quick: bool) -> list[tuple[int, int]]:
    if quick:
        return []
    return [(K, warps) for warps in WARPS[P] for K in COLUMNS if K <= P]


def shape_rows(kind: str, B: int, T: int, H: int, quick: bool, rep: int) -> list[tuple[str, object]]:
    print(f"{kind} B={B} T={T} H={H}", flush=True)
    layer = Layer(kind, B, T, H)
    backend, P = layer.backend, padded_size(H)
    want = layer.exact()
    rows = []
    for tf32 in (True, False):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            rows.append(attempt(f"cuDNN{', TF32' if tf32 else ''}", lambda: measure(layer, layer.cudnn, want, rep)))
    chosen = backend.FORWARD[P], backend.BACKWARD[P]
    rows.append(attempt(f"kernel, chosen {chosen[0]} {chosen[1]}", lambda: measure(layer, layer.kernel, want, rep)))
    for plan in variants(P, quick):
        rows.append(attempt(f"kernel, (K, warps) = {plan} both ways",
                            lambda p=plan: with_plans(backend, p, P, lambda: measure(layer, layer.kernel, want, rep))))
    again = Layer(kind, B, T, H, resets=0.02)
    rows.append(attempt("kernel, chosen, with resets", lambda: measure(again, again.kernel, again.exact(), rep)))
    return rows


def table(found: dict[tuple[str, int, int, int], list[tuple[str, object]]]) -> str:
    lines = ["x: times as fast as cuDNN with TF32, its default; us: of the kernel alone, per step",
             f"{'':<40} {'both ms':>8} {'us/step':>8} {'x':>6} {'fwd ms':>8} {'x':>6} {'error':>8} {'fwd us':>7} {'bwd us':>7}"]
    for (kind, B, T, H), rows in found.items():
        lines.append(f"{kind} B={B} T={T} H={H}")
        base = rows[0][1] if isinstance(rows[0][1], tuple) else (0.0, 0.0, 0.0)
        for label, result in rows:
            if not isinstance(result, tuple):
                lines.append(f"  {label:<38} {result}")
                continue
            off, both, forward, *alone = result
            lines.append(f"  {label:<38} {both:8.3f} {1e3 * both / T:8.2f} {base[1] / both:6.1f} {forward:8.3f} {base[2] / forward:6.1f} "
                         f"{off:8.1e} " + " ".join(f"{1e3 * ms / T:7.2f}" for ms in alone))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--quick", action="store_true", help="time the chosen plan only")
    parser.add_argument("--rep", type=int, default=30, help="replays per timing")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("rnn_kernel.py needs a CUDA device")
    header = f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}"
    print(header, flush=True)
    found = {}
    for shape in ((kind, *shape) for kind in args.kind for shape in SHAPES[kind]):
        label, rows = attempt(str(shape), lambda s=shape: shape_rows(*s, args.quick, args.rep))
        found[shape] = rows if isinstance(rows, list) else [(label, rows)]
    print(f"\n{header}\n{table(found)}")


if __name__ == "__main__":
    main()
