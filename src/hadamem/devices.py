"""Devices by name."""

from __future__ import annotations

import torch


def find_device(name: str) -> torch.device:
    """The device of that name; "auto": a GPU if there is one, otherwise the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {' '.join(str(error).split())[:200]}") from error
    return device
