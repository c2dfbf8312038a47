"""Names that are imported when they are first used."""

import importlib
import sys

import pytest

import hadamem as hm
from hadamem import _lazy

FOLDER = {
    "__init__.py": "from hadamem import _lazy\n__getattr__, __dir__ = _lazy.attach(__name__, {'deep': 'deep', 'answer': 'deep.inside', "
                   "'rare': 'deep'}, needs={'rare': ('json', 'no_such_package')}, extra='rare')\nhere = 1\n",
    "deep/__init__.py": "rare = 3\n",
    "deep/inside.py": "answer = 42\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in FOLDER.items():
        path = tmp_path / "lazy_example" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_example")
    for name in [name for name in sys.modules if name.split(".")[0] == "lazy_example"]:
        del sys.modules[name]


def test_nothing_is_imported_before_it_is_used(package):
    assert "lazy_example.deep" not in sys.modules
    assert {"answer", "deep", "here", "rare"} <= set(dir(package))
    assert "lazy_example.deep" not in sys.modules
    assert package.answer == 42
    assert package.deep is sys.modules["lazy_example.deep"]


def test_what_is_missing_is_named(package):
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'anser'"):
        package.anser  # noqa: B018
    with pytest.raises(ImportError, match=r"lazy_example.rare needs no_such_package: pip install 'hadamem\[rare\]'"):
        package.rare  # noqa: B018


@pytest.mark.parametrize("module", [hm, hm.training])
def test_every_public_name_is_found_and_listed(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_one_machine():
    assert hm.__getattr__.__module__ == hm.training.__getattr__.__module__ == _lazy.__name__
