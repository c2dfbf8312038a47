"""One file per study of the paper: `make(protocol, quick, budget)` returns it as data, and its measure functions stand beside it."""
