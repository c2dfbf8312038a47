"""The bounded calibrations a fused kernel can build from two vectors: C is a sigmoid of z = theta ⊗ vc, between two bounds.

One family covers them, C = floor + scale / (low + e^(-gain z)), and the slope of every member is a polynomial of C, so a backward needs C
alone. `1 + tanh(z) == 2 / (1 + e^(-2 z))`. The "exp" form is the member with C(-z) = 1 / C(z):

    C = (1 + x) / (1 - x),   x = r tanh(z / 2r),   r = (bound - 1) / (bound + 1)

e^z with its ends bent to 1 / bound and bound. log C is odd, so it has no drift where z is symmetric. To add a form, add a line here; every
backend reads this table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """The numbers of C = floor + scale / (low + e^(-gain z)); low is floor where there is one, and 1 elsewhere."""

    scale: float
    gain: float
    floor: float = 0.0
    drift: bool = False    # theta is [..., 2 V]: its second half is added to z, one number for each row

    @property
    def low(self) -> float:
        return self.floor or 1.0

    @property
    def top(self) -> float:
        """The upper bound of C."""
        return self.floor + self.scale / self.low


SMALLEST, LARGEST = 1.1, 3.0   # bounds of "exp": products over a segment of 64 steps, which `triton` forms, must fit into float32


def _exp(bound: float, drift: bool = False) -> Form:
    floor = round(2048 / bound) / 2048      # with so few bits C(0) is 1 exactly, in float32 too
    return Form(1 - floor**2, (1 + floor) / (1 - floor), floor, drift)


FORMS: dict[str, Form] = {
    "tanh": Form(2.0, 2.0),           # 1 + tanh(z), in (0, 2): the paper's eq. 14
    "sigmoid": Form(1.0, 1.0),        # sigmoid(z), in (0, 1): a gate that can only forget
    "none": Form(1.0, 0.0),           # C = 1, theta and vc are not used: additive memory
    "exp": _exp(2.0),                 # e^z bent to [1/2, 2], or to [1/b, b] as "exp:b"
    "drift": _exp(2.0, drift=True),   # the same of z + b ⊗ 1, b the second half of theta; also "drift:b"
}


def find_form(calibration: str) -> Form:
    """The form with this name: one of FORMS, or "exp" and "drift" with a bound, as in "exp:1.5"."""
    if not isinstance(calibration, str):
        raise TypeError(f"calibration must be a name, one of {', '.join(FORMS)}; got {type(calibration).__name__}")
    if calibration in FORMS:
        return FORMS[calibration]
    name, _, bound = str(calibration).partition(":")
    if name not in ("exp", "drift"):
        raise ValueError(f"unknown calibration {calibration!r} for shm; choose from {', '.join(FORMS)}, "
                         "or build C yourself and call hadamard")
    return _exp(check_bound(bound), drift=name == "drift")


def check_bound(bound: float | str) -> float:
    """The bound as a number, if "exp" and "drift" can have it."""
    try:
        number = float(bound)
    except (TypeError, ValueError):
        number = 0.0
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(f"the bound of a calibration must be a number in {SMALLEST:g}..{LARGEST:g}, as in 'exp:1.5', got {bound!r}")
    return number


def logits(theta: Tensor, vc: Tensor, calibration: str) -> Tensor:
    """z [..., V, K] from theta [..., V] (with a drift [..., 2 V]) and vc [..., K]."""
    if not find_form(calibration).drift:
        return theta[..., :, None] * vc[..., None, :]
    theta, drift = theta.chunk(2, dim=-1)
    return theta[..., :, None] * vc[..., None, :] + drift[..., :, None]


def calibrate(z: Tensor, calibration: str) -> Tensor:
    """C for every entry of z, in plain PyTorch."""
    if calibration == "tanh":
        return 1 + torch.tanh(z)
    form = find_form(calibration)
    if form.floor:
        x = torch.tanh(0.5 * form.gain * z) / form.gain       # 1 / gain is r
        return (1 + x) / (1 - x)
    return form.scale * torch.sigmoid(form.gain * z)


def slope(C: Tensor, calibration: str) -> Tensor:
    """dC/dz for every entry of C."""
    form = find_form(calibration)
    part = C - form.floor
    return form.gain * part * (1 - part * form.low / form.scale)
