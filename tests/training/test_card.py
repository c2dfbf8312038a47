"""A saved policy says in plain English what it is; nothing depends on that text."""

import json

import pytest

import hadamem as hm
from hadamem.training.card import make_card, write_readme
from hadamem.training.evaluate import evaluate
from hadamem.training.policy import load_policy

from .test_policy import BOX, Policy, trainer
from .toys import TINY

ENV = "popgym/RepeatPreviousEasy"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from hadamem.runs.evaluations import keep

    run = hm.train(ENV, "gru", out=tmp_path_factory.mktemp("runs") / "first", quiet=True, device="cpu", total_steps=816,
                   **{**TINY, "num_steps": 51})
    found = evaluate(run.policy, ENV, episodes=4)
    keep(run.folder, run.config, found, env=ENV, env_options={}, seed=0, deterministic=False, steps=816)
    return run


def test_the_readme_of_a_run(run, tmp_path):
    folder = load_policy(run.folder).save(tmp_path / "mine")
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# A policy for {ENV}\n")
    for words in (f"| environment | `{ENV}` |", "| agent | `ppo` |", "| memory | `gru`, memory_size 8 |",
                  "| trained for | 816 env steps, seed 0 |", f"hadamem {hm.__version__}", "While training: mean return",
                  "`hadamem eval` after 816 steps: mean return", "4 episodes on", "drawn actions", "hm.load_policy('mine')",
                  "Observation: Discrete 4", "Action: Discrete 4", "mask of allowed actions"):
        assert words in text, words
    card = json.loads((folder / "about.json").read_text())["card"]
    assert (card["env"], card["steps"], card["agent"], card["memory"]) == (ENV, 816, "ppo", "gru")
    assert card["evaluation"]["episodes"] == 4
    assert card["scores"]["return"] == pytest.approx(run.summary()["return"])


def test_a_policy_in_memory_knows_its_run(run):
    assert make_card(run.policy)["env"] == ENV
    assert make_card(run.policy)["scores"]["steps"] == 816
    checkpoint = max((run.folder / "checkpoints").glob("0*"))
    assert make_card(load_policy(checkpoint)) == make_card(load_policy(run.folder))


def test_it_survives_copies(run, tmp_path):
    """Of a copy, without the run."""
    once = load_policy(run.folder).save(tmp_path / "a")
    twice = load_policy(once).save(tmp_path / "b")
    assert (twice / "README.md").read_text() == (once / "README.md").read_text().replace("load_policy('a')", "load_policy('b')")
    assert load_policy(twice).steps == 816


@pytest.mark.parametrize("text", [None, b"", b"\xff\xfe\x00 not UTF-8", b"<script>alert(1)</script>\n```python\nraise SystemExit\n```"])
def test_loading_does_not_need_it(run, tmp_path, text):
    folder = load_policy(run.folder).save(tmp_path / "policy")
    (folder / "README.md").unlink()
    if text is not None:
        (folder / "README.md").write_bytes(text)
    assert load_policy(folder).card["env"] == ENV
    load_policy(folder).save(folder)
    assert (folder / "README.md").read_text().startswith("# A policy for")


def test_a_foreign_card_is_only_data(run, tmp_path):
    folder = load_policy(run.folder).save(tmp_path / "policy")
    about = json.loads((folder / "about.json").read_text())
    del about["sha256"], about["sealed"]      # as older versions wrote it
    for card in ("text", None, ["a"], {}):
        (folder / "about.json").write_text(json.dumps({**about, "card": card}))
        assert load_policy(folder).card == {}
    foreign = {"env": "a | b\n<b>`x`", "scores": 3, "evaluation": {"mean": "much"}, "versions": []}
    (folder / "about.json").write_text(json.dumps({**about, "card": foreign}))
    text = (load_policy(folder).save(tmp_path / "other") / "README.md").read_text()
    assert "| environment | `a / b (b)'x'` |" in text
    assert "None are known." in text


def test_without_a_run():
    policy = Policy.of(trainer(BOX, "shm", previous_reward=True))
    text = write_readme(policy, make_card(policy), "mine")
    for words in ("# A policy with memory", "| environment | unknown |", "| trained for | unknown |", "None are known.",
                  "policy.act(obs, state, reward=reward)", "Reward of the previous step."):
        assert words in text, words
    assert "mask" not in text


def test_a_run_whose_settings_are_damaged(run, tmp_path):
    policy = load_policy(run.folder)
    policy.source = tmp_path
    (tmp_path / "config.yaml").write_text("- not a mapping")
    assert "scores" not in make_card(policy)


def test_scores_are_those_of_its_weights(tmp_path):
    """A checkpoint from before the end has neither the return at the end nor evaluations of the end."""
    from hadamem.runs.evaluations import keep

    run = hm.train(ENV, "gru", out=tmp_path / "run", quiet=True, device="cpu", total_steps=816, checkpoint_every=0.0, keep_checkpoints=9,
                   **{**TINY, "num_steps": 51})
    for steps in (408, 816, 408):
        keep(run.folder, run.config, evaluate(run.policy, ENV, episodes=steps // 100), env=ENV, env_options={}, seed=0, deterministic=False,
             steps=steps)
    assert make_card(load_policy(run.folder))["evaluation"]["episodes"] == 8
    early = next(path for path in sorted((run.folder / "checkpoints").glob("0*")) if load_policy(path).steps == 408)
    card = make_card(load_policy(early))
    assert (card["steps"], card["scores"], card["evaluation"]["episodes"]) == (408, {}, 4)
