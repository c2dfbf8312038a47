"""Errors that the command line prints as one sentence."""


class UsageError(Exception):
    """Bad input: exit code 2."""


class WorkError(Exception):
    """The command started and failed: exit code 1."""
