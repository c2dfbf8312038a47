"""Imports inside hadamem point one way: a table of who may import whom, and no cycles. Imports are read from the source with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "hadamem"

# A room is a folder or a file directly under hadamem. Leaves import only leaves; every room may import leaves.
LEAVES = {"_lazy", "_version", "cuda_graphs", "devices", "drawing", "files", "lookup", "names", "random", "ranges", "states", "statistics"}
MAY_IMPORT = {   # room: the other rooms that it may import; "*" stands for all
    "kernels": set(),
    "memory": {"kernels"},
    "envs": set(),
    "agents": {"memory", "kernels"},
    "runs": {"agents", "memory"},
    "training": {"agents", "memory", "envs", "runs"},
    "view": {"runs", "envs", "agents", "training", "memory", "reports"},
    "api": {"agents", "envs", "runs", "training", "view"},
    "reports": set(),
    "experiments": {"reports", "training", "runs", "agents", "memory", "envs", "kernels", "diagnostics", "bench"},
    "integrations": {"memory"},
    "reference": {"memory", "kernels"},
    "diagnostics": {"memory", "kernels"},
    "bench": {"kernels", "memory", "envs", "agents"},
    "testing": {"kernels", "memory", "reference", "envs"},
    "cli": {"*"},
    "__main__": {"cli"},
    "__init__": {"*"},
}
ENVS_MAY_IMPORT = {"names", "lookup", "random"}      # the only leaves for envs, which stands alone


class Import(NamedTuple):
    source: str       # module that imports, without "hadamem.": "memory.shm", "kernels" for kernels/__init__.py
    target: str       # module that it imports
    at_top: bool      # not inside a function
    line: int

    def __str__(self) -> str:
        return f"{self.source} imports {self.target} (line {self.line})"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room(module: str) -> str:
    return module.partition(".")[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST, at_top: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All import statements below a node, and whether they run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_top
        elif is_type_checking(child):
            for other in child.orelse:
                yield from statements(ast.Module([other], []), at_top)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from statements(child, at_top and not inside)


def targets(statement: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> list[str]:
    """The modules of hadamem that a statement imports, without "hadamem."."""
    if isinstance(statement, ast.Import):
        return [resolve(alias.name) for alias in statement.names if room(alias.name) == "hadamem"]
    if statement.level:
        package = ["hadamem"] if module == "__init__" else ["hadamem", *module.split(".")]
        keep = len(package) - statement.level + is_package
        base = ".".join([*package[:keep], *([statement.module] if statement.module else [])])
    else:
        base = statement.module or ""
    return [resolve(f"{base}.{alias.name}") for alias in statement.names] if room(base) == "hadamem" else []


def resolve(name: str) -> str:
    """"hadamem.memory.shm.SHM" -> "memory.shm": the longest part that is a module."""
    parts = name.removeprefix("hadamem").strip(".").split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in MODULES:
            return ".".join(parts[:end])
    return "__init__"


def read_imports() -> list[Import]:
    found = []
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        for statement, at_top in statements(ast.parse(path.read_text(encoding="utf-8"))):
            for target in targets(statement, module, is_package):
                if target != module:
                    found.append(Import(module, target, at_top, statement.lineno))
    return found


IMPORTS = read_imports()


def allowed(source: str, target: str) -> bool:
    """Whether a room may import another one."""
    if source == target:
        return True
    if source in LEAVES:
        return target in LEAVES
    if source == "envs":
        return target in ENVS_MAY_IMPORT
    return target in LEAVES or not {target, "*"}.isdisjoint(MAY_IMPORT[source])


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """A path that ends where it starts; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node):], node]
        if node in done:
            return []
        for other in sorted(edges.get(node, ())):
            cycle = visit(other, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return []

    return next((cycle for cycle in (visit(node, []) for node in sorted(edges)) if cycle), [])


def graph(pairs: Iterator[tuple[str, str]]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for source, target in pairs:
        if source != target:
            edges.setdefault(source, set()).add(target)
    return edges


def test_every_room_is_in_the_table():
    unknown = {room(module) for module in MODULES} - set(MAY_IMPORT) - LEAVES
    assert not unknown, f"add {', '.join(sorted(unknown))} to MAY_IMPORT or LEAVES"


@pytest.mark.parametrize("name", sorted({room(module) for module in MODULES} & {*MAY_IMPORT, *LEAVES}))
def test_a_room_imports_only_what_it_may(name):
    wrong = [str(i) for i in IMPORTS if room(i.source) == name and not allowed(name, room(i.target))]
    assert not wrong, "\n".join(["not allowed by MAY_IMPORT:", *wrong])


def test_no_cycles_between_rooms():
    """Imports inside functions count, too. hadamem/__init__.py imports everything and is left out."""
    edges = graph((room(i.source), room(i.target)) for i in IMPORTS if "__init__" not in (i.source, i.target))
    assert not find_cycle(edges), " -> ".join(find_cycle(edges))


def test_no_cycles_between_modules():
    """Imports that run when a module is imported."""
    edges = graph((i.source, i.target) for i in IMPORTS if i.at_top)
    assert not find_cycle(edges), " -> ".join(find_cycle(edges))


def test_the_table_has_no_cycles():
    edges = {name: rooms - {"*"} for name, rooms in MAY_IMPORT.items()}
    assert not find_cycle(edges), " -> ".join(find_cycle(edges))


# --- the reader itself


@pytest.mark.parametrize(("code", "module", "is_package", "want"), [
    ("from . import base", "memory.shm", False, ["memory.base"]),
    ("from .base import Memory", "memory.shm", False, ["memory.base"]),
    ("from .. import states, kernels", "memory.shm", False, ["states", "kernels"]),
    ("from ..kernels import shm", "memory.shm", False, ["kernels.shm"]),
    ("from .base import Memory", "memory", True, ["memory.base"]),
    ("from .. import lookup", "memory", True, ["lookup"]),
    ("from . import kernels", "__init__", True, ["kernels"]),
    ("from .memory import SHM", "__init__", True, ["memory"]),
    ("from .cli import main", "__main__", False, ["cli"]),
    ("import hadamem.memory.shm, torch", "memory.base", False, ["memory.shm"]),
    ("from hadamem.memory import shm", "memory.base", False, ["memory.shm"]),
    ("from hadamem import SHM", "memory.base", False, ["__init__"]),
    ("from torch import nn", "memory.base", False, []),
    ("def f():\n    from .. import states", "memory.shm", False, ["states"]),
    ("if TYPE_CHECKING:\n    from .. import states\nelse:\n    from .. import random", "memory.shm", False, ["random"]),
])
def test_reading(code, module, is_package, want):
    found = [target for statement, _ in statements(ast.parse(code)) for target in targets(statement, module, is_package)]
    assert found == want


def test_reading_knows_what_runs_at_import():
    code = "import a\ntry:\n    import b\nexcept ImportError:\n    pass\nclass C:\n    import c\n    def f(self):\n        import d\n"
    assert [at_top for _, at_top in statements(ast.parse(code))] == [True, True, True, False]


def test_finding_a_cycle():
    assert find_cycle({"a": {"b"}, "b": {"c"}}) == []
    assert find_cycle({"x": {"a"}, "a": {"b"}, "b": {"c", "a"}}) == ["a", "b", "a"]
