"""Studies: launched, resumed, retried, reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadamem.cli import main
from hadamem.experiments.folder import StudyFolder
from hadamem.experiments.local import group
from hadamem.experiments.own import grid
from hadamem.experiments.records import make_record, read_record
from hadamem.experiments.results import read_results
from hadamem.experiments.running import run_study
from hadamem.experiments.status import TaskStatus, seconds_left, status_of
from hadamem.experiments.study import MeasureTask, Study
from hadamem.training.processes import end_with_parent
from hadamem.training.run import open_run

SMALL = {"device": "cpu", "num_envs": 8, "num_steps": 16, "num_epochs": 1, "memory_size": 8, "memory_output_size": 8, "log": ()}


def small(**changes):
    return grid(**{"name": "small", "envs": ["TMaze"], "memories": ["gru", "none"], "seeds": 1, "steps": 256, "settings": SMALL, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished study."""
    folder = tmp_path_factory.mktemp("studies") / "small"
    seen = []
    assert run_study(small(), folder, jobs=2, watch=lambda tasks, at_once: seen.append([task.state for task in tasks]))
    assert seen[0] == ["waiting", "waiting"]
    assert seen[-1] == ["finished", "finished"]
    return folder


def test_results_hold_scores_and_curves(finished):
    results = read_results(StudyFolder(finished))
    assert results.complete
    assert list(results.cells("task", "memory")) == [("TMaze", "gru"), ("TMaze", "none")]
    record, = results.cells("task", "memory")["TMaze", "gru"]
    assert record["steps"] == 256
    assert record["finished"]
    rows = [json.loads(line) for line in (finished / "runs" / "TMaze-gru-0" / "metrics.jsonl").read_text().splitlines()]
    assert record["curve"]["steps"] == [row["steps"] for row in rows]
    assert results.scores([record]) == [pytest.approx(rows[-1]["return"], rel=1e-4)]      # the last fifth of two iterations
    assert results.scores([record], "best") == [pytest.approx(max(row["return"] for row in rows), rel=1e-4)]


def test_finished_runs_are_never_repeated_and_seeds_can_be_added(finished, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(finished, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("r*/**/*") if path.is_file()}
    assert run_study(small(), folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert run_study(small(seeds=2, memories=["none"]), folder)
    assert len(StudyFolder(folder).tasks()) == 3
    assert {path: path.stat().st_mtime_ns for path in before if path.name != "study.json"} == before


def test_other_settings_and_other_studies_are_refused(finished, tmp_path):
    with pytest.raises(ValueError, match=r"holds 'TMaze-gru-0' with other settings \(total_steps: 256 there, 512 here\)"):
        run_study(small(steps=512), finished)
    with pytest.raises(ValueError, match="holds the study 'small', not 'other'"):
        run_study(small(name="other"), finished)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="exists and holds no study"):
        run_study(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_records_replace_runs(finished, tmp_path):
    """Runs with a finished record elsewhere are not trained; new records are written there, too."""
    shutil.copytree(finished / "records", tmp_path / "records")
    (tmp_path / "records" / "TMaze-none-0.json").unlink()
    assert run_study(small(), tmp_path / "study", records=tmp_path / "records")
    assert [path.name for path in (tmp_path / "study" / "runs").iterdir() if path.is_dir()] == ["TMaze-none-0"]
    assert (tmp_path / "records" / "TMaze-none-0.json").read_text() == (tmp_path / "study" / "records" / "TMaze-none-0.json").read_text()
    assert run_study(small(steps=384), tmp_path / "longer", records=tmp_path / "records", only=["*-none-*"])      # a record of fewer steps
    assert read_record(tmp_path / "records" / "TMaze-none-0.json")["steps"] == 384
    for changes, words in (({"settings": {**SMALL, "gamma": 0.5}}, r"of a run with other settings \(ppo.gamma: 0.99 there, 0.5 here"),
                           ({"steps": 128}, "total_steps: 256 there, 128 here")):
        with pytest.raises(ValueError, match=words):
            run_study(small(**changes), tmp_path / "other", records=tmp_path / "records")
        assert not (tmp_path / "other").exists()


def test_a_failing_run_is_retried_and_reported_and_stops_no_other(tmp_path):
    envs = [{"env": "TMaze", "label": "good"}, {"env": "tests.training.toys:Recall", "label": "bad", "env_options": {"fails_after": 10}}]
    study = small(envs=envs, memories=["none"], settings={**SMALL, "workers": 0})
    folder = StudyFolder(tmp_path)
    assert not run_study(study, tmp_path, jobs=2, retries=1)
    good, bad = (status_of(folder, task) for task in study.tasks)
    assert good.state == "finished"
    assert bad.state == "failed"
    assert "the cue fell off the table" in bad.error
    assert folder.failure(study.tasks[1])["starts"] == 2
    assert read_results(folder).missing["bad-none-0"].startswith("failed: ")


@pytest.mark.parametrize("sign", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_study_that_is_stopped_or_killed_resumes(tmp_path, sign):
    """No worker outlives the command; the next one continues from the checkpoints, and no iteration is lost or done twice."""
    (tmp_path / "mine.yaml").write_text("envs: [TMaze]\nmemories: [none]\nseeds: 1\nsteps: 7680\n"
                                        "settings: {device: cpu, num_envs: 8, num_steps: 16, num_epochs: 1, memory_size: 8, log: []}\n")
    command = [sys.executable, "-m", "hadamem", "study", "mine.yaml", "--plain", "--out", "study", "--no-report"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    rows = tmp_path / "study" / "runs" / "TMaze-none-0" / "metrics.jsonl"
    end = time.monotonic() + 180
    while not (rows.exists() and rows.read_text().count("\n") > 2):
        assert time.monotonic() < end
        time.sleep(0.1)
    worker, = (int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.send_signal(sign)
    process.communicate(timeout=60)
    assert process.returncode == (130 if sign == signal.SIGINT else -signal.SIGKILL)
    end = time.monotonic() + 180
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert rows.read_text().count("\n") < 60
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["iteration"] for line in rows.read_text().splitlines()] == list(range(1, 61))


def test_two_launchers_do_not_share_a_study(finished):
    with StudyFolder(finished).lock(), pytest.raises(ValueError, match="another process runs the study"), StudyFolder(finished).lock():
        pass


def test_bad_calls(finished, tmp_path):
    for options, words in (({"launcher": "slurm"}, "launcher must be one of local, ray"), ({"jobs": 0}, "jobs must be at least 1"),
                           ({"retries": -1}, "retries must be 0 or more"), ({"only": ["x*"]}, r"no task matches x\*")):
        with pytest.raises(ValueError, match=words):
            run_study(small(), finished, **options)
    for changes, words in (({"envs": ["NoSuchEnv-v3"]}, "NoSuchEnv-v3-gru-0 cannot be built"),
                           ({"memories": {"odd": {"memory": "gru", "memory_size": -3}}}, "TMaze-odd-0 cannot be built")):
        with pytest.raises(ValueError, match=words):
            run_study(small(**changes), tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_measurements_run_only_functions_of_the_studies(tmp_path):
    for function in ("os:system", "theory:np", "theory:_private", "runs:scale_steps.x", "nothing:here"):
        study = Study("odd", "Odd", [MeasureTask("m", function, {})])
        assert not run_study(study, tmp_path / function.replace(":", "-"), retries=0)
        assert status_of(StudyFolder(tmp_path / function.replace(":", "-")), study.tasks[0]).state == "failed"
        if function == "os:system":
            break      # the others are checked in this process, which is faster
    from hadamem.experiments.worker import find_measure
    for function in ("theory:np", "theory:_private", "nothing:here", "theory:", "../x:y"):
        with pytest.raises(ValueError, match=r"measurement|module:name"):
            find_measure(function)


def test_measurements_share_processes_and_one_that_fails_stops_no_other(tmp_path):
    tasks = [MeasureTask("bad", "memory_elements:nothing", {}), MeasureTask("worse", "theory:closed_form", {"steps": "x"}),
             MeasureTask("good", "theory:closed_form", {"steps": 3, "cells": 2, "seed": 0})]
    study = Study("three", "Three", tasks)
    assert list(map(len, group(tasks, 2).values())) == [2, 1]
    assert not run_study(study, tmp_path, jobs=1, retries=0)
    folder = StudyFolder(tmp_path)
    assert [folder.state(task) for task in tasks] == ["failed", "failed", "finished"]
    assert "nothing" in folder.failure(tasks[0])["error"]
    assert "closed_form" in folder.failure(tasks[1])["error"]
    assert len(list((tmp_path / "runs").glob("*.log"))) == 1
    assert read_results(folder).measures["good"]


def test_time_left():
    tasks = [TaskStatus("a", "finished", 100, 100, 50.0), TaskStatus("b", "running", 50, 100, 30.0), TaskStatus("c", "waiting", 0, 100),
             TaskStatus("d", "failed", 10, 100, 5.0)]
    assert seconds_left(tasks[2:3], 2) is None
    per_task = (50 + 60 + 50) / 3
    assert seconds_left(tasks, 1) == pytest.approx(30 + per_task)
    assert seconds_left(tasks, 4) == pytest.approx(per_task)


def test_status_and_report_of_a_half_finished_study(finished, tmp_path, capsys):
    folder = tmp_path / "small"
    shutil.copytree(finished, folder)
    (folder / "records" / "TMaze-none-0.json").unlink()
    shutil.rmtree(folder / "runs" / "TMaze-none-0")
    assert main(["study", "status", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "TMaze-none-0  waiting" in out
    assert "1 of 2 finished, 1 waiting" in out
    assert main(["report", str(folder), "--format", "html"]) == 0
    page = (folder / "report" / "index.html").read_text()
    assert "1 of 2 tasks have no result yet" in page
    assert "0 of 1 seeds" in page
    assert main(["report", str(folder), "--format", "json"]) == 0
    capsys.readouterr()
    assert main(["report", str(folder), "--out", str(folder / "study.json" / "x")]) == 2
    assert main(["report", str(folder), str(folder)]) == 2
    assert "is named twice" in capsys.readouterr().err
    (folder / "records" / "TMaze-gru-0.json").write_text('{"format": 2}')
    assert main(["report", str(folder)]) == 2
    assert "is damaged" in capsys.readouterr().err
    shutil.rmtree(folder / "records")
    assert main(["report", str(folder)]) == 2
    assert "has no results yet" in capsys.readouterr().err
    (folder / "study.json").write_text('{"format": 1}')
    assert main(["study", "status", str(folder)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_a_run_that_diverged_has_no_score(finished):
    run = open_run(finished / "runs" / "TMaze-gru-0")
    rows = [dict(row) for row in run.metrics]
    del rows[0]["return"]      # it was not finite
    record = make_record(SimpleNamespace(metrics=rows, config=run.config, status="finished", folder=run.folder))
    assert record["diverged"]
    assert "return" not in record["final"]


def test_a_worker_whose_parent_is_gone_before_it_starts(monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setenv("HADAMEM_PARENT", str(gone.pid))
    with pytest.raises(SystemExit) as stop:
        end_with_parent()
    assert stop.value.code == 130


def test_bad_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("envs: [TMaze]\nmemorys: [gru]\n")
    Path("list.yaml").write_text("- TMaze\n")
    Path("good.yaml").write_text("envs: [TMaze]\nmemories: [gru]\n")
    for words, message in ((["study", "no.yaml"], "there is no file no.yaml"), (["study", "bad.yaml"], "unknown key 'memorys'; did you"),
                           (["study", "list.yaml"], "must be a mapping"), (["study", "status"], "status needs a study"),
                           (["study", "status", "mine"], "there is no study in mine"), (["report", "mine"], "there is no study in mine"),
                           (["paper", "theorie"], "did you mean 'theory'?"), (["paper", "credit", "--seeds", "0"], "must be at least 1"),
                           (["paper", "credit", "--budget", "-1"], "budget must be a positive factor"),
                           (["paper", "credit", "--quick", "--records", "x"], "leave it out with --quick"),
                           (["paper", "credit", "--quick", "--budget", "2"], "leave out --budget"),
                           (["study", "good.yaml", "--out", "bad.yaml"], "is a file"),
                           (["study", "good.yaml", "--launcher", "ray", "--ray-address", "127.0.0.1:1"], "no Ray cluster answers"),
                           (["study", "good.yaml", "--launcher", "ray", "--gpus-per-run", "-1"], "must be 0 or more"),
                           (["paper", "inference-time", "--launcher", "ray"], "use --launcher local"),
                           (["paper", "credit", "--tasks", "x"], "study 'credit' has no option 'tasks'"),
                           (["compare", "nothing"], "there is no run in nothing")):
        assert main(words) == 2, words
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert sorted(name for name in os.listdir() if name != "studies") == ["bad.yaml", "good.yaml", "list.yaml"]
    assert not list(Path("studies").glob("*/runs/*"))


def test_a_run_that_diverges_is_not_tried_again(tmp_path):
    """Its best checkpoint would make another run of it, without a trace in the record."""
    study = grid("wild", ["TMaze"], ["gru"], seeds=1, steps=2048, settings={**SMALL, "lr": 1e30, "max_grad_norm": None, "max_skipped": 1})
    assert not run_study(study, tmp_path, jobs=1, retries=3)
    folder = StudyFolder(tmp_path)
    failure = folder.failure(study.tasks[0])
    assert failure is not None
    assert failure["starts"] == 1
    assert "finite" in failure["error"]
    assert "best checkpoint" not in folder.log(study.tasks[0]).read_text()
