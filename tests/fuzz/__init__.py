"""Random inputs for kernels, memories, settings and the command line: `make fuzz`, or `python -m tests.fuzz --help`.

An input is a number. With the seed it fixes the kind of the input and everything random about it, so that `--seed S --only N` runs it again.
"""
