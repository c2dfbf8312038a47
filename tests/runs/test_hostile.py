"""Folders that a stranger made: reading them runs none of his code and writes nothing outside of them. Each is a real run, changed."""

import contextvars
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import hadamem as hm
from hadamem import lookup
from hadamem.cli import main
from hadamem.experiments import worker
from hadamem.runs import checkpoint
from hadamem.runs.files import LinkError
from hadamem.runs.folder import load_config, read_config
from hadamem.training.evaluate import evaluate
from hadamem.training.run import open_run
from tests.training.toys import TINY, Recall

ENV = "popgym/RepeatPreviousEasy"
SNEAKY = """
import gymnasium, hadamem, pathlib
pathlib.Path({imported!r}).touch()
class Touch:
    def __init__(self, **options):
        pathlib.Path({called!r}).touch()
class Env(gymnasium.Env):
    def __init__(self, length=4):
        pathlib.Path({called!r}).touch()
def function(**options):
    pathlib.Path({called!r}).touch()
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    hm.train(ENV, "gru", total_steps=256, out=folder, quiet=True, device="cpu", **TINY)
    return folder


@pytest.fixture
def run(original, tmp_path, monkeypatch):
    """A copy of a run. The current folder is an empty one; nothing has been named by the user yet."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(lookup, "_written", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def sneaky(tmp_path):
    """A module in the current folder, and the files that appear when it is imported and when something in it is called."""
    imported, called = tmp_path / "imported", tmp_path / "called"
    (tmp_path / "here" / "sneaky.py").write_text(SNEAKY.format(imported=str(imported), called=str(called)))
    yield imported, called
    sys.modules.pop("sneaky", None)


def set_config(run, **changes):
    values = yaml.safe_load((run / "config.yaml").read_text())
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        (values[section] if section else values)[field] = value
    (run / "config.yaml").write_text(yaml.safe_dump(values))


def set_about(folder, change):
    """Change about.json, with a checksum that fits."""
    about = json.loads((folder / "about.json").read_text())
    about.pop("sha256")
    change(about)
    (folder / "about.json").write_text(json.dumps({**about, "sha256": checkpoint.fingerprint(about)}))


def newest(run):
    return max(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())


def refused(argv, capsys, *words):
    assert main(argv) == 2
    err = capsys.readouterr().err.removeprefix("playing an episode ...\n")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


# --- names of things to import -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["eval"], ["watch", "--text"], ["inspect"], ["train", "--resume", "--steps", "512", "--out"]],
                         ids=lambda words: words[0])
def test_a_command_as_the_env(run, tmp_path, capsys, command):
    set_config(run, env="os:system", env_options={"command": f"touch {tmp_path / 'sentinel'}"})
    refused([*command, str(run)], capsys, f"{run / 'config.yaml'} names 'os:system'", "module 'os'", "--trust")
    refused([*command, str(run), "--trust"], capsys, "no subclass of gymnasium.Env")      # trusted, but no class
    with pytest.raises(ValueError, match="names 'os:system', which would import"):
        evaluate(hm.load_policy(run), open_run(run).config.env, 2, env_options=open_run(run).config.env_options)
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize(("name", "options"), [
    ("torch.hub:load", {"repo_or_dir": "HERE", "model": "x", "source": "local"}), ("logging:basicConfig", {"filename": "HERE/sentinel"}),
    ("os:mkdir", {"path": "HERE/sentinel"}), ("sneaky:Touch", {}), ("sneaky:function", {})])
@pytest.mark.parametrize("where", ["run", "policy"])
def test_a_function_as_the_memory(run, sneaky, tmp_path, capsys, name, options, where):
    (tmp_path / "hubconf.py").write_text(f"open({str(tmp_path / 'sentinel')!r}, 'w')")
    folder = newest(run)
    if where == "policy":
        folder = hm.load_policy(run).save(tmp_path / "policy")
    options = {key: value.replace("HERE", str(tmp_path)) for key, value in options.items()}

    def change(about):
        about["policy"]["network"] |= {"memory": name, "memory_options": options, "memory_size": None}

    set_about(folder, change)
    place = run if where == "run" else folder
    with pytest.raises(lookup.UntrustedName, match=rf"about\.json names '{name}', which would import and run .*trust=True"):
        hm.load_policy(place)
    assert not any(path.exists() for path in sneaky)
    sys.path.append(os.getcwd())
    with pytest.raises(ValueError, match=r"subclass of hm\.Memory"):      # trusted; it is still no memory, and not called
        hm.load_policy(place, trust=True)
    if where == "run":
        for argv in (["eval", str(run)], ["export", str(run), "--format", "policy"]):
            refused(argv, capsys, "about.json names")
    assert not (tmp_path / "sentinel").exists()
    assert not sneaky[1].exists()


def test_an_agent_of_a_file(run, sneaky, capsys):
    set_config(run, agent="sneaky:Env")
    refused(["eval", str(run)], capsys, "config.yaml names 'sneaky:Env'")
    refused(["train", "--config", str(run / "config.yaml"), "--name", "new"], capsys, "config.yaml names 'sneaky:Env'")
    with pytest.raises(lookup.UntrustedName):
        open_run(run)
    with pytest.raises(lookup.UntrustedName):
        hm.train(out=run, resume=True, quiet=True)
    assert not any(path.exists() for path in sneaky)


def test_a_class_that_is_no_env_and_options_that_do_not_fit(run, sneaky, capsys):
    """Also where the user trusts the folder, or names the class himself."""
    imported, called = sneaky
    set_config(run, env="sneaky:Touch")
    refused(["eval", str(run)], capsys, "names 'sneaky:Touch'")
    assert not imported.exists()
    for argv in (["eval", str(run), "--trust"], ["eval", str(run), "--env", "sneaky:Touch"]):
        refused(argv, capsys, "'sneaky:Touch' must be a subclass of gymnasium.Env or hm.envs.BatchedEnv, got the class Touch")
    set_config(run, env="sneaky:Env", env_options={"path": "/tmp/x"})
    refused(["eval", str(run), "--trust"], capsys, "env Env has no option 'path'; it takes length")
    set_config(run, env="CartPole-v1", env_options={"path": "/tmp/x"})
    refused(["eval", str(run)], capsys, "env CartPole-v1 has no option 'path'")
    assert not called.exists()


def test_a_study_of_a_stranger(run, tmp_path, sneaky, capsys):
    """A worker imports the names that its launcher passes on, and no others."""
    study = tmp_path / "study"
    study.mkdir()
    tasks = [{"name": "one", "labels": {}, "settings": {"env": "sneaky:Env", "memory": "gru", **TINY, "total_steps": 256}},
             {"name": "two", "labels": {}, "settings": {"env": "TMaze", "memory": "sneaky:Touch"}},
             {"name": "three", "function": "sneaky:function", "settings": {}}]
    (study / "study.json").write_text(json.dumps(
        {"format": 1, "name": "x", "title": "", "about": "", "score": "return", "scale": 1.0, "source": {}, "tasks": tasks}))
    for task in tasks:
        assert contextvars.copy_context().run(worker.main, [str(study), task["name"]]) == 2
    err = capsys.readouterr().err
    assert "names 'sneaky:Env'" in err
    assert "names 'sneaky:Touch'" in err
    assert main(["study", "status", str(study)]) == 0
    assert not any(path.exists() for path in sneaky)


# --- what is allowed -----------------------------------------------------------------------------------------------


def test_a_users_own_class(run, tmp_path, capsys, monkeypatch):
    own = hm.train(Recall, "gru", total_steps=256, out=tmp_path / "own", quiet=True, device="cpu", workers=0, **TINY).folder
    name = f"{Recall.__module__}:Recall"
    monkeypatch.setattr(lookup, "_written", set())
    argv = ["eval", str(own), "--episodes", "2", "--env-option", "workers=0"]
    refused(argv, capsys, f"config.yaml names '{name}', which would import and run the module 'tests.training.toys'")
    assert main([*argv, "--trust"]) == 0
    monkeypatch.setattr(lookup, "_written", set())
    assert main([*argv, "--env", name]) == 0
    monkeypatch.setattr(lookup, "_written", set())
    resume = ["train", "--resume", "--steps", "384", "--plain", "--out", str(own)]
    refused(resume, capsys, f"names '{name}'")
    assert main([*resume, "--env", name]) == 0
    assert f"hadamem eval {own} --env {name}\n" in capsys.readouterr().out
    monkeypatch.setattr(lookup, "_written", set())
    with pytest.raises(lookup.UntrustedName):
        hm.train(out=own, resume=True, quiet=True, total_steps=512)
    assert hm.train(out=own, resume=True, quiet=True, total_steps=512, trust=True).status == "finished"
    run = open_run(own)      # from now on the name is known
    assert evaluate(run.policy, run.config.env, 2, env_options={"workers": 0}).episodes == 2


def test_names_are_marked_and_written_again(tmp_path):
    values = lookup.from_file({"a": ["x:Y", "plain"], "b": {"c": "z:W"}, "d": 3}, "somewhere.yaml")
    assert (type(values["a"][0]), type(values["a"][1]), values["b"]["c"].file) == (lookup.FileName, str, "somewhere.yaml")
    assert lookup.trusted_names(values) == []
    with lookup.trusting():
        assert lookup.trusted_names(values) == ["x:Y", "z:W"]
    assert lookup.trusted_names({"a": "x:Y", "device": "cuda:0"}) == ["x:Y"]      # written by the user
    assert torch.device(lookup.from_file("cpu:0", "somewhere.yaml")) == torch.device("cpu:0")


# --- the current folder --------------------------------------------------------------------------------------------


def test_modules_in_the_current_folder_do_not_replace_ours(run, tmp_path):
    for name in ("safetensors", "torch", "yaml", "gymnasium", "typing", "numpy"):
        (tmp_path / "here" / f"{name}.py").write_text(f"open({str(tmp_path / 'sentinel')!r}, 'a').write({name!r})")
    command = [sys.executable, "-m", "hadamem", "verify", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path / "here")
    assert not (tmp_path / "sentinel").exists()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run}: no damage found\n", "")


# --- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evaluations.jsonl", "config.yaml", "checkpoints", "NEWEST", "NEWEST/about.json",
                                  "NEWEST/tensors.safetensors", "metrics.jsonl", "run.json", "checkpoints/chunks", "wandb"])
def test_links_are_not_followed(run, tmp_path, capsys, name):
    """Neither to read nor to write."""
    path = run / name.replace("NEWEST", f"checkpoints/{newest(run).name}")
    target = tmp_path / "target"
    if path.exists():
        path.rename(target)
    elif name in ("checkpoints/chunks", "wandb"):
        target.mkdir()
        (target / "precious").write_text("x")
    else:
        target.write_text("precious\n")
    path.symlink_to(target)
    before = {p: p.read_bytes() for p in (target.rglob("*") if target.is_dir() else [target]) if p.is_file()}
    log = "wandb" if name == "wandb" else "none"
    commands = {"eval": ["eval", str(run), "--episodes", "2"],
                "resume": ["train", "--resume", "--steps", "384", "--plain", "--out", str(run), "--log", log]}
    read = {"evaluations.jsonl": ["eval"], "metrics.jsonl": ["resume"], "checkpoints/chunks": ["resume"], "wandb": ["resume"]}
    for command in read.get(name, list(commands)):
        refused(commands[command], capsys, f"{path} leads out of", "is not followed")
    assert {p: p.read_bytes() for p in before} == before
    assert main(["verify", str(run)]) == 1
    assert "leads out of" in capsys.readouterr().out


def test_a_link_to_the_whole_run_is_fine(run, tmp_path):
    (tmp_path / "elsewhere").symlink_to(run)
    assert main(["eval", str(tmp_path / "elsewhere"), "--episodes", "2"]) == 0
    assert main(["verify", str(tmp_path / "elsewhere")]) == 0


def test_a_result_that_is_a_link_is_replaced(run, tmp_path):
    (tmp_path / "target").write_text("precious")
    for name in ("eval.json", "curve.png"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / "target")
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["train", "--resume", "--steps", "384", "--plain", "--out", str(run)]) == 0
    assert (tmp_path / "target").read_text() == "precious"
    (run / "episode.gif").symlink_to(tmp_path / "target")
    assert main(["watch", str(run)]) == 2
    assert (tmp_path / "target").read_text() == "precious"


def test_temporary_names_are_no_way_out(run, tmp_path):
    """Files are written under a name with the process's number first, which a stranger can guess."""
    (tmp_path / "target").write_text("precious")
    for name in (".eval.json.new", ".probe", ".config.yaml.new", ".run.json.new"):
        (run / f"{name}-{os.getpid()}").symlink_to(tmp_path / "target")
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["train", "--resume", "--steps", "384", "--plain", "--out", str(run)]) == 0
    assert (tmp_path / "target").read_text() == "precious"
    assert not (run / "eval.json").is_symlink()


def test_reports_are_not_written_through_links(tmp_path, capsys):
    from hadamem.cli.report import make_report
    from hadamem.experiments.folder import StudyFolder
    from hadamem.experiments.studies import memory_elements

    study = memory_elements.make(quick=True)
    folder = StudyFolder(tmp_path / "study")
    folder.begin(study)
    for task in study.tasks:
        assert worker.do_task(folder, task.name) == 0
    (tmp_path / "elsewhere").mkdir()
    (folder.path / "report").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link, and nothing is written through it"):
        make_report([folder.path])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("options", ['"{\\"env_id\\": \\"evil:E\\"}"', "{env_id: [evil:E]}", "{env_id: !!pairs [a: evil:E]}"])
def test_names_within_options_are_noticed(tmp_path, options):
    """However a file writes them: as text, or nested."""
    file = tmp_path / "config.yaml"
    file.write_text(f"env: CartPole-v1\nenv_options: {options}\n")

    def build():
        config = load_config(file)
        hm.envs.make(config.env, num_envs=1, **config.env_options)

    with pytest.raises(ValueError, match=r"names 'evil:E'|env_options must be"):
        build()


def test_options_with_a_colon_reach_children():
    assert lookup.trusted_names({"device": "cuda:0", "env_options": {"ratio": "16:9", "map": "C:\\maps"}}) == ["16:9", "C:\\maps"]


def test_a_pipe_does_not_block(run, capsys):
    os.mkfifo(run / "evaluations.jsonl")
    refused(["eval", str(run), "--episodes", "2"], capsys, "evaluations.jsonl is neither a file nor a folder")


def test_chunks_are_looked_for_in_their_folder(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"0" * 8)
    store = checkpoint.ChunkStore(tmp_path / "run" / "chunks")
    seal = {"name": "../../x", "bytes": 8, "sha256": ""}
    for call in (store.check, lambda seals: list(store.read(seals))):
        with pytest.raises(LinkError, match="leads out of"):
            call([seal])


# --- YAML ----------------------------------------------------------------------------------------------------------


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))


@pytest.mark.parametrize(("text", "words"), [
    (BOMB, "more than 50,000 values"), (f"env_options: {{x: {'[' * 600}{']' * 600}}}", "nested too deeply"),
    ("env: &a [*a]", "nested too deeply"), ("env: x\n" + "# " * 600_000, "may have 1,048,576"),
    ("env: !!python/object/apply:os.system [touch sentinel]", "is not YAML"),
], ids=["bomb", "deep", "circle", "large", "tag"])
def test_yaml_that_fills_memory_or_runs_code(run, capsys, text, words):
    (run / "config.yaml").write_text(text)
    refused(["eval", str(run)], capsys, words)
    refused(["train", "--resume", "--out", str(run)], capsys, words)
    assert list(Path().iterdir()) == []


def test_aliases_may_be_used(run, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("env_options: &options {k: 5}\neval_env_options: *options\nppo: {gamma: 1e-1}\nenv: popgym/RepeatPreviousEasy\n")
    assert read_config(file)["eval_env_options"] == {"k": 5}
    assert load_config(file).algorithm.gamma == 0.1
