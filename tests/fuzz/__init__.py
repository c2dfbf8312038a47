"""Random inputs for kernels, memories, settings and the command line: `make fuzz`, or `python -m tests.fuzz --help`.

An input is a number. With the seed it fixes the kind of the input and all that is random about it: `--seed S --only N` runs it again.
"""
