"""Recurrences of memories: tensors in, tensors out.

`shm` builds C and U from vectors inside a fused kernel; `hadamard` takes any C and U; `diagonal` is the same recurrence on vectors, real or
complex, with factors that may be constant; `selective` builds S6's factors and updates from vectors. Each has the backends `reference` (a
plain loop, which the others are tested against), `scan` (associative scan in plain PyTorch), `cpu` (numba) and `triton` (CUDA).
`additive` (outer products under one decay) and `delta` (the delta rule) have `reference` and `scan`, which computes chunks of steps by
matrix products. `gru` and `lstm`, sequences with resets inside, have `reference` and `triton`. `gates` prepares the vectors for `shm`,
`readout` computes the output from what it reads. `adam`, for the agents, is a step of Adam with clipping on a flat vector.
"""

from ._backends import NAMES
from ._backends import usable as backends
from ._checks import check_clip
from .additive import Additive, additive
from .delta import delta
from .diagonal import diagonal
from .gates import Gates, gates
from .gru import gru, gru_has_kernel, gru_is_fused
from .hadamard import hadamard
from .lstm import lstm, lstm_has_kernel
from .readout import readout
from .selective import selective
from .shm import shm

__all__ = ["NAMES", "Additive", "Gates", "additive", "backends", "check_clip", "delta", "diagonal", "gates", "gru", "gru_has_kernel",
           "gru_is_fused", "hadamard", "lstm", "lstm_has_kernel", "readout", "selective", "shm"]
