"""Damage is found, said, and survived: about.json, metrics, config.yaml, whole folders, and what dead processes leave behind."""

import json
import os
import random
import shutil
import subprocess
import sys
import warnings

import pytest
import torch

import hadamem as hm
from hadamem.cli import main
from hadamem.files import clear_leftovers, is_alive
from hadamem.runs import checkpoint
from hadamem.runs.files import CheckpointError
from hadamem.runs.folder import RunFolder
from hadamem.runs.verify import verify
from hadamem.training.loop import TrainingFailed
from hadamem.training.policy import load_policy
from hadamem.training.trainer import Trainer
from tests.training.toys import TINY

ENV = "popgym/RepeatPreviousEasy"
FLIPS = 100


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run of three iterations, with checkpoints of the last two."""
    folder = tmp_path_factory.mktemp("original") / "run"
    hm.train(ENV, "gru", total_steps=384, out=folder, quiet=True, device="cpu", checkpoint_every=0.0, **TINY)
    return folder


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def checkpoints(run):
    """Newest first."""
    return sorted((path for path in (run / "checkpoints").iterdir() if path.name.isdigit()), reverse=True)


def flip(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


# --- about.json ----------------------------------------------------------------------------------------------------


def test_any_changed_byte_is_noticed(original, tmp_path):
    """Single bits of a saved policy's about.json: a sentence, or the very same content (a line break that became another one)."""
    saved = load_policy(original).save(tmp_path / "policy")
    file, rng = saved / "about.json", random.Random(17)
    whole, want = file.read_bytes(), checkpoint.read_about(saved)
    noticed = 0
    for _ in range(FLIPS):
        flip(file, rng.randrange(len(whole)), rng.randrange(8))
        try:
            assert checkpoint.read_about(saved) == want
        except CheckpointError:
            with pytest.raises(CheckpointError, match=r"about\.json (was changed: its checksum is wrong|cannot be read: )"):
                load_policy(saved)
            noticed += 1
        file.write_bytes(whole)
    assert noticed > 0.9 * FLIPS


def test_a_damaged_checkpoint_leads_to_the_one_before(run, capsys):
    new, old = checkpoints(run)
    want = load_policy(old)
    flip(new / "about.json", (new / "about.json").read_bytes().index(b"gamma") + 8, 0)
    with pytest.warns(RuntimeWarning, match=r"skipped a damaged checkpoint: .*about.json was changed: its checksum .*iteration 2"):
        found = load_policy(run)
    assert all(torch.equal(a, b) for a, b in zip(found.network.parameters(), want.network.parameters(), strict=True))
    capsys.readouterr()
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["verify", str(run)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"{new / 'about.json'} was changed: its checksum is wrong"


def test_checkpoints_of_older_versions_have_no_checksum(run):
    for path in checkpoints(run):
        about = json.loads((path / "about.json").read_text())
        del about["sha256"], about["sealed"]
        (path / "about.json").write_text(json.dumps(about, indent=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_policy(run).steps == 384
        assert list(verify(run)) == []


@pytest.mark.parametrize("change", [
    {"images": [3]}, {"network": {"memry": 3}}, {"network": 7}, {"observation_space": {"type": "Discrete", "n": -1, "start": 0}},
    {"action_space": None}, {"agent": 3}, {"settings": {"gamma": "x"}}], ids=str)
def test_damage_without_a_checksum_is_no_raw_error(original, tmp_path, change):
    """An old file, or one that somebody edited: an error of hadamem, whatever is in it."""
    saved = load_policy(original).save(tmp_path / "policy")
    about = json.loads((saved / "about.json").read_text())
    about["policy"] |= change
    del about["sha256"], about["sealed"]
    (saved / "about.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"\w"):
        load_policy(saved)


def test_a_finished_run_with_a_damaged_checkpoint_says_so_and_trains_on(run, capsys):
    resume = ["train", "--resume", "--plain", "--out", str(run)]
    assert main(resume) == 0
    assert "has finished its 384 steps" in capsys.readouterr().out
    flip(checkpoints(run)[0] / "tensors.safetensors", 300, 0)
    assert main(resume) == 0
    said = capsys.readouterr()
    assert "has finished, but its newest checkpoint is damaged" in said.err
    assert load_policy(run).steps == 384
    assert list(verify(run)) == []


# --- metrics.jsonl -------------------------------------------------------------------------------------------------


def test_damaged_rows_are_counted_and_kept(run):
    file = run / "metrics.jsonl"
    flip(file, 0, 3)
    damaged = file.read_bytes()
    assert f"{file}, line 1: it is damaged" in list(verify(run))
    with pytest.warns(RuntimeWarning, match=r"metrics.jsonl had 1 damaged row \(line 1\), which was dropped; .*metrics.jsonl.damaged"):
        hm.train(out=run, resume=True, quiet=True, total_steps=512)
    assert (run / "metrics.jsonl.damaged").read_bytes() == damaged
    assert [row["iteration"] for row in map(json.loads, file.read_text().splitlines())] == [2, 3, 4]
    assert f"{file}, line 1: iteration 2 follows 0" in list(verify(run))


def test_missing_rows_are_found(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert list(verify(run))[-1] == f"{run / 'metrics.jsonl'} ends at iteration 2, but there is a checkpoint of iteration 3"


def test_a_changed_number_is_found(run):
    """A row that is still a row."""
    file = run / "metrics.jsonl"
    at = file.read_bytes().index(b'"loss": ') + 10
    flip(file, at, 0)
    assert list(verify(run)) == [f"{file} was changed: its rows up to iteration 3 do not have the checksum of the checkpoint"]
    with pytest.warns(RuntimeWarning, match="was changed: its rows up to iteration 3"):
        hm.train(out=run, resume=True, quiet=True, total_steps=512)
    assert list(verify(run)) == []      # the new checkpoint has the checksum of what is there


def test_files_that_were_deleted(run):
    (run / "metrics.jsonl").unlink()
    assert list(verify(run)) == [f"{run / 'metrics.jsonl'} is missing, but there is a checkpoint of iteration 3"]


def test_checkpoints_that_were_deleted(run):
    shutil.rmtree(run / "checkpoints")
    assert f"{run / 'checkpoints'} has no checkpoint, but metrics.jsonl has rows" in list(verify(run))


# --- hadamem verify ------------------------------------------------------------------------------------------------


def test_verify(run, tmp_path, capsys, monkeypatch):
    load_policy(run).save(run / "policy")
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: no damage found\n"
    assert main(["verify", str(run / "policy")]) == 0
    flip(run / "policy" / "tensors.safetensors", 200, 1)
    (run / "evaluations.jsonl").write_text("{\n")
    (run / "eval.json").write_text("[]")
    (run / "run.json").unlink()
    (run / "config.yaml").write_text("a: [")
    capsys.readouterr()
    assert main(["verify", str(run)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition("run/")[2].split()[0].rstrip(",") for line in said] == [
        "config.yaml", "run.json", "eval.json", "evaluations.jsonl", "policy/tensors.safetensors"]
    assert main(["verify", "nothing"]) == 2
    assert main(["verify", str(run / "policy")]) == 1


def test_verify_reads_chunks(tmp_path):
    class Data:
        def chunk_names(self):
            return ["000"]

        def read_chunk(self, name):
            return {"x": torch.arange(10)}

    store = checkpoint.Checkpoints(tmp_path / "checkpoints")
    store.write(1, {"x": torch.zeros(2)}, {}, Data())
    (tmp_path / "config.yaml").write_text("env: TMaze\n")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n')
    assert list(verify(tmp_path)) == []
    flip(tmp_path / "checkpoints" / "chunks" / "000.safetensors", -1, 0)
    assert list(verify(tmp_path)) == [f"{tmp_path / 'checkpoints/chunks/000.safetensors'} was changed: its size or checksum is wrong"]


# --- what was deleted ----------------------------------------------------------------------------------------------


def test_a_lost_config_is_written_again(run, original, capsys):
    (run / "config.yaml").unlink()
    assert main(["eval", str(run)]) == 2
    assert f"`hadamem train --resume --out {run}` writes its config.yaml again" in capsys.readouterr().err
    assert main(["train", "--resume", "--plain", "--steps", "512", "--out", str(run)]) == 0
    assert f"{run / 'config.yaml'} was missing; it was written again from the checkpoint 00000003" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == (original / "config.yaml").read_text().replace("total_steps: 384", "total_steps: 512")
    (run / "config.yaml").unlink()
    with pytest.warns(RuntimeWarning, match="was missing; it was written again"):
        assert hm.train(out=run, resume=True, quiet=True, total_steps=640).status == "finished"


def test_a_folder_that_is_deleted_while_training(run, tmp_path, capsys, monkeypatch):
    def delete(row):
        shutil.rmtree(tmp_path / "gone")

    with pytest.raises(TrainingFailed, match=r"gone was deleted or moved while training, so nothing more can be written; .* iteration 1"):
        hm.train(ENV, "gru", total_steps=1024, out=tmp_path / "gone", quiet=True, device="cpu", report=delete, **TINY)
    assert not (tmp_path / "gone").exists()
    iteration = Trainer.iteration
    monkeypatch.setattr(Trainer, "iteration", lambda self: (iteration(self), shutil.rmtree(run))[0])
    capsys.readouterr()
    assert main(["train", "--resume", "--plain", "--steps", "1024", "--out", str(run)]) == 1
    assert capsys.readouterr().err == (f"hadamem: {run} was deleted or moved while training, so nothing more can be written; "
                                       "training ended at iteration 4\n")
    assert not run.exists()


# --- what dead processes leave -------------------------------------------------------------------------------------


def test_leftovers_of_dead_processes_are_cleared(run):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead, alive = child.pid, os.getppid()
    left = [f".config.yaml.new-{dead}", f".metrics.jsonl.new-{dead}", f".probe-{dead}", f"checkpoints/.00000002.new-{dead}",
            f"checkpoints/.00000003.old-{dead}"]
    kept = [f".eval.json.new-{alive}", ".notes-5", "x.new-1"]
    for name in (*left, *kept):
        (run / name).mkdir() if "0000" in name else (run / name).touch()
    hm.train(out=run, resume=True, quiet=True, total_steps=512)
    assert [name for name in left if (run / name).exists()] == []
    assert [name for name in kept if not (run / name).exists()] == []
    assert is_alive(alive)
    assert not is_alive(dead)


def test_an_old_version_that_was_about_to_be_replaced_comes_back(tmp_path):
    (tmp_path / ".00000007.old-999999999").mkdir()
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["00000007"]


def test_opening_a_folder_clears_it(run):
    (run / ".run.json.new-999999999").touch()
    with RunFolder(run, resume=True):
        assert not (run / ".run.json.new-999999999").exists()
