"""The command line: its output, and that bad input gives one sentence and exit code 2."""

import io
import json
import subprocess
import sys
import textwrap

import pytest

import hadamem
from hadamem.cli import COMMANDS, main
from hadamem.cli.output import print_table

from .. import warm

GOOD = """
import torch, hadamem as hm
class Sum(hm.GRU):
    pass
"""
BAD = """
import torch, hadamem as hm
class Forgetful(hm.GRU):
    def forward(self, x, state=None, reset=None):
        return super().forward(x, state, None)   # ignores resets
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    return tmp_path


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"hadamem {hadamem.__version__}"


@pytest.mark.parametrize("path", [[], *(name.split() for name in COMMANDS), ["bench"]])
def test_help(path, capsys):
    assert main([*path, "--help"]) == 0
    assert "usage: hadamem" in capsys.readouterr().out


def test_importing_it_imports_no_command():
    code = ("import sys, hadamem.cli\n"
            "heavy = {'numba', 'triton', 'gymnasium', 'matplotlib', 'yaml', 'hadamem.training', 'hadamem.bench', 'hadamem.testing'}\n"
            "sys.exit(str(sorted(heavy & set(sys.modules)) or '') or 0)")
    assert warm.run(code) == (0, "")


def test_table(capsys):
    print_table([("a", "one"), ("long", "")], indent=2, width=5)
    assert capsys.readouterr().out == "  a      one\n  long\n"


def test_no_command_shows_help(capsys):
    assert main([]) == 0
    assert "check-memory" in capsys.readouterr().out


def test_list(capsys):
    assert main(["list", "memories"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == hadamem.list_memories()
    assert main(["list", "backends"]) == 0
    out = capsys.readouterr().out
    assert "reference  usable" in out
    assert "triton" in out


def test_list_envs(capsys):
    pytest.importorskip("gymnasium")
    assert main(["list", "envs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == hadamem.envs.list_envs()
    assert head.split() == ["name", "observation", "action", "steps", "task"]
    row = next(row for row in rows if row.startswith("popgym/AutoencodeEasy"))
    assert "Discrete 2, Discrete 4  Discrete 4" in row
    for column in (head.index("observation"), head.index("action"), head.index("steps"), head.index("task")):
        assert all(row[column - 1] == " " != row[column] for row in rows)       # aligned


def test_play(monkeypatch, capsys):
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(sys, "stdin", io.StringIO("s\nd\nq\n"))
    assert main(["play", "popgym/RepeatPreviousEasy", "--seed", "4", "--option", "k=2", "--show-hidden"]) == 0
    out = capsys.readouterr().out
    assert "say the suit" in out
    assert "k = 2" in out
    assert out.count("reward") == 2


def test_play_in_a_pipe():
    command = [sys.executable, "-m", "hadamem", "play", "popgym/BattleshipEasy", "--seed", "1"]
    done = subprocess.run(command, input="0 0\n0 1\n", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("reward") == 2


@pytest.mark.parametrize(("argv", "words"), [
    (["lst"], "lst"),
    (["list", "envs", "--sed"], "unknown argument '--sed'"),
    (["play", "TMaze", "--sed", "1"], "did you mean '--seed'?"),
    (["list", "mammals"], "mammals"),
    (["bench"], "COMMAND"),
    (["bench", "memory", "--batch", "0"], "batch"),
    (["bench", "memory", "--all", "--only", "gruu"], "gruu"),
    (["bench", "memory", "--all", "--batch", "1", "2"], "one value"),
    (["bench", "memory", "--all", "--backends", "cpu"], "without --all"),
    (["bench", "memory", "--state", "3"], "with --all"),
    (["bench", "memory", "--batch", "two"], "two"),
    (["bench", "memory", "--dtype", "int8"], "int8"),
    (["bench", "memory", "--what", "everything"], "everything"),
    (["bench", "memory", "--backends", "cobol"], "cobol"),
    (["bench", "memory", "--device", "abacus"], "abacus"),
    (["bench", "memory", "--limit-seconds", "-1"], "limit_seconds"),
    (["bench", "memory", "--config", "missing.json"], "missing.json"),
    (["check-memory", "nonsense"], "nonsense"),
    (["check-memory", "no_such_module_xyz:Thing"], "no_such_module_xyz"),
    (["check-memory", "hadamem:NoSuchClass"], "NoSuchClass"),
    (["check-memory", "gru", "--option", "memory_size"], "NAME=VALUE"),
    (["check-memory", "gru", "--input-size", "0"], "input-size"),
    (["play", "popgym/RepeatPrevousEasy"], "did you mean popgym/RepeatPreviousEasy"),
    (["play", "popgym/RepeatPreviousEasy", "--option", "k=99"], "k must be smaller"),
    (["play", "popgym/RepeatPreviousEasy", "--option", "z=1"], "'z'"),
    (["play", "popgym/RepeatPreviousEasy", "--seed", "-1"], "seed must be"),
])
def test_bad_input_is_one_sentence(argv, words, here, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("hadamem: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("argv", [["--debug", "list", "mammals"], ["list", "mammals", "--debug"]])
def test_debug_raises(argv):
    with pytest.raises(Exception, match="mammals"):
        main(argv)


@pytest.mark.parametrize(("text", "words"), [
    ("{", "parsed"), ("[1]", "mapping"), ('{"batsh": [1]}', "did you mean 'batch'"),
])
def test_bad_config(text, words, here, capsys):
    (here / "c.json").write_text(text)
    assert main(["bench", "memory", "--config", "c.json"]) == 2
    assert words in capsys.readouterr().err


def test_config_and_options(here, capsys):
    config = {"batch": [2], "time": 3, "memory-size": [4], "what": "op", "repeats": 2, "plots": False,
              "backends": ["scan"]}
    (here / "c.json").write_text(json.dumps(config))
    assert main(["bench", "memory", "--config", "c.json", "--backends", "reference", "--out", "results"]) == 0
    saved = json.loads((here / "results" / "results.json").read_text())
    assert saved["settings"]["time"] == [3]
    assert {r["model"] for r in saved["results"]} == {"shm[reference]", "gru", "lstm"}   # options override the file
    assert "vs loop" in capsys.readouterr().out


def test_yaml_config(here, capsys):
    (here / "c.yaml").write_text("batsh: [1]\n")
    assert main(["bench", "memory", "--config", "c.yaml"]) == 2
    assert "pyyaml" in (err := capsys.readouterr().err) or "batsh" in err


def test_check_memory_finds_modules_in_the_current_folder(here):
    """In a separate process: a console script does not have the current folder in sys.path."""
    (here / "good_memory.py").write_text(textwrap.dedent(GOOD))
    (here / "bad_memory.py").write_text(textwrap.dedent(BAD))
    run = "import sys; sys.path = [p for p in sys.path if p]; from hadamem.cli import main; sys.exit(main())"
    for spec, code in (("good_memory:Sum", 0), ("bad_memory:Forgetful", 1)):
        done = subprocess.run([sys.executable, "-c", run, "check-memory", spec, "--option", "memory_size=8"], cwd=here,
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        assert spec in done.stdout
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("code", "want", "said"), [("3", 3, ""), ("'no licence'", 1, "hadamem: no licence\n")])
def test_a_user_module_that_exits(code, want, said, here, capsys):
    (here / "leaving.py").write_text(f"import sys\nsys.exit({code})\n")
    sys.modules.pop("leaving", None)
    assert main(["check-memory", "leaving:Memory"]) == want
    assert capsys.readouterr().err == said


def test_python_dash_m():
    command = [sys.executable, "-m", "hadamem", "list", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
