"""New tensors in the memory of freed ones: a large result at every acting step, without page faults.

Why: the C library may return freed memory of this size to the system at any time. The next tensor then costs a page fault per 4 KB, in all
a millisecond, where the acting step itself takes a quarter of one.

How: a tensor from `empty` is built on a numpy array (`_Loan`) that torch keeps alive as long as any tensor, view or array uses the memory.
When the loan is deleted, its memory goes onto a short list (`_idle`), from which the next tensor of that size takes it. So memory is never
reused while in use, and at most KEPT unused blocks are held.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEPT = 4                  # unused blocks held at most
SMALLEST = 2 ** 16        # floats: below, the C library keeps the memory itself
LARGEST = 2 ** 23         # floats: above, a page fault is little beside the work on the page

_idle: deque[Any] = deque(maxlen=KEPT)   # float32 arrays; the oldest is dropped for the newest


class _Loan(np.ndarray):
    def __del__(self) -> None:
        if _idle is not None:   # None while the interpreter shuts down
            _idle.append(self.base)


def empty(*shape: int) -> Tensor:
    """torch.empty(shape) in float32 on the CPU; its storage cannot be resized."""
    size = math.prod(shape)
    if not SMALLEST <= size <= LARGEST:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    block = None
    for _ in range(len(_idle)):
        try:
            block = _idle.pop()
        except IndexError:   # another thread took it
            break
        if block.size == size:
            break
        _idle.appendleft(block)
        block = None
    if block is None:
        block = torch.empty(size, dtype=torch.float32, device="cpu").numpy()
    return torch.from_numpy(_Loan(shape, np.float32, block))
