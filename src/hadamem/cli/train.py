"""`hadamem train`."""

from ..cli_train import train as run
from ..cli_train import train_arguments as arguments

__all__ = ["arguments", "run"]
