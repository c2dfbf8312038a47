"""Folders and files that cannot be written, or not any more: the error that says what was saved, and no other one in its place."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

import hadamem as hm
from hadamem.cli import main, report, study
from hadamem.envs import EnvError
from hadamem.runs import folder as folders
from hadamem.runs import metrics
from hadamem.training.loop import TrainingFailed

from .test_loop import KEYWORDS, settings, train

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
OPTIONS = ["--env", "popgym/RepeatPreviousEasy", "--plain", "--log", "none", "--steps", "384", "--memory", "gru", "--num-envs", "8",
           "--num-steps", "16", "--num-epochs", "1", "--num-minibatches", "2"]


def fill_disk(monkeypatch):
    """Rows of metrics find no room."""
    begin = metrics.MetricsLog.__init__

    def opened(self, path=None):
        begin(self, path)
        if path is not None:
            self._file.close()
            self._file = open(FULL, "w")      # noqa: SIM115

    monkeypatch.setattr(metrics.MetricsLog, "__init__", opened)


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@needs_full
@pytest.mark.parametrize("all_of_it", [False, True])
def test_no_room_for_a_row_of_metrics(tmp_path, monkeypatch, all_of_it):
    fill_disk(monkeypatch)
    if all_of_it:      # not even the status can be written
        monkeypatch.setattr(folders.RunFolder, "end", no_room)
    with pytest.raises(TrainingFailed, match=r"iteration 1 cannot be written to .*run: No space left on device"):
        train(settings(3, memory="gru"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == ("running" if all_of_it else "failed")


def test_no_room_for_the_status_of_a_finished_run(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.RunFolder, "end", no_room)
    with pytest.raises(TrainingFailed, match=r"cannot be written to .*run: No space .*; the checkpoint of iteration 1 is complete"):
        train(settings(1, memory="gru"), tmp_path / "run")


@pytest.mark.parametrize("error", [KeyboardInterrupt, EnvError])
def test_the_first_error_is_the_one_that_is_reported(tmp_path, monkeypatch, error):
    monkeypatch.setattr(folders.RunFolder, "end", no_room)

    def report(row):
        raise error("first")

    with pytest.raises(error, match="first"):
        train(settings(3, memory="gru"), tmp_path / "run", report=report)


@needs_full
def test_a_full_disk_is_one_sentence_on_the_command_line(tmp_path, monkeypatch, capsys):
    fill_disk(monkeypatch)
    assert main(["train", *OPTIONS, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hadamem: iteration 1 cannot be written to ")
    assert "No space left on device" in said
    assert "Traceback" not in said


def test_a_curve_that_cannot_be_written_is_no_failure(tmp_path, capsys):
    (tmp_path / "run" / "curve.png" / "in the way").mkdir(parents=True)
    assert main(["train", *OPTIONS, "--out", str(tmp_path / "run")]) == 0
    assert "not drawn, it cannot be written: Is a directory" in capsys.readouterr().out


LONG = "x" * 256
LONGS = [["train", "--env", "TMaze", "--name", LONG], ["train", "--env", "TMaze", "--out", LONG], ["train", "--env", LONG],
         ["train", "--env", "TMaze", "--config", LONG], ["train", "--resume", "--name", LONG], ["eval", LONG], ["watch", LONG],
         ["inspect", LONG], ["verify", LONG], ["compare", LONG], ["report", LONG], ["study", LONG], ["study", "status", LONG],
         ["sweep", LONG], ["play", LONG], ["bench", "memory", "--out", LONG]]


@pytest.mark.parametrize("argv", LONGS, ids=lambda argv: "-".join(word[:10] for word in argv))
def test_names_that_are_too_long(tmp_path, monkeypatch, capsys, argv):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("hadamem: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [LONG, "\x00", "\ud800"])
def test_a_folder_that_no_system_can_have(name):
    with pytest.raises(ValueError, match=r"(too long for a path|a character that no path may have).*; choose"):
        hm.train("TMaze", out=name, steps=128, quiet=True, **KEYWORDS)


def test_a_report_that_cannot_be_written_is_no_failure_of_its_study(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "make_report", no_room)
    assert study._report(tmp_path).startswith("not made: No space left on device; `hadamem report ")
