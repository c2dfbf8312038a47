"""Evaluation while training: it happens when it should, it leaves the training alone, and a resumed run has the same evaluations."""

import gymnasium
import numpy as np
import pytest
import torch

import hadamem as hm
from hadamem import envs, states
from hadamem.envs import EnvError, trees
from hadamem.runs.config import make_config
from hadamem.runs.metrics import TIMES
from hadamem.training.evaluate import evaluate
from hadamem.training.evaluating import FIRST_SEED, Evaluator, GraphedPlay
from hadamem.training.loop import train
from hadamem.training.run import open_run
from hadamem.training.trainer import Trainer

from .toys import BATCH, TINY, Recall

EVAL = {"eval_every": 2 * BATCH, "eval_episodes": 5}


def settings(iterations=5, env="TMaze", memory="shm", **changes):
    return make_config(env=env, memory=memory, steps=iterations * BATCH, device="cpu", **{**TINY, **changes})


def training(rows):
    """What is learned: rows without evaluations and times."""
    return [{name: x for name, x in row.items() if name not in TIMES and not name.startswith("eval_")} for row in rows]


def evaluations(rows):
    """The evaluations by iteration, without times."""
    found = {row["iteration"]: {name: x for name, x in row.items() if name.startswith("eval_") and name not in TIMES} for row in rows}
    return {iteration: row for iteration, row in found.items() if row}


# --- when, and what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "iterations"), [
    (0, []), (1, [1, 2, 3, 4, 5]), (BATCH, [1, 2, 3, 4, 5]), (2 * BATCH, [2, 4, 5]), (2 * BATCH + 1, [3, 5]), (10 ** 9, [5])])
def test_evaluated_after_the_iteration_that_passes_a_multiple_and_at_the_end(every, iterations):
    assert list(evaluations(train(settings(memory="none", eval_every=every, eval_episodes=2)).metrics)) == iterations


def test_a_row_and_the_summary():
    run = train(settings(**EVAL))
    row, summary = run.metrics[-1], run.summary()
    assert {"eval_return", "eval_return_std", "eval_success", "eval_length", "eval_episodes", "eval_seconds"} <= set(row)
    assert (row["eval_episodes"], row["eval_length"]) == (5, envs.make("TMaze").episode_steps)
    assert 0 < row["eval_seconds"] < row["elapsed"]
    seed = FIRST_SEED + row["iteration"]
    alone = evaluate(run.policy, envs.make("TMaze", 5), 5, seed, deterministic=True)
    assert (alone.mean, alone.std, alone.success) == (row["eval_return"], row["eval_return_std"], row["eval_success"])
    assert all(summary[name] == row[name] for name in ("eval_return", "eval_success"))
    assert summary["eval_steps"] == row["steps"]
    assert summary["best_eval_return"] == max(row["eval_return"] for row in run.metrics if "eval_return" in row)
    assert "eval_return" not in train(settings(1)).summary()
    assert "eval_return_std" not in train(settings(1, eval_every=1, eval_episodes=1)).metrics[-1]


@pytest.mark.parametrize(("env", "memory", "options"), [
    ("TMaze", "shm", {}), ("popgym/RepeatPreviousEasy", "gpt2", {}), ("popgym/BattleshipEasy", "gru", {}),
    ("Wind", "ffm", {"previous_reward": True, "eval_env_options": {"tasks": "eval", "cycle": True}})])
def test_steps_in_place_are_the_same_episodes(env, memory, options):
    """On a GPU a step is a CUDA graph: what it reads must stay where it is, from one evaluation to the next."""

    def evaluations_of_a_run(graphed):
        evaluator = Evaluator(trainer := Trainer(settings(env=env, memory=memory, **EVAL, **options)))
        inner, rows, places = evaluator.env.unwrapped, [], []
        assert evaluator.graphed is None      # on a CPU
        if graphed:
            evaluator.graphed = GraphedPlay(evaluator.policy, evaluator.env)
        for _ in range(3):
            trainer.iteration()
            rows.append({name: x for name, x in evaluator.evaluate().items() if name not in TIMES})
            held = [*trainer.network.state_dict().values(), *(getattr(inner, name) for name in inner.get_state())]
            if graphed:
                now = evaluator.graphed.now
                held += [now.reward, now.first, *states.tensors(now.state), *trees.leaves(now.obs)]
            places.append([x.data_ptr() for x in held])
        evaluator.close()
        assert places[0] == places[1] == places[2]
        return rows

    assert evaluations_of_a_run(graphed=True) == evaluations_of_a_run(graphed=False)


def test_sampled_actions_and_other_episodes_each_time():
    config = settings(2, "popgym/RepeatPreviousEasy", eval_every=1, eval_deterministic=False, learning_rate=1e-12)
    first, second = evaluations(train(config).metrics).values()
    assert first["eval_return_std"] != second["eval_return_std"]      # the policy stayed the same; means of 20 returns may agree by chance
    assert "eval_success" not in first


def test_the_evaluation_env_has_its_own_options():
    config = settings(1, env_options={"corridor": 4}, eval_every=1, eval_env_options={"corridor": 9})
    run = train(config)
    assert run.metrics[0]["eval_length"] == envs.make("TMaze", corridor=9).episode_steps


def test_held_out_tasks():
    trainer = Trainer(settings(1, "Wind", eval_every=1, eval_episodes=300, eval_env_options={"tasks": "eval", "cycle": True}))
    evaluator = Evaluator(trainer)
    evaluator.evaluate()
    assert evaluator.env.num_envs == 256
    seen, held_out = trainer.env.tasks[0], evaluator.env.tasks[0]
    assert (len(seen), len(held_out)) == (50, 150)
    assert not (seen[:, None] == held_out).all(-1).any()
    both = envs.make("Wind", 1, tasks="all")
    both.reset(seed=trainer.config.seed)
    assert torch.equal(held_out, both.tasks[0][50:])
    evaluator.close()
    trainer.close()


# --- the training stays as it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "memory", "changes"), [
    ("TMaze", "shm", {}), ("popgym/PositionOnlyPendulumEasy", "gru", {"eval_deterministic": False}),
    ("popgym/BattleshipEasy", "shm-paper", {"eval_deterministic": False}),      # episodes of any length
])
def test_training_is_the_same_bit_for_bit_with_and_without(env, memory, changes):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    without = train(settings(4, env, memory))
    evaluated = train(settings(4, env, memory, **{**EVAL, **changes}))
    assert torch.equal(before, torch.get_rng_state())
    assert evaluations(evaluated.metrics)
    assert training(without.metrics) == training(evaluated.metrics)
    for a, b in zip(without.policy.network.state_dict().values(), evaluated.policy.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


class Careless(hm.agents.AGENTS["ppo"]):
    """Draws from torch's default generator whenever it acts and learns."""

    section = "careless"

    def act(self, features, state, first, mask=None, noise=None):
        acted = super().act(features, state, first, mask, noise)
        return acted._replace(action=torch.randint_like(acted.action, 2))

    def learn(self, *args):
        return {**super().learn(*args), "draw": torch.rand(())}


def test_random_numbers_of_torch_itself_are_left_alone_too():
    rows = []
    for seed, changes in ((7, {}), (7, EVAL), (8, EVAL)):
        torch.manual_seed(seed)
        rows.append(train(settings(4, agent=f"{__name__}:Careless", **changes)).metrics)
    assert training(rows[0]) == training(rows[1]) != training(rows[2])
    assert evaluations(rows[1]) == evaluations(rows[2])      # the actions do not depend on what was learned


@pytest.mark.parametrize(("env", "changes"), [("TMaze", {}), ("popgym/RepeatPreviousEasy", {"eval_deterministic": False})])
def test_a_resumed_run_has_the_same_evaluations(tmp_path, env, changes):
    config = settings(6, env, **{**EVAL, **changes})
    train(config, tmp_path / "whole")
    for stop in (2, 3):
        folder = tmp_path / f"stopped-{stop}"
        left = iter([False] * (stop - 1) + [True])
        assert train(config, folder, should_stop=lambda left=left: next(left)).status == "interrupted"
        torch.rand(3)
        train(config, folder, resume=True)
        whole, resumed = open_run(tmp_path / "whole").metrics, open_run(folder).metrics
        assert list(evaluations(whole)) == [2, 4, 6]
        assert evaluations(whole) == evaluations(resumed)
        assert training(whole) == training(resumed)


def test_how_to_evaluate_may_change_on_resume(tmp_path):
    left = iter([False, True])
    train(settings(4, eval_every=BATCH, eval_episodes=2), tmp_path, should_stop=lambda: next(left))
    other = {"eval_every": 2 * BATCH, "eval_episodes": 3, "eval_env_options": {"corridor": 5}, "eval_deterministic": False}
    train(settings(4, **other), tmp_path, resume=True)
    assert {i: row["eval_episodes"] for i, row in evaluations(open_run(tmp_path).metrics).items()} == {1: 2, 2: 2, 4: 3}


# --- envs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_gymnasium_env_has_few_copies_of_its_own(workers, monkeypatch):
    made = []
    adapt = envs.adapt
    monkeypatch.setattr(envs, "adapt", lambda *args, **options: made.append((adapt(*args, **options), options)) or made[-1][0])
    run = hm.train(Recall, "gru", steps=2 * BATCH, quiet=True, **TINY, workers=workers, eval_every=1, eval_episodes=20,
                   eval_env_options={"length": 6})
    batched, options = made[-1]
    assert (options["num_envs"], options["workers"], options["length"]) == (8, workers, 6)
    assert batched.closed
    assert [row["eval_length"] for row in run.metrics] == [6, 6]
    assert all(row["eval_success"] == row["eval_return"] for row in run.metrics)


def test_an_env_that_exists_cannot_be_copied(tmp_path):
    words = "eval_every is 10, but env exists already.* pass its name, its class or a function that makes it, or set eval_every to 0"
    live = envs.make("TMaze", 8)
    with pytest.raises(ValueError, match=words):
        train(settings(eval_every=10), tmp_path / "x", env=live)
    with pytest.raises(ValueError, match=words):
        hm.train(gymnasium.make("CartPole-v1"), "gru", steps=2048, quiet=True, eval_every=10)
    assert not live.closed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "words"), [
    ({"colour": 1}, r"eval_env_options \{'colour': 1\}: TMaze has no option 'colour'"), ({"corridor": 0}, "eval_env_options .* corridor"),
    ({"autoreset_mode": "disabled"}, "must reset itself"),
])
def test_bad_options_are_found_before_the_training(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        train(settings(eval_every=10 ** 9, eval_env_options=options), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_env_of_another_shape_is_found_before_the_training():
    with pytest.raises(ValueError, match="env's observations do not fit"):
        hm.train(Shaped, "gru", steps=BATCH, quiet=True, **TINY, workers=0, eval_every=1, eval_env_options={"size": 3})


class Shaped(gymnasium.Env):
    """Observations of a size that is an option."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=2):
        self.observation_space = gymnasium.spaces.Box(0, 1, (size,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 1.0, True, False, {}


def test_an_evaluation_that_fails_costs_no_iteration(tmp_path):
    with pytest.raises(EnvError, match="the cue fell off the table"):
        hm.train(Recall, "gru", steps=4 * BATCH, out=tmp_path / "run", quiet=True, **TINY, workers=0, eval_every=2 * BATCH,
                 eval_env_options={"fails_after": 3})
    run = open_run(tmp_path / "run")
    assert (run.status, [row["iteration"] for row in run.metrics]) == ("failed", [1, 2])
    assert run.policy.steps == 2 * BATCH
