"""Set-up for all tests: Triton's interpreter without a GPU, one thread per process, test order, and the recorded files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")   # before numpy and torch are imported; child processes inherit it

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")   # before triton is imported: kernels.backends() then lists it

import pytest

torch.set_num_threads(1)   # tensors are tiny here, and parallel workers share the cores

ROOT = Path(__file__).resolve().parent.parent

# A GPU machine may have only torch and Triton. The kernel tests still run there.
BARE = importlib.util.find_spec("gymnasium") is None
collect_ignore = ["envs", "agents", "training", "contract/test_envs.py"] if BARE else []


def pytest_report_header() -> str | None:
    return "gymnasium is not installed: tests of environments, agents and training are not collected" if BARE else None


def golden_folder(kind: str) -> Path:
    """The recorded files of a kind, "memory" or "envs": in tests/data/golden, or in $HADAMEM_GOLDEN if that is set."""
    folder = Path(os.environ.get("HADAMEM_GOLDEN") or ROOT / "tests" / "data" / "golden") / kind
    if not any(folder.glob("*.npz")):
        raise pytest.UsageError(f"{folder} has no .npz files; unset HADAMEM_GOLDEN, or set it to a folder with memory/ and envs/")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:      # started in the background: child processes would ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        from .interpreter import quicken

        quicken()
    interpreter = "triton.runtime.interpreter"   # numpy warns about inf and nan, which some tests feed to kernels on purpose
    for noise in (f"DeprecationWarning:{interpreter}", f"RuntimeWarning:{interpreter}", "RuntimeWarning:numpy"):
        config.addinivalue_line("filterwarnings", f"ignore::{noise}")


# With --dist worksteal each of two workers starts with half of the tests. The first compiles the kernels, which takes a minute without
# a cache; the second reaches tests that use them later. Long tests run before the many short ones, so that both finish together.
ORDER = ["kernels", "memory", "envs", "contract", "training", "agents"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = [*ORDER, Path(__file__).parent.name]
    items.sort(key=lambda item: folders.index(item.path.parent.name) if item.path.parent.name in folders else len(folders))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_names() -> Iterator[None]:
    """Names that a test registers are gone afterwards: snippets of the docs leave theirs, and other tests count what there is."""
    places = {"hadamem.memory": "MEMORIES", **({} if BARE else {"hadamem.agents": "AGENTS", "hadamem.envs.registry": "TASKS"})}
    tables = [getattr(importlib.import_module(module), name) for module, name in places.items()]
    before = [dict(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)


@pytest.fixture(autouse=True)
def same_folder() -> Iterator[None]:
    """A test that leaves another current folder behind would break others, which differ from run to run."""
    before = os.getcwd()
    yield
    after = os.getcwd()
    os.chdir(before)
    assert after == before, "the test changed the current folder"
