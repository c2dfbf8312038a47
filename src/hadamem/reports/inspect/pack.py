"""Arrays as short text: numbers of one byte with a scale for each step, compressed, in base64."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

BIGGEST = 1e37          # stands for inf
TAIL = 0.98, 0.995      # shares of all numbers that the colours of a whole episode can tell apart: with and without negative ones


def pack(array: np.ndarray) -> dict[str, Any]:
    """An array for the page's script."""
    array = np.ascontiguousarray(array)
    kind = {"int8": "i1", "uint8": "u1", "uint16": "u2", "float32": "f4"}[array.dtype.name]
    data = zlib.compress(array.tobytes(), 6)
    return {"packed": kind, "shape": list(array.shape), "data": base64.b64encode(data).decode()}


def pack_floats(values: np.ndarray) -> dict[str, Any]:
    """Numbers as float32; inf becomes a large one, nan stays."""
    return pack(np.clip(np.asarray(values, dtype=np.float64), -BIGGEST, BIGGEST).astype(np.float32))


def pack_map(values: np.ndarray, centre: float = 0.0) -> dict[str, Any]:
    """values [T, ...] as bytes q with value = centre + q |q| scale[t]: q in -127 .. 127, or in 0 .. 255 if nothing lies below the centre.

    The square keeps four orders of magnitude of each step apart. side: where values lie, "both", "above" or "below" the centre.
    Distances from the centre at which colours end: own [T], if every step has its own scale; whole, if one serves all; most, the largest.
    """
    T = values.shape[0]
    away = np.nan_to_num(values.reshape(T, -1).astype(np.float32) - np.float32(centre), nan=0.0, posinf=BIGGEST, neginf=-BIGGEST)
    low, high = float(away.min(initial=0.0)), float(away.max(initial=0.0))
    limit = 127 if low < 0 else 255
    most = np.abs(away).max(axis=1, initial=0.0)                          # [T]
    scale = np.where(most > 0, most, 1.0)
    q = np.rint(np.sign(away) * np.sqrt(np.abs(away) / scale[:, None]) * limit).astype(np.int8 if low < 0 else np.uint8)
    side = "above" if low >= 0 else "both" if high > 0 else "below"
    return {"data": pack(q), "scale": pack((scale / limit**2).astype(np.float32)), "limit": limit, "side": side, "centre": centre,
            "own": pack(_own(np.abs(away), most)), "whole": _whole(away), "most": float(most.max(initial=0.0)) or 1.0}


def _own(distance: np.ndarray, most: np.ndarray) -> np.ndarray:
    """distance [T, cells] -> [T]: a few cells that are far above all others must not hide them."""
    usual = np.quantile(distance, 0.99, axis=1) if distance.shape[1] else most
    return np.where(usual > 0, usual, np.where(most > 0, most, 1.0)).astype(np.float32)


def _whole(away: np.ndarray) -> float:
    if away.size == 0:
        return 1.0
    some = np.abs(away.ravel()[:: max(1, away.size // 1_000_000)])
    tail = TAIL[not (away < 0).any()]
    return float(np.quantile(some, tail)) or float(some.max()) or 1.0       # of a map that is nearly empty, show what is there


def every(steps: int, bytes_per_step: int, budget: int) -> int:
    """Store each k-th step, so that all fit into the budget."""
    return max(1, -(-steps * bytes_per_step // budget))
