"""`python -m hadamem` is the `hadamem` command."""

import sys

from .cli import main

sys.exit(main())
