"""`hadamem export` on a tiny run; bad input is one sentence and exit code 2."""

import os
import sys

import pytest

import hadamem as hm
from hadamem.cli import main
from hadamem.training import export as exporting

from .test_inspect import ENV, TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run called `done`."""
    folder, before = tmp_path_factory.mktemp("trained"), os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", "--env", ENV, "--name", "done", "--memory", "none", *TINY]) == 0
    finally:
        os.chdir(before)
    return folder


def test_it_writes_a_program(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["export", "done", "--format", "torch"]) == 0
    said = capsys.readouterr().out
    assert "written to  done.pt2 (" in said
    assert "it agrees with the policy over 100 steps of 3 envs, largest difference 0.0e+00" in said
    assert "obs [N] int64, reset [N] bool, state [N, 8] float32" in said
    assert (trained / "done.pt2").is_file()


def test_it_writes_a_folder(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["export", "runs/done", "--format", "policy"]) == 0
    assert "done-policy" in capsys.readouterr().out
    assert (trained / "done-policy" / "README.md").read_text().startswith(f"# A policy for {ENV}")
    assert hm.load_policy("done-policy").steps == 128
    assert main(["export", "done-policy", "--format", "policy", "--out", "again"]) == 0


def test_without_onnxruntime_nothing_is_checked(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(exporting, "_onnx", lambda *args: (b"data", None))
    assert main(["export", "done", "--out", "unchecked.onnx"]) == 0
    assert "checked     no: onnxruntime is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "words"), [
    ([], "RUN"),
    (["nowhere"], "there is no folder nowhere"),
    (["done", "--format", "tflite"], "invalid choice: 'tflite'"),
    (["done", "--out", "runs", "--format", "onnx"], "runs is a folder; pass the name of a file, such as runs/policy.onnx"),
    (["done", "--format", "policy", "--mask"], "--mask and --noise are for --format onnx and torch"),
    (["done", "--format", "policy", "--out", "runs"], "runs exists and is not a saved policy; choose another name"),
])
def test_bad_input(trained, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(trained)
    assert main(["export", *argv]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_missing_packages_and_failures(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", "done"]) == 2
    assert capsys.readouterr().err == "hadamem: the format onnx needs onnx: pip install 'hadamem[onnx]'\n"

    def differ(*args):
        raise exporting.ExportError("the program's value differs")

    monkeypatch.setattr(exporting, "_torch", differ)
    assert main(["export", "done", "--out", "a.pt2"]) == 1
    assert capsys.readouterr().err == "hadamem: the program's value differs; nothing was written\n"
    assert not (trained / "a.pt2").exists()
