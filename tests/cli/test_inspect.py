"""`hadamem inspect` on a tiny run; bad input is one sentence and exit code 2."""

import os
import shutil

import pytest

from hadamem.cli import main

pytest.importorskip("PIL")
ENV = "popgym/RepeatPreviousEasy"
TINY = ["--num-envs", "8", "--num-steps", "16", "--memory-size", "8", "--memory-output-size", "16", "--encoder-size", "16",
        "--layer-size", "16", "--num-epochs", "1", "--num-minibatches", "2", "--log", "none", "--steps", "128"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run called `done`, and a copy of it without checkpoints called `empty`."""
    folder, before = tmp_path_factory.mktemp("trained"), os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", "--env", ENV, "--name", "done", *TINY]) == 0
        shutil.copytree("runs/done", "runs/empty", ignore=shutil.ignore_patterns("checkpoints"))
    finally:
        os.chdir(before)
    return folder


def test_it_writes_a_page(trained, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(trained)
    assert main(["inspect", "done", "--episode-steps", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("stopped after 5 steps: return ")
    assert "written to  runs/done/inspect.html (" in captured.out
    assert "playing an episode" in captured.err
    html = (trained / "runs/done/inspect.html").read_text(encoding="utf-8")
    for words in ("done: one episode, step by step", ENV, "ppo", "128 steps"):
        assert words in html
    assert main(["inspect", "done", "--episode-steps", "3", "--seed", "4", "--deterministic", "--out", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").exists()


def test_it_opens_the_page(trained, monkeypatch, capsys):
    opened = []
    monkeypatch.chdir(trained)
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["inspect", "done", "--episode-steps", "2", "--open"]) == 0
    assert opened == [(trained / "runs/done/inspect.html").as_uri()]


@pytest.mark.parametrize(("argv", "words"), [
    ([], "RUN"),
    (["nowhere"], "no run in nowhere"),
    (["doen"], "did you mean runs/done"),
    (["empty"], "no complete checkpoint"),
    (["done", "--out", "nowhere/page.html"], "there is no folder nowhere for page.html; make it first"),
    (["done", "--out", "page.pdf"], "must end in .html, got 'page.pdf'"),
    (["done", "--out", "folder.html"], "folder.html is a folder; name a file in it"),
    (["done", "--episode-steps", "0"], "--episode-steps must be at least 1, got 0"),
    (["done", "--seed", "-1"], "seed must be"),
    (["done", "--env", "TMaze"], "do not fit those that the policy was trained with"),
    (["done", "--episodes", "4"], "unknown argument '--episodes'"),
])
def test_bad_input_is_one_sentence(argv, words, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (trained / "folder.html").mkdir(exist_ok=True)
    assert main(["inspect", *argv]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.splitlines()[-1].startswith("hadamem: ")
    assert captured.out == ""
