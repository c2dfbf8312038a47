"""Compare the kernels that run a GRU or LSTM step by step with what else there is on this GPU, in a CUDA graph.

    PYTHONPATH=src python benchmarks/rnn_steps.py [--rep 20]

For each (B, T, H), forward and backward of a layer: the kernel with resets inside (under several plans for the first shape), the masked
loop of PyTorch's cells that took its place, and cuDNN, which cannot reset inside. The error is against a float64 loop.
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch
from torch.nn import functional as F

import hadamem as hm
from hadamem import kernels
from hadamem.kernels import _gates
from rnn_kernel import attempt, graph_ms

SHAPES = ((20, 104, 256), (32, 64, 256), (10, 208, 256), (64, 101, 64))
PLANS = [{"N": N, "S": S, "C": C, "num_warps": 4 * S, "DOT": dot} for N, S, C, dot in
         ((16, 2, 128, "tf32x3"), (16, 2, 64, "tf32x3"), (8, 2, 128, "tf32x3"), (8, 4, 64, "tf32x3"), (16, 1, 64, "tf32x3"),
          (16, 2, 128, "tf32"))]


class Layer:
    """A GRU or LSTM with its inputs, in every way that it can run."""

    def __init__(self, kind: str, B: int, T: int, H: int) -> None:
        g = torch.Generator("cuda").manual_seed(0)
        self.kind = kind
        self.memory = {"gru": hm.GRU, "lstm": hm.LSTM}[kind](H, memory_size=H, backend="torch").cuda()
        self.x, self.dy = (torch.randn(B, T, H, device="cuda", generator=g) for _ in range(2))
        self.reset = torch.rand(B, T, device="cuda", generator=g) < 0.02
        self.state = self.memory.initial_state(B)
        self.leaves = [self.x.requires_grad_(), *self.memory.parameters()]

    def kernel(self) -> torch.Tensor:
        return self.run(*self.leaves, "triton")

    def run(self, x, W_ih, W_hh, b_ih, b_hh, backend) -> torch.Tensor:
        if self.kind == "gru":
            return kernels.gru(F.linear(x, W_ih, b_ih), W_hh, b_hh, None, self.reset, backend)
        return kernels.lstm(F.linear(x, W_ih, b_ih + b_hh), W_hh, None, None, self.reset, backend)[0]

    def masked_loop(self) -> torch.Tensor:
        return self.memory._masked_loop(self.x, tuple(self.state), self.reset)[0]

    def cudnn(self) -> torch.Tensor:
        return self.memory._plain(self.x, tuple(self.state))[0]

    def grads(self, call) -> list[torch.Tensor]:
        y = call()
        return [y.detach(), *torch.autograd.grad(y, self.leaves, self.dy)]

    def error(self) -> float:
        leaves = [x.detach().double().requires_grad_() for x in self.leaves]
        y = self.run(*leaves, "reference")
        want = [y.detach(), *torch.autograd.grad(y, leaves, self.dy.double())]
        return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(self.grads(self.kernel), want, strict=True))


def eager_ms(layer: Layer) -> float:
    for _ in range(3):
        layer.grads(layer.kernel)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        layer.grads(layer.kernel)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 200


def show(layer: Layer, rep: int, plans: list[dict]) -> None:
    """Print a line for each way to run the layer; one that fails shows its error."""
    print(layer.kind, list(layer.x.shape), flush=True)
    for plan in plans or [_gates.PLAN]:
        with mock.patch.dict(_gates.PLAN, plan):
            attempt(f"kernel, {plan}", lambda: graph_ms(lambda: layer.grads(layer.kernel), rep))
            attempt("    error", layer.error)
    with mock.patch.object(_gates, "OVERLAP", False):
        attempt("kernel, steps that do not overlap", lambda: graph_ms(lambda: layer.grads(layer.kernel), rep))
    attempt("kernel without a graph", lambda: eager_ms(layer))
    attempt("masked loop", lambda: graph_ms(lambda: layer.grads(layer.masked_loop), rep))
    attempt("cuDNN without resets", lambda: graph_ms(lambda: layer.grads(layer.cudnn), rep))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rep", type=int, default=20, help="replays of each graph")
    rep = parser.parse_args().rep
    print(torch.cuda.get_device_name(), "ms, forward + backward", flush=True)
    for kind in ("gru", "lstm"):
        for shape in SHAPES:
            show(Layer(kind, *shape), rep, PLANS if shape == SHAPES[0] else [])


if __name__ == "__main__":
    main()
