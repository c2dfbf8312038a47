"""New tensors in the memory of old ones, for a large result at every acting step.

The C library gives freed memory of this size back to the system at times of its own choosing; then the next tensor costs a page fault per
4 KB, a millisecond where the step itself takes a quarter. Here memory comes back only after the last tensor, view or array using it is gone
(the tensor's storage owns a loan, and the loan's end returns the memory), and few blocks are kept.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEPT = 4                  # blocks without a user
SMALLEST = 2 ** 16        # floats: below, the C library keeps the memory itself
LARGEST = 2 ** 23         # floats: above, a page fault is little beside the work on the page

_idle: deque[Any] = deque(maxlen=KEPT)   # float32 arrays; the oldest is dropped for the newest


class _Loan(np.ndarray):
    def __del__(self) -> None:
        if _idle is not None:   # None while the interpreter ends
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
