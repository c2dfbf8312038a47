"""The contract of batched envs, checked for every task."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from hadamem import envs
from hadamem.envs import trees

NAMES = envs.list_envs()


def make(name, num_envs=3, **options):
    return envs.make(name, num_envs=num_envs, **options)


def actions(env, steps, seed=0):
    """Random actions [steps, N, ...] within the action space."""
    rng, space = np.random.default_rng(seed), env.single_action_space
    shape = (steps, env.num_envs, *space.shape)
    if isinstance(space, Box):
        return torch.as_tensor(rng.uniform(space.low, space.high, size=shape).astype(np.float32))
    return torch.as_tensor(rng.integers(space.nvec if hasattr(space, "nvec") else space.n, size=shape))


def flat(tree):
    if isinstance(tree, dict):
        return [x for key in sorted(tree) for x in flat(tree[key])]
    return [x for part in tree for x in flat(part)] if isinstance(tree, tuple) else [tree]


def assert_same(a, b, what=""):
    for x, y in zip(flat(a), flat(b), strict=True):
        assert torch.equal(x, y) or (x.is_floating_point() and torch.equal(x.nan_to_num(), y.nan_to_num())), what


def play(env, plan, seed=5):
    """Observations, rewards, terminated and truncated of a whole run."""
    out = [env.reset(seed=seed)[0]]
    for action in plan:
        obs, reward, terminated, truncated, _ = env.step(action)
        out.append((obs, reward, terminated, truncated))
    return out


def long_enough(env):
    """Enough steps to reach the end of an episode, but at most 330."""
    return min((env.episode_steps or 300) + 20, 330)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_episodes(name):
    env = make(name)
    plan = actions(env, long_enough(env))
    first = play(env, plan)
    assert_same(tuple(first), tuple(play(env, plan)), "a second run of the same env")
    assert_same(tuple(first), tuple(play(make(name), plan)), "a new env")
    other = play(env, plan, seed=6)
    assert not all(torch.equal(a, b) for a, b in zip(flat(tuple(first)), flat(tuple(other)), strict=True)), "another seed, the same run"


@pytest.mark.parametrize("name", NAMES)
def test_batch_equals_singles(name):
    env = make(name, num_envs=4)
    plan = actions(env, long_enough(env))
    batch = play(env, plan)
    for i in range(4):
        alone = play(make(name, num_envs=1, first_env=i), plan[:, i:i + 1])
        assert_same(trees.apply(lambda x, i=i: x[i:i + 1], tuple(batch)), tuple(alone), f"env {i}")
    seeds = [9, 4, 9, 123456789]
    batch = play(env, plan, seed=seeds)
    for i, seed in enumerate(seeds):
        alone = play(make(name, num_envs=1), plan[:, i:i + 1], seed=seed)
        assert_same(trees.apply(lambda x, i=i: x[i:i + 1], tuple(batch)), tuple(alone), f"seed {seed}")


@pytest.mark.parametrize("name", NAMES)
def test_spaces_contain_all_observations(name):
    env = make(name)
    plan = actions(env, long_enough(env))
    space = env.single_observation_space

    def contained(obs):
        for i in range(env.num_envs):
            one = trees.apply(lambda x, i=i: x[i].numpy() if x[i].ndim else x[i].numpy()[()], obs)
            assert space.contains(one), (one, space)

    contained(env.reset(seed=1)[0])
    for action in plan[::3]:
        obs, reward, terminated, truncated, info = env.step(action)
        contained(obs)
        contained(info["final_obs"])
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert reward.is_floating_point()
        assert terminated.dtype == truncated.dtype == info["_final_obs"].dtype == torch.bool
        assert torch.equal(info["_final_obs"], terminated | truncated)
        assert env.single_action_space == make(name).single_action_space


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_can_be_restored(name):
    """A state saved in mid-episode and restored in another env continues the same; saving changes nothing."""
    env = make(name)
    plan = actions(env, long_enough(env) + 7)
    env.reset(seed=3)
    for action in plan[:7]:
        env.step(action)
    state = env.get_state()
    rest = [env.step(action)[:4] for action in plan[7:]]
    again = make(name, seed=99)
    again.set_state(state)
    assert_same(tuple(rest), tuple(again.step(action)[:4] for action in plan[7:]), "restored")
    with pytest.raises(ValueError, match="state"):
        make(name, num_envs=2).set_state(state)


@pytest.mark.parametrize("name", NAMES)
def test_autoreset_modes_agree(name):
    """The same episodes in every mode; only the resets come at different steps."""
    same, disabled, later = (make(name, num_envs=2, autoreset_mode=m) for m in ("same_step", "disabled", "next_step"))
    plan = actions(same, long_enough(same))
    obs_same, _ = same.reset(seed=8)
    obs, _ = disabled.reset(seed=8)
    assert_same(obs, obs_same)
    for action in plan:
        assert torch.equal(same.started, disabled.started)
        obs_same, reward_same, *ends_same, info = same.step(action)
        obs, reward, *ends, _ = disabled.step(action)
        assert_same((obs, reward, *ends), (info["final_obs"], reward_same, *ends_same))
        done = ends[0] | ends[1]
        if done.any():
            obs, _ = disabled.reset(options={"reset_mask": done})
        assert_same(obs, obs_same)
    # Next step, env by env: drop the resetting steps and the two streams of observations are equal.
    env = make(name, num_envs=1, seed=8, first_env=1)
    want = play(env, plan[:, 1:], seed=8)
    later = make(name, num_envs=1, first_env=1, autoreset_mode="next_step")
    obs, _ = later.reset(seed=8)
    assert_same(obs, want[0])
    for i, action in enumerate(plan[:, 1:]):
        obs, reward, terminated, truncated, _ = later.step(action)
        assert_same((reward, terminated, truncated), want[i + 1][1:])
        assert not later.started.any()
        if terminated | truncated:
            obs, reward, terminated, truncated, _ = later.step(action)
            assert not (terminated | truncated).any()
            assert float(reward) == 0
            assert later.started.all()
        assert_same(obs, want[i + 1][0])


@pytest.mark.parametrize("name", NAMES)
def test_lengths_and_ends_are_as_declared(name):
    env = make(name)
    plan = actions(env, long_enough(env))
    env.reset(seed=1)
    since = torch.zeros(3)
    for action in plan:
        *_, terminated, truncated, _ = env.step(action)
        since += 1
        done = terminated | truncated
        assert env.truncates or not truncated.any()
        if env.episode_steps is not None:
            assert (since <= env.episode_steps).all()
        if env.fixed_length:
            assert torch.equal(done, since == env.episode_steps)
        assert not (truncated & (since < env.least_truncated)).any()
        since[done] = 0


@pytest.mark.parametrize("name", NAMES)
def test_time_limit_truncates(name):
    env = make(name, max_episode_steps=3)
    plan = actions(env, 9)
    env.reset(seed=0)
    for t, action in enumerate(plan, 1):
        *_, terminated, truncated, _ = env.step(action)
        if not terminated.any():
            assert truncated.all() == (t % 3 == 0)
        else:
            break


@pytest.mark.parametrize("name", NAMES)
def test_resetting_some_envs_does_not_change_the_others(name):
    env, other = make(name), make(name)
    plan = actions(env, 12)
    env.reset(seed=2)
    other.reset(seed=2)
    for action in plan[:5]:
        env.step(action)
        other.step(action)
    before = env.get_state()
    env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    for name_, value in env.get_state().items():      # the whole state, spare layouts included
        assert torch.equal(value[::2], before[name_][::2]), name_
    assert bool(env.started[1])
    for action in plan[5:]:
        a, b = env.step(action), other.step(action)
        assert_same(trees.apply(lambda x: x[::2], a[:4]), trees.apply(lambda x: x[::2], b[:4]))


@pytest.mark.parametrize("name", NAMES)
def test_bad_calls_say_what_is_wrong(name):
    env = make(name, validate=True)
    good = actions(env, 1)[0]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(good)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(good[:2])
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"colour": 1})
    with pytest.raises(ValueError, match="seed"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="seed"):
        env.reset(seed=-1)
    if isinstance(env.single_action_space, Box):
        with pytest.raises(ValueError, match="action of env 1"):
            env.step(good.index_fill(0, torch.tensor([1]), float("nan")))
    else:
        with pytest.raises(ValueError, match="action of env 1"):
            env.step(good.index_fill(0, torch.tensor([1]), 10_000))
        with pytest.raises(TypeError, match="whole numbers"):
            env.step(good.float())
    with pytest.raises(ValueError, match="num_envs"):
        make(name, num_envs=0)
    with pytest.raises(ValueError, match="autoreset_mode"):
        make(name, autoreset_mode="sometimes")


@pytest.mark.parametrize("name", NAMES)
def test_the_state_holds_no_autograd_graph_of_the_actions(name):
    env = make(name)
    if isinstance(env.single_action_space, Box):
        action = actions(env, 1)[0].requires_grad_()
        env.reset(seed=0)
        obs, reward, *_ = env.step(action)
        assert not any(x.requires_grad for x in (*flat(obs), reward, *env.get_state().values()))


@pytest.mark.parametrize("name", NAMES)
def test_rewards_have_their_declared_dtype(name):
    env = make(name)
    plan = actions(env, 1)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        env.reset(seed=0)
        assert env.step(plan[0])[1].dtype == torch.float32
    finally:
        torch.set_default_dtype(default)


def test_a_layout_changes_only_the_envs_that_are_reset():
    env = make("popgym/RepeatPreviousEasy")
    env.reset(seed=0)
    for action in actions(env, 5):
        env.step(action)
    before, deck = env.get_state(), env.ordered.repeat(3, 1)
    env.reset(options={"reset_mask": torch.tensor([False, True, False]), "layout": {"deck": deck}})
    assert torch.equal(env.deck[1], env.ordered)
    for name, value in env.get_state().items():
        assert torch.equal(value[::2], before[name][::2]), name
    before = env.get_state()
    with pytest.raises(ValueError, match="other cards"):
        env.reset(options={"layout": {"deck": torch.full_like(deck, 3)}})
    for name, value in env.get_state().items():
        assert torch.equal(value, before[name]), f"{name} after a layout that was refused"
    with pytest.raises(ValueError, match="layout must hold"):
        env.reset(options={"layout": {}})
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(seed=1, options={"reset_mask": torch.tensor([False, True, False])})


def test_unknown_names_get_a_hint():
    with pytest.raises(ValueError, match="popgym/AutoencodeEasy"):
        envs.make("popgym/AutoencodEasy")
    with pytest.raises(TypeError, match="popgym/AutoencodeEasy"):
        envs.make("popgym/AutoencodeEasy", deck=3)


def test_later_results_do_not_overwrite_earlier_ones():
    for name in NAMES:
        env = make(name)
        plan = actions(env, 6)
        obs, _ = env.reset(seed=0)
        copies = [(obs, trees.apply(torch.clone, obs))]
        for action in plan:
            result = env.step(action)[:4]
            copies.append((result, trees.apply(torch.clone, result)))
        for kept, copy in copies:
            assert_same(kept, copy, name)
