"""Names of a package that are imported when they are first used, so that importing the package stays fast.

    __getattr__, __dir__ = _lazy.attach(__name__, {"train": "api", "bench": "bench"})

Beside it, an `if TYPE_CHECKING:` block imports the same names, for type checkers and editors.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(package: str, homes: Mapping[str, str], needs: Mapping[str, Sequence[str]] | None = None,
           extra: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    homes: for each name the module below the package that defines it, or for a module its own name.
    needs: packages that a name cannot do without; where one is missing, an ImportError names it and the `extra` that installs it.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for needed in (needs or {}).get(name, ()):
            if importlib.util.find_spec(needed) is None:
                raise ImportError(f"{package}.{name} needs {needed}: pip install 'hadamem[{extra}]'", name=needed)
        module = importlib.import_module(f"{package}.{homes[name]}")
        return module if homes[name] == name else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__
