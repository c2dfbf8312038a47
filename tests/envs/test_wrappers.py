"""Wrappers: the same observations as POPGym's wrappers and Gymnasium's flatten, in every autoreset mode."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from hadamem import envs
from hadamem.envs import trees, wrappers
from hadamem.envs.base import BatchedEnv
from hadamem.envs.registry import TASKS

from ..cuda_graphs import captured

MIXED = spaces.Dict({
    "picture": spaces.Box(0, 255, (2, 3, 3), np.uint8),
    "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 4, 3], start=[0, 5, 1]))),
    "bits": spaces.MultiBinary([2, 2]),
    "grid": spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "wide": spaces.Box(-np.inf, np.inf, (2,), np.float64),
})


class Echo(BatchedEnv):
    """Shows samples of any observation space; an episode lasts `length` steps. `acted` is the last action."""

    def __init__(self, num_envs=1, *, observations, actions, length=3, **options):
        super().__init__(num_envs, **options)
        self.single_observation_space, self.single_action_space, self.length = observations, actions, length
        observations.seed(0)

    def start(self, mask):
        pass

    def advance(self, action):
        self.acted = action
        over = self.elapsed >= self.length
        return torch.zeros(self.num_envs), over, torch.zeros_like(over)

    def observe(self):
        space = self.single_observation_space
        batch = concatenate(space, [space.sample() for _ in range(self.num_envs)], create_empty_array(space, self.num_envs))
        return trees.apply(torch.as_tensor, batch)


def arrays(tree):
    return trees.apply(lambda x: x.numpy(), tree)


def rows(env, obs):
    """The observation of each env, as in Gymnasium."""
    return list(iterate(batch_space(env.single_observation_space, env.num_envs), arrays(obs)))


def flat(space, row):
    return spaces.utils.flatten(space, row).astype(np.float32)


# --- against POPGym ------------------------------------------------------------------------------------------------


def popgym_oracle(name):
    theirs = pytest.importorskip("popgym.wrappers", reason="popgym is the judge of these wrappers: pip install popgym==1.0.7")
    return gymnasium.make(f"popgym-{name}-v0").unwrapped, theirs


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "AutoencodeEasy"])
def test_same_as_popgym(name):
    """PreviousAction, Antialias, Flatten; step by step, over the end of an episode."""
    n = 4
    oracles = []
    for _ in range(n):
        oracle, theirs = popgym_oracle(name)
        oracles.append(theirs.Antialias(theirs.PreviousAction(oracle)))
    firsts = [o.reset(seed=i)[0] for i, o in enumerate(oracles)]
    deck = np.stack([o.unwrapped.deck.suits_idx[o.unwrapped.deck.idx[::-1]] for o in oracles])
    bare = envs.make(f"popgym/{name}", num_envs=n)
    tree = envs.FirstStep(envs.PreviousAction(bare))
    env = envs.Features(tree)
    space = oracles[0].observation_space
    assert tree.single_observation_space == space
    np.testing.assert_array_equal(env.single_observation_space.low, spaces.utils.flatten_space(space).low)

    def same(features, want):
        np.testing.assert_array_equal(features.numpy(), np.stack([flat(space, w) for w in want]))
        assert features.dtype == torch.float32

    obs, _ = env.reset(options={"layout": {"deck": deck}})
    same(obs, firsts)
    rng, over = np.random.default_rng(0), False
    while not over:
        action = rng.integers(4, size=n)
        obs, _, terminated, _, info = env.step(action)
        results = [o.step(int(a)) for o, a in zip(oracles, action, strict=True)]
        same(info["final_obs"], [r[0] for r in results])
        over = bool(terminated.all())
        assert over == results[0][2]
        if not over:
            same(obs, [r[0] for r in results])
    again = obs.numpy()       # of the next episode: the null action (one-hot 0) and the flag, one-hot [0, 1]
    np.testing.assert_array_equal(again[:, -6:], np.tile([1, 0, 0, 0, 0, 1], (n, 1)))


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "AutoencodeEasy"])
def test_popgym_flatten(name):
    oracle, theirs = popgym_oracle(name)
    oracle = theirs.Flatten(theirs.PreviousAction(oracle))
    first, _ = oracle.reset(seed=3)
    deck = oracle.unwrapped.deck.suits_idx[oracle.unwrapped.deck.idx[::-1]]
    env = envs.wrap(envs.make(f"popgym/{name}"), first_step=False)
    obs, _ = env.reset(options={"layout": {"deck": deck[None]}})
    np.testing.assert_array_equal(obs[0].numpy(), first.astype(np.float32))
    for action in (1, 0, 3, 2):
        obs, *_ = env.step([action])
        np.testing.assert_array_equal(obs[0].numpy(), oracle.step(action)[0].astype(np.float32))


SIZES = {"Autoencode": ((6, 6, 6), (12, 12, 12)), "Battleship": ((2, 2, 2), (20, 24, 28)),
         "Concentration": ((156, 312, 728), (210, 418, 782)), "RepeatPrevious": ((4, 4, 4), (10, 10, 10))}


@pytest.mark.parametrize("family", SIZES)
def test_sizes(family):
    for level, bare, full in zip(("Easy", "Medium", "Hard"), *SIZES[family], strict=True):
        name = f"popgym/{family}{level}"
        assert envs.wrap(envs.make(name), previous_action=False, first_step=False).single_observation_space.shape == (bare,)
        assert envs.wrap(envs.make(name)).single_observation_space.shape == (full,)
        assert envs.wrap(envs.make(name), features=False).observation_space is not None


# --- all tasks, all modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_wrapped(name):
    env = envs.wrap(envs.make(name, num_envs=3, seed=1, max_episode_steps=3))
    tree = env.env
    obs, _ = env.reset()
    env.action_space.seed(0)
    for _ in range(5):
        assert all(row in env.single_observation_space for row in obs.numpy())
        state = env.get_state()
        again = tree.set_state(state)
        want = np.stack([flat(tree.single_observation_space, row) for row in rows(tree, again)])
        np.testing.assert_array_equal(obs.numpy(), want)
        obs, *_, info = env.step(env.action_space.sample())
        assert info["final_obs"].shape == obs.shape


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_first_and_last_observations_of_episodes(mode):
    """Compared with a plain version of the rules, with episodes of different lengths in one batch."""
    bare = Echo(2, observations=spaces.Discrete(5), actions=spaces.Discrete(4), length=3, autoreset_mode=mode)
    env = envs.FirstStep(envs.PreviousAction(bare))
    (_, action, first), _ = env.reset()
    assert (action.tolist(), first.tolist()) == ([0, 0], [1, 1])
    env.step([2, 3])
    (_, action, first), _ = env.reset(options={"reset_mask": [False, True]})          # env 0 continues and keeps its action
    assert (action.tolist(), first.tolist()) == ([2, 0], [0, 1])
    (_, action, first), *_ = env.step([3, 1])
    assert (action.tolist(), first.tolist()) == ([3, 1], [0, 0])
    (_, action, first), _, terminated, _, info = env.step(torch.tensor([1, 2]))
    assert terminated.tolist() == [True, False]
    if mode == "same_step":
        assert (action.tolist(), first.tolist()) == ([0, 2], [1, 0])
        _, action, first = info["final_obs"]
    assert (action.tolist(), first.tolist()) == ([1, 2], [0, 0])
    if mode == "next_step":
        (_, action, first), *_ = env.step([3, 3])
        assert (action.tolist(), first.tolist()) == ([0, 3], [1, 0])


def test_state_round_trip():
    env = envs.wrap(envs.make("popgym/RepeatPreviousEasy", num_envs=3, seed=0))
    env.reset()
    for i in range(60):
        state = env.get_state()
        obs, reward, *_ = env.step([i % 4, 1, 2])
    twin = envs.wrap(envs.make("popgym/RepeatPreviousEasy", num_envs=3))
    twin.set_state(state)
    again, reward_again, *_ = twin.step([59 % 4, 1, 2])
    assert torch.equal(obs, again)
    assert torch.equal(reward, reward_again)
    assert torch.equal(twin.set_state(env.get_state()), obs)        # shows the previous action of the saved env
    with pytest.raises(ValueError, match="without the PreviousAction wrapper"):
        twin.set_state(envs.make("popgym/RepeatPreviousEasy", num_envs=3).get_state())


def test_tensors_are_new_ones():
    env = envs.PreviousAction(envs.make("popgym/RepeatPreviousEasy", num_envs=2, seed=0))
    env.reset()
    action = torch.tensor([1, 2])
    obs, *_, info = env.step(action)
    action.fill_(3)
    env.step(action)
    assert obs[1].tolist() == info["final_obs"][1].tolist() == [1, 2]


# --- features ------------------------------------------------------------------------------------------------------


def test_features_equal_gymnasiums_flatten():
    env = Echo(3, observations=MIXED, actions=spaces.Box(1, 2, (2,), np.float64), seed=0)
    wrapped = envs.PreviousAction(env)
    features = envs.Features(envs.FirstStep(wrapped))
    tree = features.env
    obs, _ = tree.reset()
    assert obs["prev_action"].tolist() == [[1.0, 1.0]] * 3       # zero is not allowed, so the lowest
    assert obs["prev_action"].dtype == torch.float64
    for t in range(4):
        for row in rows(tree, obs):
            assert row in tree.single_observation_space
        got = features.now(obs | {}, None).numpy()
        want = np.stack([flat(tree.single_observation_space, row) for row in rows(tree, obs)])
        np.testing.assert_array_equal(got, want)
        obs, *_ = tree.step(torch.full((3, 2), 1.25 + t / 8, dtype=torch.float64))


def test_wrong_values_do_not_change_the_features_of_other_leaves():
    make = wrappers.FeatureMap(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=5), spaces.Box(0, 1, (1,)))))
    got = make((torch.tensor([3, -1, 1]), torch.tensor([5, 9, 0]), torch.zeros(3, 1)))
    assert got.tolist() == [[0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0]]


def test_images_are_scaled_on_request():
    space = spaces.Tuple((spaces.Box(0, 255, (2, 2), np.uint8), spaces.Discrete(2)))
    env = Echo(2, observations=space, actions=spaces.Discrete(2))
    env.reset()
    raw = env.observe()
    plain, scaled = envs.Features(env), envs.Features(env, scale_images=True)
    np.testing.assert_array_equal(plain.now(raw, None)[:, :4], raw[0].reshape(2, 4))
    np.testing.assert_allclose(scaled.now(raw, None)[:, :4], raw[0].reshape(2, 4) / 255, rtol=1e-6)
    np.testing.assert_array_equal(scaled.now(raw, None)[:, 4:], plain.now(raw, None)[:, 4:])
    assert plain.single_observation_space.high.tolist() == [255] * 4 + [1] * 2
    assert scaled.single_observation_space.high.tolist() == pytest.approx([1] * 6)


# --- actions, limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("space", "good", "bad"), [
    (spaces.Discrete(3, start=1), (1, 3), (0, 4)), (spaces.Discrete(2, start=-1), (-1, 0), (-2, 1)),
    (spaces.MultiDiscrete([2, 3], start=[5, 0]), ([5, 0], [6, 2]), ([4, 0], [5, 3])), (spaces.MultiBinary(2), ([0, 1],), ([2, 0],))])
def test_ranges_of_actions_begin_at_their_start(space, good, bad):
    env = Echo(2, observations=spaces.Discrete(2), actions=space, length=9, validate=True)
    env.reset()
    for action in good:
        env.step(np.array([action, action]))
    for action in bad:
        with pytest.raises(ValueError, match=r"action of env 1 is .* outside"):
            env.step(np.array([good[0], action]))


def test_discrete_action_counts_in_c_order():
    sizes = (3, 2, 4)
    env = Echo(24, observations=spaces.Discrete(2), actions=spaces.MultiDiscrete(sizes), length=9, validate=True)
    wrapped = envs.PreviousAction(envs.DiscreteAction(env))
    assert wrapped.single_action_space == spaces.Discrete(24)
    wrapped.reset()
    obs, *_ = wrapped.step(np.arange(24))
    np.testing.assert_array_equal(env.acted.numpy(), np.stack(np.unravel_index(np.arange(24), sizes), 1))
    assert obs[1].tolist() == list(range(24))
    for bad in (24, -1):
        with pytest.raises(ValueError, match="outside"):
            wrapped.step(np.full(24, bad))
    with pytest.raises(TypeError, match="whole numbers"):
        wrapped.step(torch.zeros(24))
    mask = torch.rand(24, 9) < 0.6
    ravelled = wrapped.env._info({"action_mask": mask})["action_mask"]
    for a, (i, j, k) in enumerate(np.ndindex(*sizes)):
        assert torch.equal(ravelled[:, a], mask[:, i] & mask[:, 3 + j] & mask[:, 5 + k])


def test_time_limit():
    env = envs.TimeLimit(envs.TimeLimit(envs.wrap(envs.make("popgym/RepeatPreviousEasy", num_envs=2)), 5), 9)
    env.reset(seed=0)
    ends = [bool(env.step([0, 0])[3].all()) for _ in range(11)]
    assert [i for i, end in enumerate(ends) if end] == [4, 9]
    assert env.unwrapped.max_episode_steps == env.max_episode_steps == 5


def test_wrappers_show_the_inner_env():
    env = envs.wrap(envs.make("popgym/RepeatPreviousEasy", num_envs=2, k=3, render_mode="ansi"))
    env.reset(seed=0)
    assert (env.num_envs, env.k, env.device, env.unwrapped.k) == (2, 3, torch.device("cpu"), 3)
    assert isinstance(env.render(), str)
    assert repr(env).startswith("<Features<FirstStep<PreviousAction<RepeatPrevious x 2")
    assert env.observation_space.shape == (2, 10)
    env.close()
    assert env.closed
    with pytest.raises(AttributeError, match="no attribute '_x'"):
        _ = env._x
    with pytest.raises(TypeError, match=r"hm\.envs\.adapt"):
        envs.wrap(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="already"):
        envs.PreviousAction(env)
    with pytest.raises(ValueError, match="null_action"):
        envs.PreviousAction(envs.make("popgym/RepeatPreviousEasy"), null_action=[1, 2])
    with pytest.raises(TypeError, match="DiscreteAction needs"):
        envs.DiscreteAction(Echo(observations=spaces.Discrete(2), actions=spaces.Box(-1, 1, (2,))))
    assert wrappers.PreviousAction(envs.make("popgym/RepeatPreviousEasy"), null_action=3).reset(seed=0)[0][1].tolist() == [3]


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_cuda_graph(name):
    """A captured step of a wrapped env plays the same episodes as plain steps on the CPU."""
    n, device = 8, "cuda"
    env, twin = (envs.wrap(envs.make(name, num_envs=n, device=d, seed=3, max_episode_steps=9)) for d in (device, "cpu"))
    space = twin.action_space
    space.seed(0)
    start, _ = env.reset()
    torch.testing.assert_close(start.cpu(), twin.reset()[0])
    action = torch.as_tensor(space.sample(), device=device)
    state = env.get_state()
    _, (obs, reward, terminated, truncated, info), graph = captured(lambda: env.step(action), warm_up=2)
    env.set_state(state)
    for _ in range(25):
        chosen = space.sample()
        action.copy_(torch.as_tensor(chosen))
        graph.replay()
        want, paid, over, cut, more = twin.step(chosen)
        torch.testing.assert_close(obs.cpu(), want)
        torch.testing.assert_close(reward.cpu(), paid)
        assert torch.equal((terminated | truncated).cpu(), over | cut)
        done = (over | cut).nonzero()[:, 0]
        torch.testing.assert_close(info["final_obs"].cpu()[done], more["final_obs"][done])
