"""What error messages share: suggestions for misspelt names, and values cut to a readable length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close_names(name: str, known: Iterable[str], n: int = 1) -> list[str]:
    """Up to `n` of the known names that are similar to `name`, ignoring case; the most similar first."""
    if not isinstance(name, str):
        return []
    by_lower = {other.lower(): other for other in known}
    return [by_lower[near] for near in difflib.get_close_matches(name.lower(), by_lower, n=n)]


def did_you_mean(name: str, known: Iterable[str], n: int = 1) -> str:
    """A question to append to an error, with a leading space: " did you mean 'x'?". Empty if no known name is similar."""
    near = close_names(name, known, n)
    return f" did you mean {' or '.join(map(repr, near))}?" if near else ""


def shorten(value: object, length: int = 80) -> str:
    """A value for an error message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:      # Python refuses to write an int of thousands of digits
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= length else f"{text[:length]}..."
