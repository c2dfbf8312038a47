"""The bounded calibrations a fused kernel can build from two vectors: C = scale * sigmoid(gain * z), z = theta ⊗ vc.

One family covers them: `1 + tanh(z) == 2 * sigmoid(2 z)`, and its slope is `gain * C * (1 - C / scale)` for every
member, so a backward needs C alone. To add a form, add a line here; every backend reads this table.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORMS: dict[str, tuple[float, float]] = {   # name -> (scale, gain)
    "tanh": (2.0, 2.0),      # 1 + tanh(z), in (0, 2): the paper's eq. 14
    "sigmoid": (1.0, 1.0),   # sigmoid(z), in (0, 1): a gate that can only forget
    "none": (1.0, 0.0),      # C = 1, theta and vc are not used: additive memory
}


def calibrate(z: Tensor, calibration: str) -> Tensor:
    """C for every entry of z, in plain PyTorch."""
    if calibration == "tanh":
        return 1 + torch.tanh(z)
    scale, gain = FORMS[calibration]
    return scale * torch.sigmoid(gain * z)
