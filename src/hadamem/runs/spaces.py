"""Convert Gymnasium spaces to plain values for JSON, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as plain values; `build_space` is the inverse."""
    if isinstance(space, spaces.Box):
        low, high = _numbers(space.low), _numbers(space.high)
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe_space(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Dict) and all(isinstance(name, str) for name in space.spaces):
        return {"type": "Dict", "spaces": {name: describe_space(inner) for name, inner in space.spaces.items()}}
    raise TypeError(f"{space} cannot be saved; use Box, Discrete, MultiDiscrete, MultiBinary, or Tuple and Dict (with string keys) of them")


def build_space(values: dict[str, Any]) -> spaces.Space[Any]:
    """A space from the values of `describe_space`."""
    kind = values["type"]
    if kind == "Box":
        shape, dtype = tuple(values["shape"]), np.dtype(values["dtype"])
        return spaces.Box(_array(values["low"], shape, dtype), _array(values["high"], shape, dtype), dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(values["n"], start=values["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(values["nvec"]), dtype=np.dtype(values["dtype"]).type, start=np.array(values["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(values["n"] if len(values["n"]) > 1 else values["n"][0])
    if kind == "Tuple":
        return spaces.Tuple([build_space(inner) for inner in values["spaces"]])
    if kind == "Dict":
        return spaces.Dict([(name, build_space(inner)) for name, inner in values["spaces"].items()])      # pairs keep their order
    raise ValueError(f"unknown space {kind!r} in a saved policy; was it written by a newer hadamem?")


def _numbers(values: np.ndarray) -> Any:
    """The entries of an array, or a single number if all are equal. JSON has no infinities: they become strings."""
    flat = values.reshape(-1)
    if len(flat) and (flat == flat[0]).all():
        return _plain(flat[0].item())
    return [_plain(x) for x in flat.tolist()]


def _plain(x: Any) -> Any:
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _array(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    read = [float(x) if isinstance(x, str) else x for x in (values if isinstance(values, list) else [values])]
    return np.broadcast_to(np.array(read, dtype=dtype), (math.prod(shape),)).reshape(shape)
