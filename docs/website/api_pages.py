"""The API reference: a page per public module, with every name of its `__all__`; autodoc fills in the docstrings.

A module without `__all__` shows the functions and classes that it defines. New names appear by themselves.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Mapping

TITLES = {   # what each module is for; the order of the pages
    "hadamem": "memories, and training in one call",
    "hadamem.states": "states of memories: rows, detaching, float vectors",
    "hadamem.envs": "tasks, wrappers, Gymnasium envs",
    "hadamem.agents": "algorithms, and what your own must provide",
    "hadamem.training": "runs, policies, evaluation",
    "hadamem.runs": "settings and presets",
    "hadamem.view": "curves, films, recordings",
    "hadamem.experiments": "studies, sweeps, comparisons",
    "hadamem.statistics": "scores, intervals, comparisons of runs",
    "hadamem.reports": "pages, tables and figures from results",
    "hadamem.integrations": "the memories in other libraries",
    "hadamem.testing": "checks for memories of your own",
    "hadamem.diagnostics": "stability of Hadamard memories",
    "hadamem.reference": "published weights",
    "hadamem.kernels": "the ops below the memories",
    "hadamem.random": "random numbers from counters",
    "hadamem.bench": "speed",
}
INSIDE = {   # modules that the docs import names from, shown on the page of their package
    "hadamem": ("hadamem.memory",),
    "hadamem.training": ("hadamem.training.evaluate",),
    "hadamem.view": ("hadamem.view.curves", "hadamem.view.watch", "hadamem.view.record"),
    "hadamem.reports": ("hadamem.reports.content", "hadamem.reports.files"),
}


def make() -> dict[str, str]:
    """The pages, by their names."""
    import hadamem

    modules = [name for name in hadamem.__all__ if isinstance(getattr(hadamem, name), types.ModuleType)]
    names = [*TITLES, *(f"hadamem.{name}" for name in modules if f"hadamem.{name}" not in TITLES)]
    rows = [f"| [{name}]({name}.md) | {TITLES.get(name, _first_line(importlib.import_module(name)))} |" for name in names]
    index = ["# Python API", "", "`import hadamem as hm` gives every module but the integrations.", "",
             "| module | what it has |", "|---|---|", *rows, "", "```{toctree}", ":hidden:", "", *names, "```", ""]
    return {"api/index.md": "\n".join(index), **{f"api/{name}.md": _page(name) for name in names}}


def _page(name: str) -> str:
    parts = [f"# {name}", _rst(f".. automodule:: {name}")]
    shown: list[object] = []
    for module in (name, *INSIDE.get(name, ())):
        if module != name:
            parts += [f"## {module}", *([] if module == "hadamem.memory" else [_rst(f".. automodule:: {module}")])]
        public = _public(module)
        new = {key: value for key, value in public.items() if not any(value is old for old in shown)}
        shown += [value for value in new.values() if callable(value)]
        entries = {key: value for key, value in new.items() if not isinstance(value, types.ModuleType)}
        if entries:
            parts += [_summary(module, entries), *(_entry(f"{module}.{key}", value) for key, value in entries.items())]
    if name == "hadamem.integrations":
        parts += _integrations()
    return "\n\n".join(parts) + "\n"


def _integrations() -> list[str]:
    """Sections of the integrations. They are not imported here, because their frameworks may be missing; autodoc stands in for those."""
    package = importlib.import_module("hadamem.integrations")
    names = [f"hadamem.integrations.{found.name}" for found in pkgutil.iter_modules(package.__path__) if not found.name.startswith("_")]
    return [part for name in names for part in (f"## {name}", _rst(f".. automodule:: {name}\n   :members:"))]


def _public(module: str) -> dict[str, object]:
    """The public names of a module and what they are."""
    found = importlib.import_module(module)
    if hasattr(found, "__all__"):
        return {name: getattr(found, name) for name in found.__all__ if not name.startswith("__")}
    return {name: value for name, value in vars(found).items()
            if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module}


def _summary(module: str, entries: Mapping[str, object]) -> str:
    rows = [f"| {{py:obj}}`{name} <{module}.{name}>` | {_first_line(value)} |" for name, value in entries.items()]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def _entry(name: str, value: object) -> str:
    if inspect.isclass(value):
        return _rst(f".. autoclass:: {name}\n   :members:")
    if callable(value):
        return _rst(f".. autofunction:: {name}")
    return f"```{{py:data}} {name}\n{_first_line(value)}\n```"


def _first_line(value: object) -> str:
    """The first line of a docstring; of a value, what it holds."""
    if isinstance(value, Mapping):
        return f"A table with the names {', '.join(f'`{key}`' for key in value)}."
    if isinstance(value, (str, tuple, list)):
        return f"`{value!r}`"
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("|", "\\|")


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"
