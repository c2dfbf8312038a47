"""The pages that are made from the code have every public name, command, option and setting; the site builds without warnings."""

import argparse
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import hadamem as hm
from hadamem.cli import COMMANDS
from hadamem.cli.options import setting_flags
from hadamem.runs.config import settings_table
from hadamem.runs.presets import PRESETS
from website import api_pages, cli_pages, settings_pages, stage

ROOT = Path(__file__).parents[2]


def test_the_api_has_every_public_name():
    pages = api_pages.make()
    for name in hm.__all__:
        if isinstance(getattr(hm, name), types.ModuleType):
            page, module = f"hadamem.{name}", getattr(hm, name)
            assert f"automodule:: {page}\n" in pages[f"api/{page}.md"]
            for inner in getattr(module, "__all__", ()):
                if not isinstance(getattr(module, inner), types.ModuleType):
                    assert re.search(rf"(auto\w+::|py:data}}) {page}\.{inner}\n", pages[f"api/{page}.md"]), f"{page}.{inner}"
        elif name != "__version__":
            assert re.search(rf"auto\w+:: hadamem\.{name}\n", pages["api/hadamem.md"]), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_has_every_option(name):
    page = cli_pages.make()[f"cli/{name.replace(' ', '-')}.md"]
    for action in cli_pages.find_parser(name.split())._actions:
        if action.help != argparse.SUPPRESS and action.dest != "help":
            for flag in action.option_strings:
                assert re.search(rf"{{option}} .*{re.escape(flag)}\b", page), flag


def test_train_shows_the_settings_of_every_agent():
    page = cli_pages.make()["cli/train.md"]
    for agent in hm.agents.AGENTS:
        table = settings_table(agent)
        for setting in table.settings.values():
            flag = next(flag for flag in [*setting_flags(setting, table), ""] if "." not in flag)
            assert re.search(rf"{{option}} .*{flag}\b", page), setting.name


def test_settings_and_presets_are_complete():
    pages = settings_pages.make()
    for agent in hm.agents.AGENTS:
        for setting in settings_table(agent).settings.values():
            assert f"| `{setting.field}` |" in pages["settings.md"], setting.name
    for name in PRESETS:
        assert f"\n## {name}\n" in pages["presets.md"]


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "website" / "index.md").read_text()
    for page in stage.pages():
        name = stage.place(page).removesuffix(".md")
        assert name == "index" or re.search(rf"^(.* <)?{name}>?$", index, flags=re.MULTILINE), f"add {name} to docs/website/index.md"


def test_staging_writes_only_what_changed(tmp_path):
    fresh, out = tmp_path / "fresh", tmp_path / "out"
    stage.write(fresh / "a.md", "a")
    stage.write(fresh / "b" / "c.md", "c")
    stage.write(out / "a.md", "a")
    stage.write(out / "gone.md", "x")
    before = (out / "a.md").stat().st_mtime_ns
    stage.synchronise(fresh, out)
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*.md")) == ["a.md", "b/c.md"]
    assert (out / "a.md").stat().st_mtime_ns == before


def test_docstrings_become_markdown():
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'hadamem[docs]'")
    from website.markdown_docstrings import fields_of, original_lines, to_markdown

    lines = ["Does it.", "", "Text.", "a: the first. b [B, T]: the second,", "    which goes on.", "Note: no argument.", "", "    code(a)"]
    assert to_markdown(lines, {"a", "b"}) == ["Does it.", "", "Text.", "", "- **a**: the first.", "- **b** [B, T]: the second,",
                                              "  which goes on.", "  Note: no argument.", "", "    code(a)"]
    assert fields_of(hm.memory.shm.SHMState) == ["- **M** (`Tensor`): [B, V, K], float32 or wider", "- **clock** (`Tensor`): [B] int64"]
    assert fields_of(hm.training.Evaluation) == []      # its fields have no comments, and their types are in the signature
    assert any(line.endswith('The env\'s `info["terminal"]`, else `terminated`') for line in fields_of(hm.agents.Rollout))
    module = types.SimpleNamespace(__doc__="First.\n\n    code\n")
    assert original_lines(module, ["First.", "", "code", ""]) == ["First.", "", "    code"]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason="needs the packages of the docs: pip install 'hadamem[docs]'")
    for command in (["docs/website/stage.py", str(tmp_path / "source")],
                    ["-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/website", str(tmp_path / "source"), str(tmp_path / "html")],
                    ["docs/website/check_links.py", str(tmp_path / "html")]):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
