"""Helpers for the checks of a memory: random inputs, states and resets, comparisons, gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import states

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {   # dtype -> (rtol, atol); rtol is relative to the largest entry
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (5e-2, 5e-2),
}


class Broken(Exception):
    """A property that does not hold; the message says which value is wrong."""


class Trial:
    """A module under test, with the sizes, seed and tolerances of its checks."""

    def __init__(self, module: nn.Module, input_size: int, B: int, T: int, long_T: int,
                 tolerances: Mapping[torch.dtype, tuple[float, float]], seed: int, expect_memory: bool):
        self.module: Any = module     # its interface is not known before the first check
        self.D, self.B, self.T, self.long_T = input_size, B, T, long_T
        self.tolerances, self.seed, self.expect_memory = tolerances, seed, expect_memory
        parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self.dtype = torch.get_default_dtype() if parameter is None else parameter.dtype

    def x(self, B: int | None = None, T: int | None = None, seed: int = 1) -> Tensor:
        """Random inputs [B, T, D]."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        x = torch.randn(B or self.B, T or self.T, self.D, generator=generator, dtype=torch.float64)
        return x.to(self.device, self.dtype)

    def state(self, B: int | None = None, seed: int = 1, used: bool = True) -> Any:
        """A state after five random steps, or a fresh one."""
        generator = torch.Generator(self.device).manual_seed(1000 * self.seed + seed)
        state = self.module.initial_state(B or self.B, generator=generator)
        if not used:
            return state
        with torch.no_grad():
            return states.detach(self.run(self.x(B, 5, seed=100 + seed), state)[1])

    def resets(self, seed: int = 1, rate: float = 0.25) -> Tensor:
        """Random resets [B, T]; at step 0 the first row has one and the second has none."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        reset = torch.rand(self.B, self.T, generator=generator) < rate
        reset[0, 0], reset[1, 0] = True, False
        reset[:, self.T // 2] |= ~reset[:, 1:].any(dim=1)   # at least one inside every row
        return reset.to(self.device)

    def run(self, x: Tensor, state: Any = None, reset: Tensor | None = None,
            module: nn.Module | None = None) -> tuple[Tensor, Any]:
        """Call the module (or another one) and check that it returns a pair."""
        result = (self.module if module is None else module)(x, state, reset)
        if not isinstance(result, tuple) or len(result) != 2:
            raise Broken(f"forward(x, state, reset) must return (y, state), got {type(result).__name__}")
        return result

    def same(self, got: Tensor, want: Tensor, what: str, dtype: torch.dtype | None = None) -> None:
        """Raise unless `got` equals `want`: within the tolerance of the dtype, exactly for integers. `what` starts the message."""
        if got.shape != want.shape:
            raise Broken(f"{what}: shapes differ, expected {list(want.shape)}, got {list(got.shape)}")
        got, want = got.detach(), want.detach()
        if not is_real(got):
            if not torch.equal(got, want):
                raise Broken(f"{what}: expected {_brief(want)}, got {_brief(got)}")
            return
        if got.numel() == 0:
            return
        rtol, atol = self.tolerances.get(dtype or self.dtype, TOLERANCES[torch.float32])
        error, scale = (got - want).abs(), want.abs().max()
        equal = (got == want) | (got.isnan() & want.isnan())
        error = torch.where(equal, torch.zeros_like(error), error)
        limit = atol + rtol * float(scale) if torch.isfinite(scale) else atol
        if not bool((error <= limit).all()):   # nan is not <= limit
            worst = int(error.nan_to_num(nan=float("inf"), posinf=float("inf")).flatten().argmax())
            place = list(map(int, torch.unravel_index(torch.tensor(worst), got.shape)))
            expected, found = want.flatten()[worst].item(), got.flatten()[worst].item()
            raise Broken(f"{what}: at {place} expected {expected:.6g}, got {found:.6g} (allowed ±{limit:.1g})")

    def same_state(self, got: Any, want: Any, what: str, dtype: torch.dtype | None = None) -> None:
        """`same` for every tensor of a state."""
        for name, a, b in zip(want._fields, got, want, strict=True):
            self.same(a, b, f"{what}, state.{name}", dtype)

    def pieces(self, x: Tensor, state: Any, reset: Tensor | None, cuts: list[int]) -> tuple[Tensor, Any]:
        """Run x in parts, split before the steps in `cuts`, and carry the state."""
        ys = []
        for start, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
            y, state = self.run(x[:, start:end], state, None if reset is None else reset[:, start:end])
            ys.append(y)
        return torch.cat(ys, dim=1), state

    def gradients(self, y: Tensor, leaves: list[tuple[str, Tensor]], cotangent: Tensor) -> dict[str, Tensor]:
        """Gradients of sum(y * cotangent) by name of the leaf; zeros for a leaf that y does not depend on."""
        leaves = [(name, leaf) for name, leaf in leaves if leaf.requires_grad]
        if not y.requires_grad:
            raise Broken("y has no gradient of x or any parameter; is it detached?")
        found = torch.autograd.grad((y * cotangent).sum(), [leaf for _, leaf in leaves], allow_unused=True)
        return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in zip(leaves, found, strict=True)}

    def finite(self, y: Tensor, leaves: list[tuple[str, Tensor]], what: str) -> None:
        """Raise unless the gradients of sum(y) are finite."""
        for name, g in self.gradients(y, leaves, torch.ones_like(y)).items():
            if not bool(torch.isfinite(g).all()):
                count = int((~torch.isfinite(g)).sum())
                raise Broken(f"the gradient of {name} after {what} has {count} entries that are inf or nan")

    def leaves(self, state: Any) -> tuple[Any, list[tuple[str, Tensor]]]:
        """A copy of the state that requires gradients, and its tensors by name."""
        state = states.apply(lambda s: s.detach().clone().requires_grad_() if is_real(s) else s, state)
        named = zip(state._fields, state, strict=True)
        return state, [(f"state.{name}", s) for name, s in named if s.requires_grad and s.numel()]


def same_kind(got: Any, want: Any, what: str) -> None:
    """Raise unless both states have the same type, shapes, dtypes and devices."""
    if type(got) is not type(want):
        raise Broken(f"{what} must be a {type(want).__name__} like initial_state()'s, got {type(got).__name__}")
    for name, a, b in zip(want._fields, got, want, strict=True):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            raise Broken(f"{what} must keep state.{name} as {list(b.shape)} {b.dtype} on {b.device}, "
                         f"got {list(a.shape)} {a.dtype} on {a.device}")


def is_real(x: Tensor) -> bool:
    """Whether the dtype is floating point or complex, not a counter or flag."""
    return x.is_floating_point() or x.is_complex()


def _brief(x: Tensor) -> str:
    values = x.flatten()[:6].tolist()
    return f"{values}{'...' if x.numel() > 6 else ''}"
