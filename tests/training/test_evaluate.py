"""Evaluation: every episode counts once, whatever its length; confidence intervals; the same seed gives the same episodes."""

import json
import math
import warnings
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from hadamem import envs
from hadamem.runs.config import make_config
from hadamem.runs.evaluations import keep
from hadamem.runs.metrics import append_row, read_rows
from hadamem.training.evaluate import FIRST_ENV, Evaluation, check_fit, evaluate, reset_for_evaluation
from hadamem.training.policy import Policy
from hadamem.training.trainer import Trainer

from .toys import TINY, Recall


def policy_for(env, **changes):
    """An untrained policy."""
    name, given = (env, None) if isinstance(env, str) else ("given", env)
    trainer = Trainer(make_config(env=name, **{**TINY, "workers": 0 if given else None, **changes}), given)
    trainer.close()
    return Policy.of(trainer)


@pytest.fixture(scope="module")
def repeat():
    return policy_for("popgym/RepeatPreviousEasy")


class Uneven(gymnasium.Env):
    """Episodes alternate between 1 and 19 steps; the first is long if the seed is odd. Every step is rewarded with 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    number = 0

    def reset(self, *, seed=None, options=None):
        self.number = self.number + 1 if seed is None else seed
        self.length, self.t = (19 if self.number % 2 else 1), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == self.length, False, {}


@pytest.mark.parametrize(("episodes", "mean"), [(8, 10.0), (4, 10.0), (64, 10.0), (6, (4 * 10 + 1 + 19) / 6)])
def test_short_episodes_do_not_count_more_often(episodes, mean):
    """Four copies: half of them start with a long episode. The first `episodes` to end would be mostly short ones."""
    policy = policy_for(Uneven)
    batch = envs.adapt(Uneven, 4, workers=0)
    found = evaluate(policy, batch, episodes)
    assert found.episodes == episodes
    assert found.mean == pytest.approx(mean)
    assert found.returns == tuple(float(n) for n in found.lengths)
    assert found.success is None
    assert not batch.closed


def test_random_play_of_a_card_game(repeat):
    found = evaluate(repeat, "popgym/RepeatPreviousEasy", 200)
    assert set(found.lengths) == {51}
    assert found.mean == pytest.approx(-0.5, abs=0.06)      # one in four is right: 0.25 - 0.75
    assert found.ci[0] < found.mean < found.ci[1]


def test_a_seed_is_a_set_of_episodes(repeat):
    name = "popgym/RepeatPreviousEasy"
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = evaluate(repeat, name, 20, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert evaluate(repeat, name, 20, seed=3) == first
    assert evaluate(repeat, name, 20, seed=4) != first
    assert evaluate(repeat, name, 20, seed=3, deterministic=True) != first


def test_deterministic_actions_are_the_most_likely_ones(repeat):
    one, other = (evaluate(repeat, envs.make("popgym/RepeatPreviousEasy", 4), 4, deterministic=True) for _ in range(2))
    assert one == other


def test_the_episodes_were_not_trained_on(monkeypatch, repeat):
    seeds = []
    batch = envs.make("popgym/RepeatPreviousEasy", 2)
    reset = batch.reset
    monkeypatch.setattr(batch, "reset", lambda seed: seeds.append((seed, batch.first_env)) or reset(seed=seed))
    evaluate(repeat, batch, 2, seed=5)
    assert seeds == [(repeat.seed, FIRST_ENV + (5 << 20))]
    assert batch.first_env == 0


@pytest.mark.parametrize("name", ["VisualMatch", "Wind"])
def test_what_a_run_drew_once_stays(name):
    """The order of the colours and the tasks are those of the run that trained the policy; the episodes are new."""
    trained = envs.make(name, 4, seed=6)
    trained.reset()
    judged = envs.make(name, 4)
    reset_for_evaluation(judged, SimpleNamespace(seed=6), seed=0)
    once = judged.order if name == "VisualMatch" else judged.tasks
    assert torch.equal(once, trained.order if name == "VisualMatch" else trained.tasks)
    assert not torch.equal(judged.key, trained.key)


def test_success_and_callables():
    policy = policy_for(Recall)
    found = evaluate(policy, Recall, 40, env_options={"length": 6, "workers": 0})
    assert set(found.lengths) == {6}
    assert found.success == found.mean                      # the reward is 1 for a success
    assert 0 < found.success < 1
    low, high = found.success_ci
    assert low < found.success < high


def test_single_and_vector_envs_stay_open():
    policy = policy_for("CartPole-v1", workers=0)
    single = gymnasium.make("CartPole-v1")
    found = evaluate(policy, single, 3)
    assert found.episodes == 3
    single.reset()
    several = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")      # next-step mode
    found = evaluate(policy, several, 7)
    assert found.returns == tuple(float(n) for n in found.lengths)                # the step that only resets does not count
    several.reset()
    several.close()


class Forbidding(gymnasium.Env):
    """Three steps with one allowed action in each; any other action raises."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), self.info()

    def step(self, action):
        assert action == self.t
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 3, False, self.info()

    def info(self):
        return {"action_mask": np.arange(4) == self.t}


def test_forbidden_actions_are_not_taken():
    assert evaluate(policy_for(Forbidding), Forbidding, 5, env_options={"workers": 0}).returns == (3.0,) * 5


class Endless(gymnasium.Env):
    """Episodes of one step if the seed is odd, endless ones if it is even. Every step is rewarded with 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.number = self.number if seed is None else seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, bool(self.number % 2), False, {}


def test_episodes_are_truncated_at_max_steps():
    batch = envs.adapt(Endless, 4, workers=0)
    found = evaluate(policy_for(Endless), batch, 4, max_steps=7)
    assert sorted(found.returns) == [1.0, 1.0, 7.0, 7.0]
    assert (found.max_steps, found.truncated) == (7, 2)
    assert (found.summary()["max_steps"], found.summary()["truncated"]) == (7, 2)
    assert batch.max_episode_steps is None      # as it was
    batch.close()


def test_max_steps_of_built_in_envs(repeat):
    """Episodes have 51 steps: a higher limit changes nothing, and a lower limit of the env still applies."""
    name = "popgym/RepeatPreviousEasy"
    whole = evaluate(repeat, name, 3)
    assert (evaluate(repeat, name, 3, max_steps=60).returns, whole.truncated) == (whole.returns, 0)
    assert evaluate(repeat, name, 3, max_steps=51).truncated == 0      # terminated, not truncated
    short = evaluate(repeat, name, 3, max_steps=10)
    assert (short.lengths, short.truncated) == ((10,) * 3, 3)
    lower = evaluate(repeat, name, 3, max_steps=10, env_options={"max_episode_steps": 5})
    assert (lower.lengths, lower.truncated) == ((5,) * 3, 0)


def test_episodes_that_do_not_end_are_reported_once(repeat, monkeypatch):
    monkeypatch.setattr("hadamem.training.evaluate.WARN_AFTER", 0.0)
    policy, uneven = policy_for(Uneven), envs.adapt(Uneven, 2, workers=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(policy, uneven, 2, max_steps=30)
        evaluate(repeat, "popgym/RepeatPreviousEasy", 2)      # known to end
        assert not caught
        evaluate(policy, uneven, 2)
    assert ["--max-steps" in str(warning.message) for warning in caught] == [True]


@pytest.mark.parametrize("fixed_length", [True, False])
def test_report_counts_up(repeat, fixed_length):
    seen, env = [], envs.make("popgym/RepeatPreviousEasy", 2)
    env.fixed_length = fixed_length
    evaluate(repeat, env, 5, report=seen.append)
    assert seen == [2, 4, 5]


@pytest.mark.parametrize(("name", "episodes", "success"), [
    ("popgym/RepeatPreviousEasy", 8, False), ("popgym/PositionOnlyPendulumEasy", 7, False), ("TMaze", 13, True), ("Wind", 1, True),
])
@pytest.mark.parametrize("deterministic", [False, True])
def test_episodes_of_known_length_give_the_same_without_looking_at_every_step(name, episodes, success, deterministic, monkeypatch):
    """Bit for bit, with whole and partial rounds of 4 copies; until the end only numbers that a GPU need not be waited for are used."""
    policy, results = policy_for(name), []
    for fixed_length in (True, False):
        env = envs.make(name, 4)
        assert env.fixed_length
        env.fixed_length = fixed_length
        with monkeypatch.context() as patch:
            if fixed_length:
                patch.setattr("hadamem.training.evaluate._count", lambda *args: pytest.fail("played step by step"))
            results.append(evaluate(policy, env, episodes, 3, deterministic))
    assert results[0] == results[1]
    assert results[0].episodes == episodes
    assert (results[0].success is not None) == success


@pytest.mark.parametrize("options", [{"max_episode_steps": 9}, {"autoreset_mode": "next_step"}])
def test_a_limit_or_another_way_to_reset_is_seen(repeat, options):
    found = evaluate(repeat, envs.make("popgym/RepeatPreviousEasy", 2, **options), 5)
    assert set(found.lengths) == {options.get("max_episode_steps", 51)}


@pytest.mark.parametrize(("options", "words"), [
    ({"episodes": 0}, "episodes must be at least 1"), ({"max_steps": 0}, "max_steps must be at least 1"),
    ({"seed": -1}, "seed must be in"), ({"seed": 1 << 30}, "seed must be in"),
])
def test_bad_input(options, words, repeat):
    with pytest.raises(ValueError, match=words):
        evaluate(repeat, "popgym/RepeatPreviousEasy", **options)


def test_envs_without_autoreset_are_refused(repeat):
    with pytest.raises(ValueError, match="must reset itself"):
        evaluate(repeat, envs.make("popgym/RepeatPreviousEasy", 2, autoreset_mode="disabled"), 2)
    with pytest.raises(TypeError, match="env_options"):
        evaluate(repeat, envs.make("popgym/RepeatPreviousEasy", 2), 2, env_options={"k": 3})


@pytest.mark.parametrize(("obs", "action", "fits"), [
    (spaces.Discrete(4), spaces.Discrete(4), True), (spaces.Discrete(5), spaces.Discrete(4), False),
    (spaces.Discrete(4, start=1), spaces.Discrete(4), False), (spaces.Discrete(4), spaces.Discrete(2), False),
    (spaces.Box(0, 1, (2,)), spaces.Discrete(4), False),
])
def test_only_envs_that_fit_the_policy(repeat, obs, action, fits):
    env = SimpleNamespace(single_observation_space=obs, single_action_space=action)
    if fits:
        check_fit(repeat, env)
        return
    kind, theirs = ("actions", action) if obs == repeat.observation_space else ("observations", obs)
    with pytest.raises(ValueError, match=rf"env's {kind} do not fit") as caught:
        check_fit(repeat, env)
    assert str(theirs) in str(caught.value)
    assert "Discrete(4)" in str(caught.value)


def test_what_may_differ_between_spaces():
    """Bounds of a Box, but not its shape, not whether it is an image, and no entry of a dict or tuple."""
    box, image = spaces.Box(0, 1, (2, 2, 3)), spaces.Box(0, 255, (2, 2, 3), np.uint8)

    def fits(mine, theirs):
        policy = SimpleNamespace(observation_space=mine, action_space=spaces.Discrete(2))
        try:
            check_fit(policy, SimpleNamespace(single_observation_space=theirs, single_action_space=spaces.Discrete(2)))
        except ValueError:
            return False
        return True

    for wrap in (lambda x: x, lambda x: spaces.Dict({"a": x, "b": spaces.Discrete(3)}), lambda x: spaces.Tuple((spaces.Discrete(3), x))):
        assert fits(wrap(box), wrap(spaces.Box(-5, 9, (2, 2, 3), np.float64)))
        assert not fits(wrap(box), wrap(image))
        assert not fits(wrap(box), wrap(spaces.Box(0, 1, (2, 2))))
    assert not fits(spaces.Dict({"a": box}), spaces.Dict({"b": box}))
    assert not fits(spaces.Tuple((box,)), spaces.Tuple((box, box)))


# --- saved evaluations ---------------------------------------------------------------------------------------------


def save(folder, mean=1.0, **changes):
    config = make_config(env="TMaze", env_options={"length": 5})
    facts = {"env": "TMaze", "env_options": {"length": 5}, "seed": 0, "deterministic": False, "steps": 128, **changes}
    return [path.name for path in keep(folder, config, Evaluation((mean,), (3,)), **facts)]


def test_every_evaluation_is_saved(tmp_path):
    def newest():
        return json.loads((tmp_path / "eval.json").read_text())["mean"]

    assert save(tmp_path, 1.0) == ["eval.json", "evaluations.jsonl"]
    assert save(tmp_path, 2.0, env_options={"length": 6}) == ["evaluations.jsonl"]
    assert save(tmp_path, 3.0, env="VisualMatch", env_options={}) == ["evaluations.jsonl"]
    assert newest() == 1.0
    save(tmp_path, 4.0, seed=2, deterministic=True, steps=256)
    assert newest() == 4.0
    rows = read_rows(tmp_path / "evaluations.jsonl")
    assert [row["mean"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    assert rows[1]["env_options"] == {"length": 6}
    assert {name: rows[3][name] for name in ("env", "seed", "deterministic", "steps", "episodes", "returns")} == {
        "env": "TMaze", "seed": 2, "deterministic": True, "steps": 256, "episodes": 1, "returns": [4.0]}
    assert all(row["date"].endswith("+00:00") for row in rows)


def test_a_half_written_row_does_not_damage_the_next(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, {"a": 1})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole + whole[:cut])
        append_row(path, {"a": 2})
        rows = read_rows(path)
        assert (rows[0], rows[-1]) == ({"a": 1}, {"a": 2})
        assert path.read_bytes().startswith(whole)


# --- statistics ----------------------------------------------------------------------------------------------------


def test_numbers_of_an_evaluation():
    found = Evaluation((1.0, 2.0, 3.0, 6.0), (5, 5, 6, 8), (True, False, True, True))
    std = math.sqrt(14 / 3)
    assert (found.mean, found.std) == (3.0, pytest.approx(std))
    half_width = 3.182446305 * std / 2
    assert found.ci == pytest.approx((3 - half_width, 3 + half_width))
    summary = found.summary()
    assert (summary["min"], summary["median"], summary["max"], summary["length"], summary["success"]) == (1.0, 2.5, 6.0, 6.0, 0.75)
    assert json.loads(json.dumps(summary, allow_nan=False))["returns"] == [1.0, 2.0, 3.0, 6.0]


def test_one_episode_has_no_standard_deviation():
    found = Evaluation((1.5,), (3,))
    assert (found.mean, found.std, found.ci, found.success, found.success_ci) == (1.5, None, None, None, None)
    json.dumps(found.summary(), allow_nan=False)


def test_the_interval_holds_the_truth_nineteen_times_in_twenty():
    draws = np.random.default_rng(0).normal(2.0, 3.0, size=(2000, 8))
    inside = [low < 2.0 < high for low, high in (Evaluation(tuple(row), (1,) * 8).ci for row in draws.tolist())]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)
