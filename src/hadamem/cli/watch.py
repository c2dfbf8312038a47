"""`hadamem watch`."""

from ..cli_train import watch as run
from ..cli_train import watch_arguments as arguments

__all__ = ["arguments", "run"]
