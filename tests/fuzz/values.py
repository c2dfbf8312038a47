"""Random values: numbers, texts and other things that an argument may be given, and tensors of all kinds."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 64, 0.5, -0.5, 0.0, -0.0, 1.0, 3.0, 1e-46, 1e-38, 1e-30, 1e30, 1e38, 1e39, 1e300, -1e39, 2**31 - 1, 2**31, 2**63 - 1,
    2**63, -2**63, 10**12, 10**400, 10**5000, math.nan, math.inf, -math.inf, True, False, Fraction(1, 3), np.float32(0.5),
    np.float64("nan"), np.int64(3), np.uint8(200),
]
TEXTS = [
    "", " ", "none", "None", "null", "auto", "true", "nan", "inf", "-inf", "1e39", "-1", "0", "1", "3", "0.5", "1e-3", "9" * 400, "x" * 256,
    "x" * 5000, "ä", "名前", "\U0001f600", "\u202e", "\ud800", "\x00", "a\x00b", "a\nb", "\t", "..", "../..", "/", "%s%n", "{}", "{", "[",
    "'", '"', "\\", "-", "--", "=", "a=b", "a=", "=b", "$HOME", "`id`", "nowhere:Nothing", "json:dumps", "math:pi", "hadamem.memory:GRU",
    ":", "nowhere:a:b", "a.b", ".", "*", "~", "tanh", "exp:1.5", "exp:", "exp:nan", "exp:9", "cpu", "cuda", "cuda:99", "meta", "reference",
    "scan", "triton", "shm", "gru", "TMaze", "step", "episode", "same",
]


def thing(rng: Random) -> Any:
    """Anything at all."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    others: list[Any] = [None, [], {}, (), object(), b"bytes", [1, 2], [1.0, "a"], {"a": 1}, {1: 2}, {"a": {"b": []}}, set(), 1j, float,
                         len, torch.tensor(1.0), torch.ones(2), np.ones(3), range(3), Ellipsis, [[]], ["tensorboard"], lambda: None]
    return rng.choice(others)


def size(rng: Random, most: int = 9) -> int:
    """Small sizes, odd ones and ones around the widths of vectors."""
    return rng.choice([1, 1, 2, 3, rng.randint(1, most), rng.randint(1, most)])


def noise(rng: Random, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(rng.getrandbits(32)), dtype=torch.float64) * scale
    if dtype.is_complex:
        made = torch.complex(made, made.flip(0))
    return made.to(dtype)


def flags(rng: Random, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(rng.getrandbits(32))) < rng.choice([0.0, 0.2, 1.0])


SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1e38, "tiny": 1e-42}
ORDINARY = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)
DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.complex64,
          torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


def special(rng: Random, x: Tensor, rows: bool) -> tuple[str, Tensor]:
    """The tensor with one strange number in its first row; rows: only if there are others."""
    name = rng.choice(list(SPECIAL))
    x = x.detach().clone(memory_format=torch.contiguous_format)
    if not x.is_floating_point() or not x.numel() or (rows and x.shape[0] < 2):
        return "", x
    x[0].view(-1)[rng.randrange(max(1, x[0].numel()))] = SPECIAL[name]
    return name, x


def restride(rng: Random, x: Tensor) -> tuple[str, Tensor]:
    """The same values with other strides."""
    if not x.ndim or not x.numel():
        return "same", x
    how = rng.choice(["transposed", "sliced", "reversed twice", "expanded", "offset"])
    if how == "transposed":
        axes = list(range(x.ndim))
        rng.shuffle(axes)
        back = [axes.index(i) for i in range(x.ndim)]
        return how, x.permute(axes).contiguous().permute(back)
    if how == "sliced":
        return how, torch.stack((x, x), dim=-1)[..., 0]
    if how == "reversed twice":
        return how, x.flip(0).flip(0)
    if how == "expanded":
        return how, x[:1].expand(x.shape)
    return how, torch.cat((x[:1], x))[1:]


def spoil(rng: Random, x: Any) -> tuple[str, Any]:
    """An argument that may no longer do: how it was changed, and what it is now."""
    ordinary = isinstance(x, Tensor) and x.device.type == "cpu" and x.layout == torch.strided and x.dtype in ORDINARY \
        and not x.is_inference()
    if not ordinary or rng.random() < 0.2:
        new = thing(rng)
        return f"is {brief(new)}", new
    how = rng.choice(["rank", "size", "dtype", "meta", "sparse", "list", "numpy", "parameter", "inference", "empty", "double"])
    if how == "rank":
        new = rng.choice([lambda: x[None], lambda: x[..., None], lambda: x.flatten(), lambda: x.sum(), lambda: x[:1].squeeze()])()
        return f"has shape {list(new.shape)}", new
    if how == "size":
        axis = rng.randrange(max(1, x.ndim))
        kept = rng.randint(0, max(0, x.shape[axis] - 1)) if x.ndim else 0
        new = rng.choice([lambda: torch.cat((x, x), axis), lambda: x.narrow(axis, 0, kept)])() if x.ndim else x
        return f"has shape {list(new.shape)}", new
    if how == "empty":
        return "is empty", x.new_empty([0] * max(1, x.ndim))
    if how == "dtype":
        dtype = rng.choice(DTYPES)
        return f"is {dtype}", x.real.to(dtype) if x.is_complex() else x.to(dtype)
    if how == "double":
        return "is float64", x.to(torch.float64) if x.is_floating_point() else x
    if how == "meta":
        return "is on meta", x.to("meta")
    if how == "sparse":
        if x.ndim == 2 and rng.random() < 0.5:
            return "is CSR", x.to_sparse_csr()
        return "is sparse", x.to_sparse()
    if how == "list":
        return "is a list", x.tolist()
    if how == "numpy":
        return "is an array", x.detach().numpy()
    if how == "parameter":
        return "is a parameter", torch.nn.Parameter(x, requires_grad=x.is_floating_point())
    with torch.inference_mode():
        return "was made in inference mode", x.clone()


def brief(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:      # an int of thousands of digits
        text = "a long int"
    return text.encode("unicode_escape").decode() if len(text) <= 60 else f"{text[:60].encode('unicode_escape').decode()}..."
