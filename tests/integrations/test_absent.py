"""Without its library, an integration says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(("module", "library"), [("sb3", "sb3_contrib"), ("torchrl", "tensordict"), ("rllib", "ray.rllib")])
def test_a_missing_library_is_named(module, library, monkeypatch):
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)      # as if it were not installed
    monkeypatch.delitem(sys.modules, f"hadamem.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"hadamem.integrations.{module} needs .*pip install 'hadamem\[{module}\]'"):
        importlib.import_module(f"hadamem.integrations.{module}")
