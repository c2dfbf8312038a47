"""Checks that others can run too: `check_memory` on any memory, `check_golden` on recorded vectors, `check_traces` on recorded episodes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformance import check_memory, check_spec
    from .golden import check_golden
    from .report import Report
    from .traces import check_traces

_HOME = {   # imported on first use
    "check_memory": "conformance", "check_spec": "conformance", "Report": "report", "check_golden": "golden",
    "check_traces": "traces",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = ["Report", "check_golden", "check_memory", "check_spec", "check_traces"]
