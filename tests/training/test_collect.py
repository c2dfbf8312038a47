"""Rollouts of envs that are not well behaved."""

import gymnasium
import numpy as np
import pytest
import torch

from hadamem import envs
from hadamem.runs.config import make_config
from hadamem.training.evaluate import reset_for_evaluation
from hadamem.training.trainer import Trainer

SMALL = {"num_envs": 4, "num_steps": 20, "num_epochs": 1, "num_minibatches": 2, "memory_size": 8, "memory_output_size": 8,
         "device": "cpu", "workers": 0}


class Odd(gymnasium.Env):
    """Episodes of 7 steps. The mask of allowed actions comes in the info of steps only; `bad` rewards one step of env 0 with nan."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(4)
    made = 0

    def __init__(self, bad=False):
        self.number, self.bad = Odd.made, bad
        Odd.made += 1
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        reward = float("nan") if self.bad and self.number == 0 and self.steps == 3 else 100.0
        mask = np.array([True, self.t % 2 == 0, True, False])
        return np.full(3, self.t / 7, np.float32), reward, self.t == 7, False, {"action_mask": mask}


def trainer(**options):
    Odd.made = -1      # the first is a probe
    return Trainer(make_config(env="odd", memory="gru", **SMALL, **({"env_options": options} if options else {})), Odd)


def test_a_mask_that_comes_late_is_learnt_with():
    run = trainer()
    for _ in range(2):
        run.iteration()
        r = run.collector.rollout
        taken = r.mask.gather(2, r.action)
        assert bool(taken.all())                                                 # only allowed actions
        run.collector.draw(9)
        run.collector.collect()
        with torch.no_grad():
            dist = run.network(r.features(), r.state, r.first, r.mask).dist
        actions = run.network.actions
        assert float((actions.log_prob(dist, r.action) - actions.log_prob(r.extras["dist"], r.action)).abs().max()) < 1e-4


def test_one_bad_reward_does_not_hide_the_other_envs():
    run = trainer(bad=True)
    first, second = run.iteration(), run.iteration()
    assert first["skipped"] == 0                                                 # it counts as 0
    assert [row["bad_steps"] for row in (first, second)] == [1, 1]
    assert np.isfinite(second["return"])
    assert second["skipped"] == 0


class Blind(Odd):
    """One observation is nan, in an episode that never ends."""

    def step(self, action):
        _, *_ = super().step(action)
        self.actions = [*getattr(self, "actions", []), action]
        return np.full(3, np.nan if self.steps == 5 else 0.5, np.float32), 0.1 * self.steps, False, False, {}


def test_one_observation_that_is_not_finite_does_not_spoil_the_episode():
    run = Trainer(make_config(env="blind", memory="gru", **SMALL), Blind)
    rows = [run.iteration() for _ in range(3)]
    assert [row["bad_steps"] for row in rows] == [4, 4, 4]                       # one in every env
    assert not any(row["skipped"] for row in rows)
    assert bool(torch.isfinite(run.collector.rollout.extras["dist"]).all())


@pytest.mark.parametrize("task", ["popgym/BattleshipEasy", "popgym/ConcentrationEasy", "Wind"])
@pytest.mark.parametrize("limit", [None, 50])
def test_truncated_episodes_after_the_rollout_and_at_once(task, limit):
    """A rollout as long as the shortest truncated episode, or shorter, asks what their final observations are worth in one call."""
    settings = {**SMALL, "num_steps": 40, "memory_size": 8, "memory_output_size": 8, "previous_reward": True}
    later, now = (Trainer(make_config(env=task, memory="shm", **settings),
                          envs.make(task, num_envs=4, seed=3, **({} if limit is None else {"max_episode_steps": limit}))).collector
                  for _ in range(2))
    assert later.finals is not None
    now.finals, cut = None, 0
    for iteration in range(6):
        for collector in (later, now):
            collector.draw(iteration)
            collector.collect()
        a, b = later.rollout, now.rollout
        assert torch.equal(a.action, b.action)
        assert torch.equal(a.final["value"], b.final["value"])
        assert torch.equal(a.final["value"] != 0, a.truncated & ~a.terminated)
        cut += int(a.truncated.sum())
    assert cut >= 8


def test_a_rollout_longer_than_truncated_episodes_does_not_wait():
    for steps, waits in ((64, True), (65, False)):
        made = Trainer(make_config(env="popgym/BattleshipEasy", memory="none", **{**SMALL, "num_steps": steps}))
        assert (made.collector.finals is not None) == waits
    sac = Trainer(make_config(env="Wind", memory="none", agent="sac", num_envs=4, num_steps=20, device="cpu", replay_size=1000))
    assert sac.collector.finals is None                                          # nothing to ask for


class Masked(envs.BatchedEnv):
    single_observation_space, single_action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)
    fixed_length, episode_steps = True, 20

    def start(self, mask):
        pass

    def advance(self, action):
        over = self.elapsed >= 20
        return torch.ones(self.num_envs), over, torch.zeros_like(over)

    def observe(self):
        return torch.zeros(self.num_envs, dtype=torch.int64)

    def extra_info(self):
        return {"action_mask": torch.ones(self.num_envs, 3, dtype=torch.bool)}


def test_a_mask_of_a_batched_env_is_refused():
    run = Trainer(make_config(env="masked", memory="none", **SMALL), Masked(4))
    with pytest.raises(ValueError, match=r"cannot send info\['action_mask'\]"):
        run.iteration()


def test_dropout_is_for_learning_alone_and_depends_on_the_seed():
    settings = {**SMALL, "memory_size": 8, "memory_options": {"dropout": 0.5, "window": 32}}
    losses = []
    for other in (0, 1):                                                         # of the caller's own generator
        torch.manual_seed(other)
        run = Trainer(make_config(env="popgym/RepeatPreviousEasy", memory="gpt2", **settings))
        losses.append(run.iteration()["loss"])
        run.collector.draw(9)
        run.collector.collect()
        r, actions = run.collector.rollout, run.network.actions
        with torch.no_grad():
            dist = run.network(r.features(), r.state, r.first, r.mask).dist
        assert float((actions.log_prob(dist, r.action) - actions.log_prob(r.extras["dist"], r.action)).abs().max()) < 1e-4
    assert losses[0] == losses[1]


def test_the_critic_learns_large_returns():
    """Returns of hundreds: nothing in the default preset holds the value's gradient back."""
    run = trainer()
    run.iteration()
    before = run.network.critic[-1].weight.detach().clone()
    run.iteration()
    assert not torch.equal(before, run.network.critic[-1].weight)
    assert run.config.algorithm.vf_loss_clip is None


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    Trainer(make_config(env="TMaze", memory="shm", **SMALL))
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(("name", "preset", "steps"), [
    ("popgym/ConcentrationMedium", "popgym-release", 208), ("popgym/BattleshipHard", "popgym-fair", 144),
    ("popgym/RepeatFirstHard", "popgym-fair", 831), ("popgym/AutoencodeMedium", "default", 207)])
def test_rollouts_are_whole_episodes(name, preset, steps):
    changes = {"num_envs": 8, "device": "cpu", "memory_size": 4, "memory_output_size": 4, "memory": "none"}
    assert Trainer(make_config(preset, env=name, **changes)).steps == steps
    assert Trainer(make_config(preset, env=name, **changes), envs.make(name, num_envs=8)).steps == steps


class Noted(Odd):
    """Its observations say which seed it got."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    seen = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = float(seed or 0.0)
        return np.array([self.seen]), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.array([self.seen]), *rest


def test_runs_and_evaluations_of_neighbouring_seeds_share_no_episode():
    seeds = []
    for seed in (0, 1):
        made = Trainer(make_config(env="noted", memory="none", seed=seed, **SMALL), Noted)
        seeds += made.collector.obs[:, 0].tolist()
        for number in (0, 1):
            obs, _ = reset_for_evaluation(made.env, None, 2 * seed + number)
            seeds += obs[:, 0].tolist()
    assert len(set(seeds)) == len(seeds) == 2 * 3 * SMALL["num_envs"]
