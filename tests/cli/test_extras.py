"""Missing packages: one sentence with the command, the package and the extra that installs it."""

import sys

import pytest

from hadamem.cli import main
from hadamem.cli.extras import EXTRAS, install_hint, missing_package


@pytest.fixture
def without(monkeypatch):
    """Let packages look as if they were not installed."""
    return lambda *names: [monkeypatch.setitem(sys.modules, name, None) for name in names]


@pytest.mark.parametrize(("package", "extra", "want"), [
    ("gymnasium", "train", "`hadamem eval` needs gymnasium: pip install 'hadamem[train]'"),
    ("gymnasium", "", "`hadamem eval` needs gymnasium: pip install 'hadamem[envs]'"),
    ("yaml", "train", "`hadamem eval` needs PyYAML: pip install 'hadamem[train]'"),
    ("ray", "train", "`hadamem eval` needs ray: pip install 'hadamem[train,cluster]'"),
])
def test_the_sentence(without, package, extra, want):
    without(package)
    error = ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.inner")
    assert install_hint(error, "hadamem eval", extra) == want


def test_other_errors_are_not_about_extras():
    assert install_hint(ImportError("cannot import name 'x'", name="hadamem.agents"), "hadamem eval", "train") is None
    assert missing_package(ImportError("broken", name="numpy")) is None
    assert install_hint(ImportError("pages need jinja2: pip install 'hadamem[train]'"), "hadamem eval", "") == \
        "pages need jinja2: pip install 'hadamem[train]'"


def test_an_installed_package_is_not_missing():
    assert missing_package(ImportError("cannot import name 'gone' from 'torch'", name="torch")) is None
    assert missing_package(ImportError("cannot import name 'gone' from 'gymnasium'", name="gymnasium")) is None


def test_the_table_names_extras_of_the_package():
    from importlib.metadata import metadata

    assert set(EXTRAS.values()) <= set(metadata("hadamem").get_all("Provides-Extra") or ())


def test_a_command_that_needs_a_package_while_it_runs(without, capsys):
    without("hadamem.envs.play", "gymnasium")

    def fails(*args, **options):
        raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")

    sys.modules["hadamem.envs.play"] = type(sys)("play")
    sys.modules["hadamem.envs.play"].play = fails
    assert main(["play", "TMaze"]) == 2
    assert capsys.readouterr().err == "hadamem: `hadamem play` needs gymnasium: pip install 'hadamem[envs]'\n"
