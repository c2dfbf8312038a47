"""The examples run, and what they show works from the command line, too."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hadamem as hm
from hadamem.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_it_runs(tmp_path):
    """examples/own_memory.py; own_agent.py is trained in tests/agents."""
    command = [sys.executable, str(EXAMPLES / "own_memory.py"), "--steps", "8000", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "22 checks passed" in done.stdout
    assert "return" in done.stdout.splitlines()[-1]
    again = [sys.executable, "-m", "hadamem", "eval", str(tmp_path / "run"), "--episodes", "5", "--trust"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_study_of_your_own(tmp_path):
    """docs/own-study.md: from YAML to report in less than five minutes on two cores, and memory is what makes the difference."""
    shutil.copytree(EXAMPLES / "own_study", tmp_path / "own_study")
    command = [sys.executable, "-m", "hadamem", "study", "lamp.yaml", "--plain", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path / "own_study")
    assert done.returncode == 0, done.stdout + done.stderr
    results = hm.experiments.read_results(tmp_path / "own_study" / "studies" / "lamp")
    scores = {memory: results.scores(records) for (memory,), records in results.cells("memory").items()}
    assert min(scores["shm"]) > 0.9
    assert max(scores["none"]) < 0.3
    assert "A lamp ten steps ago" in (tmp_path / "own_study" / "studies" / "lamp" / "report" / "index.html").read_text()


def test_the_study_in_the_docs_is_the_example():
    shown = (EXAMPLES.parent / "docs" / "own-study.md").read_text()
    assert (EXAMPLES / "own_study" / "lamp.yaml").read_text() in shown


@pytest.mark.parametrize("name", ["memory", "agent"])
def test_the_classes_in_the_tutorials_are_the_examples(name):
    """docs/own-memory.md and docs/own-agent.md show the classes of examples/own_memory.py and own_agent.py, part by part."""
    page = (EXAMPLES.parent / "docs" / f"own-{name}.md").read_text()
    example = re.sub(r"\n+", "\n", (EXAMPLES / f"own_{name}.py").read_text())
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    shown = [part for block in blocks for part in re.split(r"^(?=@dataclass|class )", block, flags=re.MULTILINE) if "class " in part]
    assert len(shown) >= 2
    for part in shown:
        assert re.sub(r"\n+", "\n", part) in example


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the example in it, as the current one."""
    shutil.copy(EXAMPLES / "own_memory.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield tmp_path
    sys.modules.pop("own_memory", None)
    hm.memory.MEMORIES.pop("leaky", None)


def test_by_its_class_it_can_be_loaded_again(folder, capsys):
    small = ["--num-envs", "16", "--num-steps", "12", "--num-epochs", "1", "--log", "none", "--device", "cpu", "--plain"]
    assert main(["train", "--env", "TMaze", "--memory", "own_memory:Leaky", "--steps", "192", *small]) == 0
    run = folder / "runs" / "TMaze-Leaky-0"
    assert yaml.safe_load((run / "config.yaml").read_text())["network"]["memory"] == "own_memory:Leaky"
    assert main(["train", "--resume", "--out", str(run), "--steps", "384", "--plain"]) == 0
    assert main(["eval", str(run), "--episodes", "10"]) == 0
    assert type(hm.load_policy(run).network.trunk.memory).__name__ == "Leaky"
    capsys.readouterr()
    (folder / "own_memory.py").unlink()
    del sys.modules["own_memory"]
    assert main(["eval", str(run), "--episodes", "10"]) == 2
    assert "cannot import module 'own_memory' of 'own_memory:Leaky'" in capsys.readouterr().err


def test_by_a_name_it_must_be_registered_again(folder, capsys):
    sys.path.insert(0, str(folder))
    import own_memory

    hm.register_memory("leaky", own_memory.Leaky)
    hm.register_memory("leaky", importlib.reload(own_memory).Leaky)      # as a notebook does: the newer one counts
    assert hm.memory.MEMORIES["leaky"] is own_memory.Leaky
    hm.train("TMaze", memory="leaky", steps=192, num_envs=16, num_steps=12, num_epochs=1, log=(), out="run", quiet=True, device="cpu")
    assert hm.load_policy("run").network.config.memory == "leaky"
    del hm.memory.MEMORIES["leaky"]      # as in another process
    with pytest.raises(ValueError, match=r"unknown memory 'leaky'.*hm.register_memory"):
        hm.load_policy("run")
    assert main(["eval", "run"]) == 2
    assert "register_memory" in capsys.readouterr().err
