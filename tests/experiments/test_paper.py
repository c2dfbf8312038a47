"""`hadamem paper NAME --quick`: every study of the paper, end to end, with a report that misses nothing."""

import json
from pathlib import Path

import pytest

from hadamem.cli import main
from hadamem.experiments.catalog import PAPER

FAST = ("memory-elements",)      # the others are slow: each starts several processes


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PAPER])
def test_quick(name, tmp_path, capsys):
    assert main(["paper", name, "--quick", "--plain", "--jobs", "2", "--out", str(tmp_path / "study")]) == 0, capsys.readouterr()
    report = json.loads((tmp_path / "study" / "report" / "report.json").read_text())
    titles = [section["title"] for section in report["sections"]]
    assert "What is missing" not in titles
    assert "Where paper and published code differ" in titles
    items = [item for section in report["sections"] for item in section["items"]]
    assert len(items) >= 2
    for item in items:
        assert any((tmp_path / "study" / "report").glob(f"*/{item['name']}.*")), item["name"]
    assert main(["paper", name, "--quick", "--plain", "--out", str(tmp_path / "study"), "--no-report"]) == 0      # nothing is repeated


def test_chosen_variants(tmp_path, capsys):
    """Records of this repository are taken over: nothing is trained."""
    records, out = Path(__file__).parents[2] / "docs" / "results", tmp_path / "study"
    chosen = ["popgym-best", "actor-init-0.01"]
    assert main(["paper", "popgym-ablation", "--variants", *chosen, "--tasks", "BattleshipMedium", "--records", str(records), "--out",
                 str(out), "--plain", "--no-report"]) == 0, capsys.readouterr()
    assert sorted(path.stem for path in (out / "records").iterdir()) == [
        "popgym-best-BattleshipMedium-shm-0", "popgym-best-actor-init-0.01-BattleshipMedium-shm-0"]
    assert main(["paper", "popgym-table", "--variants", *chosen]) == 2
    assert "study 'popgym-table' has no option 'variants'" in capsys.readouterr().err
