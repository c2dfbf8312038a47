"""What all tests share: Triton's interpreter where there is no GPU, one thread here and in child processes, and the golden files."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")   # before numpy and torch are imported; child processes inherit it

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")   # before triton is imported: kernels.backends() then lists it

import pytest

torch.set_num_threads(1)   # tensors are tiny here, and parallel workers share the cores

ROOT = Path(__file__).resolve().parent.parent

# A GPU machine may have torch and Triton and nothing more: the kernels' tests still run there.
BARE = importlib.util.find_spec("gymnasium") is None
collect_ignore = ["envs", "agents", "training", "contract/test_envs.py"] if BARE else []


def pytest_report_header() -> str | None:
    return "gymnasium is not installed: the tests of environments, agents and training are left out" if BARE else None


def golden_folder() -> Path | None:
    """$HADAMEM_GOLDEN, or the shared folder next to the repository; None if there is none."""
    named = os.environ.get("HADAMEM_GOLDEN")
    folder = Path(named) if named else ROOT.parent / "shared" / "golden"
    folder = folder / "memory" if (folder / "memory").is_dir() else folder
    return folder if folder.is_dir() and any(folder.glob("*.npz")) else None


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        from .interpreter import quicken

        quicken()
    interpreter = "triton.runtime.interpreter"   # runs on numpy, which warns where kernels meet inf and nan on purpose
    for noise in (f"DeprecationWarning:{interpreter}", f"RuntimeWarning:{interpreter}", "RuntimeWarning:numpy"):
        config.addinivalue_line("filterwarnings", f"ignore::{noise}")


# Two workers start with a half each and then take from one another. The first compiles the kernels, for a minute where there is no cache
# yet; the second comes to tests that use them when they are compiled. Long tests come before the many short ones at the end.
ORDER = ["kernels", "memory", "envs", "contract", "training", "agents"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = [*ORDER, Path(__file__).parent.name]
    items.sort(key=lambda item: folders.index(item.path.parent.name) if item.path.parent.name in folders else len(folders))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def golden() -> Path:
    folder = golden_folder()
    if folder is None:
        pytest.skip("no golden files: set HADAMEM_GOLDEN to their folder")
    return folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
