"""`hadamem eval`."""

from ..cli_train import eval_arguments as arguments
from ..cli_train import evaluate as run

__all__ = ["arguments", "run"]
