"""Tensors on disk: whole or not at all, checked when read, and the config beside them."""

import json
import os

import pytest
import torch
import yaml
from safetensors import safe_open

from hadamem.runs import checkpoint, metrics
from hadamem.runs.checkpoint import Checkpoints, NewerFormatError
from hadamem.runs.config import make_config, to_dict
from hadamem.runs.files import CheckpointError
from hadamem.runs.folder import FREE, RunFolder, load_config, save_config

TENSORS = {"a.weight": torch.randn(3, 4), "flags": torch.tensor([True, False]), "count": torch.tensor(7), "empty": torch.zeros(0, 2),
           "strided": torch.randn(4, 6).T, "double": torch.randn(2, dtype=torch.float64)}


def test_what_is_written_is_read(tmp_path):
    checkpoint.write(tmp_path / "x", TENSORS, {"kind": "test", "n": 3})
    found = checkpoint.read(tmp_path / "x")
    assert found.about["n"] == 3
    assert found.about["format"] == checkpoint.FORMAT
    assert set(found.tensors) == set(TENSORS)
    for name, want in TENSORS.items():
        assert found.tensors[name].dtype == want.dtype
        assert torch.equal(found.tensors[name], want)
    assert set(checkpoint.read(tmp_path / "x", "a.").tensors) == {"a.weight"}
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["about.json", "tensors.safetensors", "x"]
    with safe_open(tmp_path / "x" / "tensors.safetensors", "pt") as file:      # the format itself, nothing pickled
        assert set(file.keys()) == set(TENSORS)


def test_tied_weights_are_written_apart(tmp_path):
    shared = torch.randn(4, 3)
    given = {"one": shared, "other": shared, "part": shared[1:], "turned": shared.T}
    checkpoint.write(tmp_path / "x", given, {"kind": "test"})
    found = checkpoint.read(tmp_path / "x").tensors
    assert all(torch.equal(found[name], x) for name, x in given.items())


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
def test_a_crash_while_writing_leaves_the_old_one(tmp_path, monkeypatch, call):
    """Whichever call fails, the folder is the old one or, at the first writing, not there."""
    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    for there in (False, True):
        path = tmp_path / str(there)
        if there:
            checkpoint.write(path, TENSORS, {"n": 1})
        with monkeypatch.context() as patch:
            if call == "rename":
                patch.setattr("pathlib.Path.rename", lambda a, b: fail() if ".new-" in a.name else os.rename(a, b))
            else:
                patch.setattr("pathlib.Path.mkdir" if call == "mkdir" else "os.fsync", fail)
            with pytest.raises(OSError, match="No space"):
                checkpoint.write(path, TENSORS, {"n": 2})
        assert path.exists() == there
        if there:
            assert checkpoint.read(path).about["n"] == 1
    assert not list(tmp_path.glob(".*"))


def damage(path, how):
    file = path / "tensors.safetensors"
    data = file.read_bytes()
    if how == "truncated":
        file.write_bytes(data[:-7])
    elif how == "changed":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "emptied":
        file.write_bytes(b"")
    elif how == "missing":
        file.unlink()
    elif how == "about truncated":
        (path / "about.json").write_bytes((path / "about.json").read_bytes()[:20])
    elif how == "about missing":
        (path / "about.json").unlink()


DAMAGES = ["truncated", "changed", "emptied", "missing", "about truncated", "about missing"]


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_noticed_and_the_one_before_is_used(tmp_path, how):
    kept = Checkpoints(tmp_path, keep=3)
    for i in (3, 12, 101):
        kept.write(i, {**TENSORS, "i": torch.tensor(i)}, {})
    damage(tmp_path / "00000101", how)
    with pytest.raises(CheckpointError, match="00000101"):
        checkpoint.read(tmp_path / "00000101")
    said = []
    found = kept.newest(said.append)
    assert int(found.tensors["i"]) == found.about["iteration"] == 12
    assert len(said) == 1
    assert "00000101" in said[0]
    kept.continue_after(12)
    kept.write(20, {}, {})
    kept.write(21, {}, {})
    assert [p.name for p in kept.paths()] == ["00000021", "00000020", "00000012"]      # the damaged one is not counted
    assert (tmp_path / "00000101.damaged").is_dir()


def test_the_newest_are_kept(tmp_path):
    kept = Checkpoints(tmp_path / "c", keep=2)
    assert kept.newest(pytest.fail) is None
    for i in range(5):
        kept.write(i, {"x": torch.tensor(i)}, {})
    kept.write(4, {"x": torch.tensor(40)}, {})
    assert [p.name for p in kept.paths()] == ["00000004", "00000003"]
    assert int(kept.newest(pytest.fail).tensors["x"]) == 40


def test_newer_formats_are_refused(tmp_path):
    checkpoint.write(tmp_path / "x", {}, {"format": checkpoint.FORMAT + 1, "hadamem": "9.1"})
    with pytest.raises(NewerFormatError, match=r"newer hadamem \(9.1"):
        Checkpoints(tmp_path).newest(pytest.fail) or checkpoint.read(tmp_path / "x")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"format": 99, "hadamem": "9.1", "env": "TMaze", "telepathy": True}))
    with pytest.raises(ValueError, match=r"newer hadamem \(9.1, format 99\).*upgrade"):
        load_config(config)


def test_a_config_comes_back(tmp_path):
    config = make_config("popgym-release", env="TMaze", seed=3, log=("tensorboard", "wandb"),
                         **{"env_options": {"length": 5, "names": ["a"]}, "network.memory_options": {"clip": 2.0}, "ppo.adam_eps": 1e-12})
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == load_config(tmp_path) == config
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert values["format"] == checkpoint.FORMAT
    assert set(values) == {"format", "hadamem", *to_dict(config)}      # complete
    assert set(FREE) <= set(to_dict(config))
    with pytest.raises(ValueError, match="cannot be written"):
        save_config(make_config(**{"network.memory_options": {"calibration": object()}}), tmp_path / "other.yaml")


def test_a_config_written_by_hand(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("env: TMaze\nppo:\n  learning_rate: 3e-4\n  max_grad_norm: null\n")
    config = load_config(path)
    assert config.algorithm.learning_rate == 3e-4
    assert config.algorithm.max_grad_norm is None
    path.write_text("env: TMaze\nlearning_rate: 3e-4\nmax_grad_norm: null\n")      # the same without the section
    assert load_config(path) == config
    for text, match in (("env: [", "not YAML"), ("- 3", "must be a mapping"), ("ppo: {epoch: 3}", "did you mean 'ppo.num_epochs'"),
                        ("lerning_rate: 1", "did you mean 'ppo.learning_rate'"),
                        ("steps: many", "total_steps must be a whole number, got 'many'")):
        path.write_text(text)
        with pytest.raises(ValueError, match=match):
            load_config(path)
    with pytest.raises(ValueError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")


def test_rows_survive_a_cut_and_a_broken_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = metrics.MetricsLog(path)
    for i in range(1, 6):
        kept = log.add({"iteration": i, "loss": 0.1 * i, "return": float("nan") if i == 2 else 1.0})
        assert ("return" in kept) == (i != 2)
        assert len(metrics.read_rows(path)) == i      # at once
    log.close()
    with open(path, "a") as file:
        file.write('{"iteration": 6, "lo')
    assert len(metrics.read_rows(path)) == 5
    assert metrics.cut_back(path, 5, pytest.fail)["iteration"] == 5      # half a row is what a crash leaves: no damage
    assert metrics.cut_back(path, 3, pytest.fail) == {"iteration": 3, "loss": 0.1 * 3, "return": 1.0}
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert metrics.cut_back(tmp_path / "none.jsonl", 3, pytest.fail) is None
    free = metrics.MetricsLog()
    free.add({"iteration": 1})
    assert free.rows() == [{"iteration": 1}]


def test_one_process_at_a_time(tmp_path):
    with RunFolder(tmp_path / "a" / "b"), pytest.raises(ValueError, match="another process"):
        RunFolder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()      # nothing was begun, nothing stays
    with RunFolder(tmp_path / "a" / "b"):
        pass
    with pytest.raises(ValueError, match="cannot write to the folder /proc/nobody/here: No such file or directory"):
        RunFolder("/proc/nobody/here")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to the folder .*run: Not a directory; choose another one"):
        RunFolder(tmp_path / "file" / "run")
