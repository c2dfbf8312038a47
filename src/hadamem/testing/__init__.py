"""Checks for memories of your own: `check_memory` on a module, `check_spec` on a name.

`python -m hadamem.testing golden DIR` and `traces DIR` compare hadamem itself with recorded files.
"""

from .conformance import check_memory, check_spec
from .report import Report

__all__ = ["Report", "check_memory", "check_spec"]
