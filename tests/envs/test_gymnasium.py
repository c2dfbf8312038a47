"""Our tasks as Gymnasium envs: registered, accepted by checkers, equal to the batched task, in Gymnasium's conventions."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from hadamem import envs
from hadamem.envs import trees
from hadamem.envs.registry import TASKS

EASY = "hadamem/RepeatPreviousEasy-v0"
HARMLESS = ("minimum value is -infinity", "maximum value is infinity",      # an unbounded plane, speeds
            "symmetric and normalized space")                               # a torque of up to 2


def row(tree, i):
    return trees.apply(lambda x: np.asarray(x[i]), tree)


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_every_task_is_registered():
    ids = [envs.gymnasium_id(name) for name in TASKS]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {name for name in gymnasium.registry if name.startswith("hadamem/")}
    assert envs.gymnasium_id("popgym/AutoencodeEasy") == "hadamem/AutoencodeEasy-v0"


@pytest.mark.parametrize("name", TASKS)
def test_gymnasiums_checker_passes(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(gymnasium.make(envs.gymnasium_id(name)).unwrapped)
    complaints = [str(w.message) for w in caught if not any(words in str(w.message) for words in HARMLESS)]
    assert complaints == []


@pytest.mark.parametrize("name", TASKS)
def test_spaces_that_other_libraries_take(name):
    """One plain space, no tuple or dict, which holds every observation with its own shape and dtype, at reset and at step."""
    env = gymnasium.make(envs.gymnasium_id(name)).unwrapped
    many = gymnasium.make_vec(envs.gymnasium_id(name), num_envs=3)
    space = env.observation_space
    assert isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete))
    assert many.single_observation_space == space
    assert spaces.flatdim(space) == spaces.flatdim(env.batch.single_observation_space)      # the same features
    env.action_space.seed(0)
    many.action_space.seed(0)
    for act in (lambda: env.reset(seed=1), lambda: env.step(env.action_space.sample())):
        obs = act()[0]
        assert obs in space
        assert (obs.shape, obs.dtype) == (space.shape, space.dtype)
    for act in (lambda: many.reset(seed=1), lambda: many.step(many.action_space.sample())):
        obs = act()[0]
        assert obs in many.observation_space
        assert (obs.shape, obs.dtype) == (many.observation_space.shape, space.dtype)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_autoreset_mode_is_an_attribute_too(mode):
    """TorchRL reads it there, and Gymnasium's own vector envs have it."""
    for way in ("vector_entry_point", "sync"):
        more = dict(autoreset_mode=mode) if way == "vector_entry_point" else dict(vector_kwargs=dict(autoreset_mode=mode))
        env = gymnasium.make_vec(EASY, num_envs=2, vectorization_mode=way, **more)
        assert env.autoreset_mode is env.metadata["autoreset_mode"] is mode


@pytest.mark.slow
def test_torchrl_takes_every_task():
    pytest.importorskip("torchrl", reason="TorchRL's own check needs torchrl")
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    for name in TASKS:
        task = envs.gymnasium_id(name)
        check_env_specs(GymWrapper(gymnasium.make(task)))
        check_env_specs(GymWrapper(gymnasium.make_vec(task, num_envs=2, autoreset_mode="disabled")))      # the mode it recommends


@pytest.mark.parametrize("name", TASKS)
def test_single_env_equals_the_batched_task(name):
    """Over the end of an episode; success only on its last step."""
    steps = 25
    env = gymnasium.make(envs.gymnasium_id(name), max_episode_steps=-1).unwrapped
    short = type(env)(name, max_episode_steps=steps)
    task = envs.make(name, autoreset_mode="disabled", max_episode_steps=steps)
    obs, _ = short.reset(seed=4)
    want, _ = task.reset(seed=4)
    short.action_space.seed(0)
    over = False
    while not over:
        assert obs in short.observation_space
        assert_same(obs, row(want, 0))
        action = short.action_space.sample()
        obs, reward, terminated, truncated, info = short.step(action)
        want, paid, *ends, more = task.step(torch.as_tensor(np.asarray(action))[None])
        assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
        assert reward == float(paid[0])
        assert (terminated, truncated) == tuple(bool(x[0]) for x in ends)
        over = terminated or truncated
        assert ("success" in info) == (over and "success" in more)
        if "success" in info:
            assert info["success"] is bool(more["success"][0])
    assert short.batch.elapsed.item() <= steps
    with pytest.raises(RuntimeError, match="after the end"):
        short.step(action)
    short.reset()
    short.step(action)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["popgym/RepeatPreviousEasy", "popgym/AutoencodeEasy", "popgym/BattleshipEasy", "PointRobot"])
def test_vector_env_equals_gymnasiums_own_vectorisation(name, mode):
    """The same observations, rewards, ends and infos as SyncVectorEnv of single envs, key by key."""
    ours = gymnasium.make_vec(envs.gymnasium_id(name), num_envs=3, autoreset_mode=mode, max_episode_steps=4)
    assert ours.metadata["autoreset_mode"] is mode
    assert isinstance(ours, envs.TaskVectorEnv)
    theirs = SyncVectorEnv([lambda: envs.TaskEnv(name, max_episode_steps=4)] * 3, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(seed=[3, 1, 3])[0], theirs.reset(seed=[3, 1, 3])[0])
    ours.action_space.seed(1)
    for step in range(1, 13):
        action = ours.action_space.sample()
        mine, others = ours.step(action), theirs.step(action)
        for a, b in zip(mine[:4], others[:4], strict=True):
            assert_same(a, b)
        compare_infos(mine[4], others[4])
        if step == 2:      # from now on the envs are at different steps
            mask = np.array([True, False, True])
            assert_same(ours.reset(options={"reset_mask": mask})[0], theirs.reset(options={"reset_mask": mask.copy()})[0])
        elif mode is AutoresetMode.DISABLED and (over := mine[2] | mine[3]).any():
            assert_same(ours.reset(options={"reset_mask": over})[0], theirs.reset(options={"reset_mask": over.copy()})[0])
    ours.close()
    assert ours.closed


def compare_infos(a, b):
    keys = {key for info in (a, b) for key in info if not key.startswith("_")}
    for key in keys:
        has = [info.get(f"_{key}", np.zeros(3, bool)) for info in (a, b)]
        np.testing.assert_array_equal(*has, err_msg=key)
        if isinstance(a.get(key), dict) and has[0].any():
            compare_infos(a[key], b[key])
            continue
        for i in np.flatnonzero(has[0]):
            assert_same(a[key][i], b[key][i])


def test_make_vec_in_all_ways():
    for way in ("vector_entry_point", "sync", "async", None):
        env = gymnasium.make_vec(EASY, num_envs=2, vectorization_mode=way, k=3)
        assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        obs, _ = env.reset(seed=0)
        assert obs.shape == (2,)
        obs, reward, terminated, truncated, _ = env.step(np.array([1, 2]))
        assert reward.shape == terminated.shape == truncated.shape == (2,)
        env.close()


def test_a_batch_plays_the_episodes_of_single_envs():
    """Env i of a batch with a list of seeds, over the ends of episodes, against `gymnasium.make` and a reset at the end of each."""
    seeds = [7, 0, 7, 123456789]
    for name in (EASY, "hadamem/AutoencodeEasy-v0", "hadamem/PositionOnlyCartPoleEasy-v0", "hadamem/TMaze-v0"):
        batch = gymnasium.make_vec(name, num_envs=4, vectorization_mode="vector_entry_point", autoreset_mode="same_step")
        singles = [gymnasium.make(name) for _ in seeds]
        first, _ = batch.reset(seed=seeds)
        for i, (env, seed) in enumerate(zip(singles, seeds, strict=True)):
            assert_same(env.reset(seed=seed)[0], row(first, i))
        batch.action_space.seed(0)
        ends = 0
        for _ in range(160):
            action = batch.action_space.sample()
            obs, reward, terminated, truncated, info = batch.step(action)
            for i, env in enumerate(singles):
                last, paid, *over, extra = env.step(action[i])
                assert (paid, *over) == (reward[i], terminated[i], truncated[i])
                if any(over):
                    ends += 1
                    assert_same(last, info["final_obs"][i])
                    assert_same({key: info["final_info"][key][i] for key in extra}, extra)
                    last, _ = env.reset()
                assert_same(last, row(obs, i))
        assert ends >= 4


def test_spec_options_and_close():
    env = gymnasium.make_vec(EASY, num_envs=5, vectorization_mode="vector_entry_point", autoreset_mode="same_step", k=2)
    assert (env.spec.id, env.spec.kwargs["k"], env.num_envs, env.unwrapped) == (EASY, 2, 5, env)
    same = gymnasium.make_vec(env.spec)
    assert (type(same), same.num_envs, same.autoreset_mode, same.batch.k) == (type(env), 5, AutoresetMode.SAME_STEP, 2)
    assert (env.observation_space.shape, env.action_space.shape) == ((5,), (5,))
    assert env.single_observation_space == env.single_action_space == spaces.Discrete(4)
    env.reset(seed=0, options={"layout": {"deck": np.tile(np.arange(52) % 4, (5, 1))}})
    assert env.step(np.zeros(5, np.int64))[0].tolist() == [1] * 5
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"reset_masks": None})
    env.close()
    assert env.closed
    env.close()


@pytest.mark.parametrize(("wrapper", "mode"), [
    (RecordEpisodeStatistics, AutoresetMode.NEXT_STEP), (RecordEpisodeStatistics, AutoresetMode.SAME_STEP),
    (NormalizeReward, AutoresetMode.NEXT_STEP), (NormalizeReward, AutoresetMode.SAME_STEP),
    (NormalizeObservation, AutoresetMode.NEXT_STEP)])      # Gymnasium refuses same-step mode here
def test_gymnasiums_vector_wrappers_work(wrapper, mode):
    """They give what they give around SyncVectorEnv."""
    ours = wrapper(gymnasium.make_vec("hadamem/PositionOnlyCartPoleEasy-v0", num_envs=3, autoreset_mode=mode))
    theirs = wrapper(SyncVectorEnv([lambda: envs.TaskEnv("popgym/PositionOnlyCartPoleEasy")] * 3, autoreset_mode=mode))
    assert_same(ours.reset(seed=[1, 2, 3])[0], theirs.reset(seed=[1, 2, 3])[0])
    ours.action_space.seed(0)
    ends = 0
    for _ in range(60):
        action = ours.action_space.sample()
        mine, others = ours.step(action), theirs.step(action)
        for a, b in zip(mine[:4], others[:4], strict=True):
            assert_same(a, b)
        for info in (mine[4], others[4]):
            info.get("episode", {}).pop("t", None)      # seconds
        compare_infos(mine[4], others[4])
        ends += int((mine[2] | mine[3]).sum())
    assert ends > 3


def test_seeds():
    env = gymnasium.make(EASY)
    first = [env.reset(seed=5)[0], *(env.step(0)[0] for _ in range(20))]
    second = [env.reset()[0], *(env.step(0)[0] for _ in range(20))]
    again = [env.reset(seed=5)[0], *(env.step(0)[0] for _ in range(20))]
    assert first == again != second
    a, b = gymnasium.make_vec(EASY, num_envs=64), gymnasium.make_vec(EASY, num_envs=64)
    assert (a.reset(seed=1)[0] == b.reset(seed=1)[0]).all()
    fresh = {tuple(gymnasium.make_vec(EASY, num_envs=64).reset()[0].tolist()) for _ in range(3)}
    assert len(fresh) == 3
    torch.manual_seed(0)       # torch's generator is not used: forked processes share it
    one = gymnasium.make_vec(EASY, num_envs=64).reset()[0]
    torch.manual_seed(0)
    assert (one != gymnasium.make_vec(EASY, num_envs=64).reset()[0]).any()


def test_layouts_pass():
    deck = np.arange(52)[None] % 4
    env = gymnasium.make(EASY).unwrapped
    env.reset(options={"layout": {"deck": deck}})
    assert [int(env.step(0)[0]) for _ in range(5)] == [1, 2, 3, 0, 1]


@pytest.mark.parametrize(("name", "action"), [
    (EASY, 4), (EASY, -1), (EASY, 1.0), (EASY, "north"), (EASY, [1]), (EASY, None), (EASY, True),
    ("hadamem/BattleshipEasy-v0", [8, 0]), ("hadamem/BattleshipEasy-v0", 3), ("hadamem/Wind-v0", [0.0]),
    ("hadamem/Wind-v0", [np.nan, 0.0]), ("hadamem/Wind-v0", "ab")])
def test_bad_actions_are_named(name, action):
    env = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be in") as caught:
        env.step(action)
    assert repr(action) in str(caught.value)


def test_actions_of_many_types():
    env = gymnasium.make(EASY).unwrapped
    env.reset(seed=0)
    for action in (1, np.int32(1), np.uint8(2), np.array(3), torch.tensor(0)):
        env.step(action)
    wide = gymnasium.make("hadamem/Wind-v0").unwrapped
    wide.reset(seed=0)
    wide.step([5.0, -5])       # clipped by the task


def test_bad_options():
    with pytest.raises(TypeError, match="make_vec"):
        gymnasium.make(EASY, num_envs=3)
    with pytest.raises(ValueError, match="k must be smaller"):
        gymnasium.make(EASY, k=60)
    vector = gymnasium.make_vec(EASY, num_envs=2)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="outside"):
        vector.step([0, 4])


def test_rendering():
    for mode, kind in (("ansi", str), ("rgb_array", np.ndarray)):
        env = gymnasium.make(EASY, render_mode=mode)
        env.reset(seed=0)
        assert isinstance(env.render(), kind)
        many = gymnasium.make_vec(EASY, num_envs=2, render_mode=mode)
        many.reset(seed=0)
        assert [type(x) for x in many.render()] == [kind, kind]
    env = gymnasium.make(EASY).unwrapped
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_module_prefix():
    """A process that has imported Gymnasium only."""
    code = (f"import gymnasium, sys; assert 'hadamem' not in sys.modules; env = gymnasium.make('hadamem.envs:{EASY}', k=2); "
            "print(env.reset(seed=0)[0] in env.observation_space)")
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout == "True\n"
