"""Runs compared without a study."""

import json
import shutil

import pytest

import hadamem as hm
from hadamem.cli import main
from hadamem.experiments.comparing import compare_runs, label_runs
from hadamem.training.run import Run, open_run

from .test_running import SMALL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one setting, and one run with another discount."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in (("a", {"seed": 0}), ("b", {"seed": 1}), ("c", {"gamma": 0.5})):
        hm.train("TMaze", "none", total_steps=256, out=folder / name, quiet=True, **SMALL, **changes)
    return folder


def test_runs_that_differ_in_the_seed_alone_are_one_cell(runs):
    opened = [open_run(runs / name) for name in "abc"]
    assert [labels["memory"] for labels in label_runs(opened)] == ["none, ppo.gamma=0.99", "none, ppo.gamma=0.99", "none, ppo.gamma=0.5"]
    report = compare_runs(opened)
    scores = report.items[0]
    assert [cell.seeds for cell in scores.rows[0][1:]] == [2, 1]
    assert scores.rows[0][2].value == pytest.approx(opened[2].metrics[-1]["return"], rel=1e-4)
    assert {"Learning curves", "Comparison", "Time"} <= {section.title for section in report.sections}


def test_the_command_writes_a_page_and_prints_scores(runs, tmp_path, capsys):
    assert main(["compare", str(runs), "--out", str(tmp_path / "page"), "--score", "success"]) == 0
    assert "ppo.gamma=0.5" in capsys.readouterr().out
    assert "Comparison of runs" in (tmp_path / "page" / "index.html").read_text()
    assert main(["compare", str(runs / "a"), "--out", str(tmp_path / "page"), "--score", "eval_return"]) == 2
    assert "has no eval_return" in capsys.readouterr().err


def test_runs_of_other_lengths_are_other_cells_and_a_run_counts_once(runs, tmp_path, capsys):
    hm.train("TMaze", "none", total_steps=384, seed=2, out=tmp_path / "longer", quiet=True, **SMALL)
    labels = label_runs([open_run(runs / "a"), open_run(tmp_path / "longer")])
    assert [label["memory"] for label in labels] == ["none, total_steps=256", "none, total_steps=384"]
    assert main(["compare", str(runs / "a"), str(runs / "a"), "--out", str(tmp_path / "page")]) == 0
    assert "±" not in capsys.readouterr().out
    shutil.copytree(runs / "a", tmp_path / "copy")
    assert main(["compare", str(runs / "a"), str(tmp_path / "copy"), "--out", str(tmp_path / "page")]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_a_run_without_episodes_cannot_be_compared(runs):
    run = open_run(runs / "a")
    with pytest.raises(ValueError, match="no finished episode"):
        compare_runs([Run(run.config)])


def test_a_run_without_a_score_is_named(runs, tmp_path, capsys):
    shutil.copytree(runs / "a", tmp_path / "bad")
    rows = [json.loads(line) for line in (tmp_path / "bad" / "metrics.jsonl").read_text().splitlines()]
    del rows[-1]["return"], rows[-1]["success"]      # a return that was not finite
    (tmp_path / "bad" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(tmp_path / "bad"), "--out", str(tmp_path / "page")]) == 2
    assert "bad has no score, since one of its returns was not finite" in capsys.readouterr().err
