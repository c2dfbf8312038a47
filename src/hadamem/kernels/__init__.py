"""Recurrences of matrix memories: tensors in, tensors out.

`shm` builds C and U from vectors inside a fused kernel; `hadamard` takes any C and U. Each has the backends `reference` (a plain
loop, the judge), `scan` (associative scan in plain PyTorch), `cpu` (numba) and `triton` (CUDA). `gates` prepares the vectors
for `shm`, `readout` turns what it reads into an output.
"""

from ._backends import NAMES
from ._backends import usable as backends
from ._checks import check_clip
from .gates import Gates, gates
from .hadamard import hadamard
from .readout import readout
from .shm import shm

__all__ = ["NAMES", "Gates", "backends", "check_clip", "gates", "hadamard", "readout", "shm"]
