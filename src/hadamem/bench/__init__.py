"""Timings, the `hadamem bench` command: measures on this machine, writes tables, JSON and plots."""
