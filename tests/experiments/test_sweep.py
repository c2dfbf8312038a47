"""The definition of a sweep: what is accepted, and one sentence about what is not."""

import json
import re
from pathlib import Path

import pytest

from hadamem.cli import main
from hadamem.experiments.sweep import KEYS, from_plain, make_sweep, read_sweep

GOOD = """
env: TMaze
memory: gru
steps: 1e4
search:
  learning_rate: {low: 1e-5, high: 1e-2, log: true}
  num_epochs: {low: 2, high: 16}
  ent_coef: {choices: [0, 0.001, 1e-2]}
  network.memory_size: {choices: [32, 64, 128]}
"""


def test_a_file_is_read(tmp_path):
    file = tmp_path / "my sweep.yaml"
    file.write_text(GOOD)
    sweep = read_sweep(file)
    assert (sweep.name, sweep.trials, sweep.seeds, sweep.warmup_steps) == ("my-sweep", 30, (0,), 2500)
    rate, epochs = sweep.search["ppo.learning_rate"], sweep.search["ppo.num_epochs"]
    assert (rate.low, rate.high, rate.log, rate.whole) == (1e-5, 1e-2, True, False)
    assert epochs.whole
    assert not epochs.log
    assert sweep.search["ppo.ent_coef"].choices == (0.0, 0.001, 0.01)
    assert sweep.config({"ppo.num_epochs": 3}, seed=5).algorithm.num_epochs == 3
    assert from_plain(json.loads(json.dumps(sweep.to_plain()))) == sweep


def test_the_files_of_the_page_are_sweeps(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "maze.yaml").write_text(block)
    assert len(read_sweep(tmp_path / "maze.yaml").search) == 4
    for key in KEYS:
        assert f"`{key}`" in page


def test_lists_can_be_chosen():
    sweep = make_sweep("a", {"hidden_sizes": {"choices": [[64, 64], [256]]}}, env="wind", agent="sac")
    (found,) = sweep.search.values()
    assert found.keys == ["[64, 64]", "[256]"]
    assert found.choices == ((64, 64), (256,))


@pytest.mark.parametrize(("change", "words"), [
    (("env: TMaze", "enw: TMaze"), "unknown key 'enw'; did you mean 'env'?"),
    (("env: TMaze", ""), "env is missing: what to train on"),
    (("env: TMaze", "env: TMaise"), "TMaise"),
    (("num_epochs", "n_epochs"), "search: n_epochs: unknown setting 'n_epochs'; did you mean 'num_epochs'?"),
    (("low: 2, high: 16", "low: 16, high: 2"), "search: num_epochs: low must be below high, got low 16 and high 2; swap them"),
    (("low: 2, high: 16", "low: 2, high: 2"), "what is fixed belongs in settings"),
    (("low: 2, high: 16", "low: 2.5, high: 16"), "ppo.num_epochs must be a whole number"),
    (("low: 2, high: 16", "low: 0, high: 16"), "num_epochs must be at least 1"),
    (("low: 2, high: 16", "low: 0, high: 16, log: true"), "low must be above 0 with log: true, got 0; raise it, or leave out log"),
    (("low: 2, high: 16", "low: 2"), "add high"),
    (("low: 2, high: 16", "from: 2, to: 16"), "unknown key 'from'"),
    (("{low: 2, high: 16}", "4"), "a range is {low: X, high: Y} or {choices: [X, Y]}, got 4"),
    (("low: 2, high: 16", "low: 2, high: 16, choices: [1, 2]"), "not both"),
    (("[32, 64, 128]", "[32]"), "choices must be a list of at least two values"),
    (("[32, 64, 128]", "[32, 64, 32]"), "choices has a value twice"),
    (("[32, 64, 128]", "[32, big]"), "network.memory_size must be a whole number or None, got 'big'"),
    (("memory: gru", "settings: {num_epochs: 4}"), "search: num_epochs: it is set twice; leave one out"),
    (("num_epochs:", "total_steps:"), "it cannot be searched: longer runs are better anyway; use the key steps"),
    (("memory: gru", "direction: up"), "direction must be one of maximize, minimize, got 'up'"),
    (("memory: gru", "trials: 0"), "trials must be a whole number of at least 1, got 0"),
    (("memory: gru", "seeds: 0"), "seeds must be how many (at least 1) or a list of integers, got 0"),
    (("memory: gru", "score: eval_return"), "eval_every is 0; add eval_every to settings"),
    (("memory: gru", "memory: gruu"), "gruu"),
])
def test_bad_files_are_refused(tmp_path, monkeypatch, capsys, change, words):
    monkeypatch.chdir(tmp_path)
    assert change[0] in GOOD
    (tmp_path / "s.yaml").write_text(GOOD.replace(*change))
    assert main(["sweep", "s.yaml"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_bad_arguments_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(GOOD)
    for argv, words in ((["nothing.yaml"], "there is no file nothing.yaml"), (["s.yaml", "--trials", "0"], "--trials must be at least 1"),
                        (["s.yaml", "--jobs", "0"], "jobs must be at least 1"), (["s.yaml", "x"], "unexpected argument 'x'"),
                        (["status"], "status needs a sweep"), (["status", "x"], "there is no sweep in x"),
                        (["s.yaml", "--out", "s.yaml"], "s.yaml is not a folder")):
        assert main(["sweep", *argv]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert main(["sweep", "s.yaml", "--out", "other"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "s.yaml"]
