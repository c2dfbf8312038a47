"""A policy by itself acts as it did in training, on what the env shows, and comes back from disk."""

import functools
import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import hadamem as hm
from hadamem import envs, states
from hadamem.envs.features import AgentInputs
from hadamem.envs.spaces import channels_first
from hadamem.runs.config import make_config
from hadamem.runs.files import CheckpointError
from hadamem.runs.spaces import build_space, describe_space
from hadamem.training.policy import Policy, load_policy
from hadamem.training.seeding import env_seed
from hadamem.training.trainer import Trainer
from tests.envs.toys import Actions, Mixed

from .toys import TINY, Recall

OWN = ["popgym/RepeatPreviousEasy", "popgym/PositionOnlyPendulumEasy", "popgym/BattleshipEasy", "popgym/AutoencodeEasy", "TMaze"]
MULTI = functools.partial(Actions, spaces.MultiDiscrete([3, 2]))
BOX = functools.partial(Actions, spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 8.0], np.float32)))


def trainer(env="popgym/RepeatPreviousEasy", memory="shm", **changes):
    name, env = (env, None) if isinstance(env, str) else ("given", env)
    config = make_config(env=name, memory=memory, device="cpu", workers=None if isinstance(name, str) and env is None else 0,
                         **{**TINY, **changes})
    return Trainer(config, env)


def scrambled(made):
    """Weights far from where training starts, so that actions differ from state to state."""
    with torch.no_grad():
        for p in made.network.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.3)
    return made


# --- features ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("env", [*OWN, Mixed, MULTI, BOX], ids=str)
def test_inputs_are_those_of_the_wrappers(env, flags):
    """Without an env, the very same numbers as with one, step by step, across the ends of episodes."""
    def make():
        return envs.make(env, num_envs=3, seed=1) if isinstance(env, str) else envs.adapt(env, num_envs=3, workers=0, seed=1)

    bare, wrapped = make(), envs.wrap(make(), previous_action=flags[0], first_step=flags[1], scale_images=True)
    inputs = AgentInputs(bare.single_observation_space, bare.single_action_space, previous_action=flags[0], first_step=flags[1],
                         scale_images=True)
    assert inputs.features.space == wrapped.single_observation_space
    obs, _ = bare.reset()
    want, _ = wrapped.reset()
    action, first = torch.zeros(3, *bare.single_action_space.shape, dtype=inputs.action_dtype), torch.ones(3, dtype=torch.bool)
    bare.action_space.seed(0)
    for _ in range(12):
        assert torch.equal(inputs(obs, action, first), want)
        action = torch.as_tensor(bare.action_space.sample())
        obs, _, terminated, truncated, _ = bare.step(action)
        want, *_ = wrapped.step(action)
        first = terminated | truncated


@pytest.mark.parametrize(("last", "first"), [
    ((84, 84, 3), (3, 84, 84)), ((84, 84, 4), (4, 84, 84)), ((7, 7, 20), (20, 7, 7)), ((7, 7, 3), (3, 5, 5)),
    ((210, 160, 3), (3, 210, 160)), ((2, 9, 1), (1, 9, 2)), ((4, 4, 3), (3, 4, 4)), ((9, 12, 2), (2, 12, 9)), ((3, 64, 4), None),
    ((8, 8, 8), None), ((3, 3, 3), None), ((9, 12, 9), None)])
def test_the_axis_of_channels(last, first):
    assert not channels_first(last)
    assert first is None or channels_first(first)


# --- acting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["shm", "shm-paper", "gru", "none"])
@pytest.mark.parametrize("env", ["popgym/RepeatPreviousEasy", "popgym/PositionOnlyPendulumEasy", "popgym/MineSweeperEasy"])
def test_acts_as_the_collector_does(env, memory):
    """Over a raw batched env, with the most likely actions and with drawn ones."""
    made = scrambled(trainer(env, memory, num_steps=60, joint_actions="always", joint_previous_action=memory != "gru"))
    policy = Policy.of(made)
    for deterministic in (True, False):
        collector = type(made.collector)(made.env, made.agent, made.inputs, 60, seed=5)
        if deterministic:
            collector.noise.zero_()
        else:
            collector.noise.normal_(generator=torch.Generator().manual_seed(1))
        collector.collect()
        raw = envs.make(env, num_envs=8)
        obs, _ = raw.reset(seed=5)
        state, reset = policy.initial_state(8, torch.Generator().manual_seed(5)), torch.ones(8, dtype=torch.bool)
        for t in range(60):
            if not deterministic:
                policy.agent.actions.noise = lambda *a, now=collector.noise[t], **k: now
            action, state = policy.act(obs, state, reset, deterministic)
            assert torch.equal(action, policy.agent.actions.to_env(collector.rollout.action[:, t]))
            obs, _, terminated, truncated, _ = raw.step(action)
            reset = terminated | truncated


@pytest.mark.parametrize("env", [Recall, Mixed, BOX], ids=["recall", "mixed", "box"])
def test_acts_on_a_raw_gymnasium_vector_env_as_in_training(env):
    """The same actions as the collector's on the adapted env, from numpy observations of Gymnasium's own vector env."""
    made = scrambled(trainer(env, "gru", num_steps=20))
    made.collector.noise.zero_()
    made.collector.collect()
    policy = Policy.of(made)
    raw = gymnasium.vector.SyncVectorEnv([env] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    start = int(getattr(raw.single_action_space, "start", 0))       # actions count from 0
    obs, info = raw.reset(seed=[env_seed(made.config.seed) + i for i in range(8)])
    state, reset = None, None
    for t in range(20):
        mask = np.stack(list(info["action_mask"])) if "action_mask" in info else None
        action, state = policy.act(obs, state, reset, deterministic=True, mask=mask)
        assert isinstance(action, np.ndarray)
        want = policy.agent.actions.to_env(made.collector.rollout.action[:, t]).numpy()
        np.testing.assert_array_equal(action, want)
        obs, _, terminated, truncated, info = raw.step(action + start if start else action)
        reset = terminated | truncated
    raw.close()


def test_a_single_env(tmp_path):
    """Observations without the axis of envs give one action, as one env of a batch would get it."""
    policy = Policy.of(scrambled(trainer(Recall)))
    env = Recall()
    obs, _ = env.reset(seed=3)
    state = other = None
    for _ in range(3):
        action, state = policy.act(obs, state, deterministic=True)
        batch = {"cue": np.array([obs["cue"]] * 2), "t": np.stack([obs["t"]] * 2)}
        both, other = policy.act(batch, other, deterministic=True)
        assert env.action_space.contains(action)
        assert both.tolist() == [action, action]
        obs, *_ = env.step(action)


def test_draws_follow_the_generator_and_rows_are_alone():
    policy = Policy.of(scrambled(trainer()))
    obs = torch.randint(4, (6,))
    state = policy.initial_state(6)
    one, two = (policy.act(obs, state, generator=torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(one, two)
    action, after = policy.act(obs, state, torch.tensor([True, False] * 3), deterministic=True)
    part, alone = policy.act(obs[2:4], states.index(state, slice(2, 4)), [True, False], deterministic=True)
    assert torch.equal(action[2:4], part)
    for a, b in zip(states.tensors(states.index(after, slice(2, 4))), states.tensors(alone), strict=True):
        torch.testing.assert_close(a, b)


def test_a_reset_forgets():
    policy = Policy.of(scrambled(trainer(memory="gru")))
    obs = torch.randint(4, (2,))
    _, state = policy.act(obs, None, deterministic=True)
    _, again = policy.act(obs, state, torch.tensor([True, True]), deterministic=True)
    for a, b in zip(states.tensors(state), states.tensors(again), strict=True):
        torch.testing.assert_close(a, b)


def test_masked_actions_are_never_taken():
    policy = Policy.of(trainer(functools.partial(Mixed, mask="obs")))
    env = gymnasium.vector.SyncVectorEnv([functools.partial(Mixed, mask="obs")] * 16, autoreset_mode=AutoresetMode.SAME_STEP)
    obs, _ = env.reset(seed=0)
    state = reset = None
    for _ in range(6):
        action, state = policy.act(obs, state, reset)
        assert obs["action_mask"][np.arange(16), action].all()
        obs, _, terminated, truncated, _ = env.step(action + 2)
        reset = terminated | truncated


@pytest.mark.parametrize("joint", ["never", "auto"])
def test_masks_of_several_parts(joint):
    """Side by side, as a tuple of parts, and as an array of parts of equal size: one env's, and a batch's."""
    policy = Policy.of(trainer(MULTI, joint_actions=joint))                           # MultiDiscrete([3, 2])
    one, two = np.array([False, True, False]), np.array([True, False])
    for mask in ((one, two), [one.tolist(), two.tolist()], np.concatenate([one, two]), (torch.as_tensor(one), torch.as_tensor(two))):
        assert policy.act(np.zeros(2), mask=mask)[0].tolist() == [1, 0]
        assert policy.act(np.zeros((4, 2)), mask=mask)[0].tolist() == [[1, 0]] * 4
    rows = np.stack([one, ~one, one]), np.stack([two, two, ~two])
    got, _ = policy.act(np.zeros((3, 2)), mask=rows)
    assert got[[0, 2]].tolist() == [[1, 0], [1, 1]]
    assert got[1, 0] != 1
    square = Policy.of(trainer(functools.partial(Actions, spaces.MultiDiscrete([2, 2]))))
    assert square.act(np.zeros(2), mask=[[0, 1], [1, 0]])[0].tolist() == [1, 0]
    assert square.act(np.zeros((3, 2)), mask=np.tile([[0, 1], [1, 0]], (3, 1, 1)))[0].tolist() == [[1, 0]] * 3
    for mask, words in (((one,), r"shape \[1, 5\] \(or a tuple of parts with 3, 2 entries\), or \[5\] for all envs, got \[1, 3\]"),
                        ((one, one), r"got \[2, 3\]"), ((two, one), r"or \[5\] for all envs, got tuple$"),
                        (two, r"got \[2\]"), (True, r"got \[\]"),
                        ((one, two & False), "in each part, but leaves env 0 none")):
        with pytest.raises(ValueError, match=f"mask must .*{words}"):
            policy.act(np.zeros(2), mask=mask)
    with pytest.raises(ValueError, match=r"got \[5, 3\]"):
        policy.act(np.zeros((3, 2)), mask=np.ones((5, 3)))
    with pytest.raises(ValueError, match="needs Discrete"):
        Policy.of(trainer(BOX)).act(np.zeros(2), mask=[True])


@pytest.mark.parametrize(("change", "match"), [
    (dict(obs=torch.zeros(3, 2)), r"shape \[N\]"), (dict(obs=torch.zeros(0)), "at least 1"),
    (dict(obs=torch.zeros(4, dtype=torch.int64)), "state is of 3 envs"), (dict(reset=[True, False]), r"reset must have the shape \[3\]"),
    (dict(mask=torch.ones(3, 9)), r"mask must have the shape \[3, 4\]"), (dict(mask=[True] * 3), r"shape \[3, 4\].*got \[3\]"),
    (dict(mask=torch.tensor([[1] * 4, [0] * 4, [1] * 4])), "mask must allow an action, but leaves env 1 none"),
])
def test_bad_input(change, match):
    policy = Policy.of(trainer())
    with pytest.raises(ValueError, match=match):
        policy.act(**{"obs": torch.zeros(3, dtype=torch.int64), "state": policy.initial_state(3), **change})


def test_observations_outside_their_space():
    policy = Policy.of(trainer(Mixed))
    good = {"picture": np.zeros((2, 3, 4, 4), np.uint8), "pair": (np.array([0, 4]), np.full((2, 2), 1e9))}
    policy.act(good)
    for bad, words in (({"pair": (np.array([0, 5]), np.zeros((2, 2)))}, r"obs\['pair'\]\[0\] must be of Discrete\(5\).*got 5"),
                       ({"pair": (torch.tensor([-1, 0]), np.zeros((2, 2)))}, "got -1"),
                       ({"picture": torch.full((2, 3, 4, 4), 0.5)}, r"obs\['picture'\] must be of a Box of uint8.*got 0.5.*255 \* x"),
                       ({"picture": torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)}, "bfloat16")):
        with pytest.raises(ValueError, match=words):
            policy.act({**good, **bad})


def test_missing_entries_are_named():
    policy = Policy.of(trainer(Recall))
    for obs in ({"cue": np.zeros(2, int)}, np.zeros(2)):
        with pytest.raises(ValueError, match="obs must be an observation of Dict"):
            policy.act(obs)
    with pytest.raises(ValueError, match=r"obs\['t'\] must have the shape \[N, 1\]"):
        policy.act({"cue": np.zeros(2, int), "t": np.zeros((2, 5))})


# --- on disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "memory", "changes"), [
    ("popgym/RepeatPreviousEasy", "shm-paper", {}), ("popgym/PositionOnlyPendulumEasy", "lstm", {"network.separate_memories": True}),
    ("popgym/BattleshipEasy", "none", {"previous_action": False, "network.time_encoding": "none"}), (Mixed, "gru", {}), (MULTI, "shm", {}),
    ("VisualMatch", "gru", {"network.head_activation": "relu", "network.memory_activation": "none"}),
    ("popgym/BattleshipEasy", "gru", {"joint_actions": "always", "joint_previous_action": True}),
])
def test_a_policy_comes_back_from_disk(tmp_path, env, memory, changes):
    made = scrambled(trainer(env, memory, num_envs=4, num_steps=4, **changes))
    policy = Policy.of(made)
    path = policy.save(tmp_path / "policy")
    assert policy.save(path) == path      # again, over it
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loaded = hm.load_policy(path)
    assert torch.equal(torch.get_rng_state(), before)
    json.loads((path / "about.json").read_text())
    assert loaded.observation_space == policy.observation_space
    assert loaded.action_space == policy.action_space
    raw = made.env
    obs, _ = raw.reset(seed=1)
    mine, theirs = policy.initial_state(4, torch.Generator().manual_seed(1)), loaded.initial_state(4, torch.Generator().manual_seed(1))
    reset = torch.ones(4, dtype=torch.bool)
    for _ in range(8):
        action, mine = policy.act(obs, mine, reset, deterministic=True)
        same, theirs = loaded.act(obs, theirs, reset, deterministic=True)
        assert torch.equal(action, same)
        assert all(raw.single_action_space.contains(one.numpy()) for one in action)
        obs, _, terminated, truncated, _ = raw.step(action)
        reset = terminated | truncated
    made.close()


def test_a_policy_from_before_joint_actions_chooses_parts_by_themselves():
    described = Policy.of(trainer("popgym/BattleshipEasy", "gru")).describe()
    assert described["settings"].pop("joint_actions") == "never"
    weights = trainer("popgym/BattleshipEasy", "gru").network.state_dict()
    assert Policy.build(described, weights).agent.actions.sizes == [8, 8]


def test_a_run_is_found_by_its_name(tmp_path, monkeypatch):
    """As by `hadamem eval NAME`; what has that very path goes first."""
    hm.train("popgym/RepeatPreviousEasy", steps=128, out=tmp_path / "runs" / "first", quiet=True, **{
        name.replace(".", "__"): value for name, value in TINY.items()})
    monkeypatch.chdir(tmp_path)
    assert load_policy("first").steps == load_policy("runs/first").steps == 128
    Policy.of(trainer("popgym/RepeatPreviousEasy")).save("first")
    assert load_policy("first").steps is None


def test_what_is_no_policy_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        load_policy(tmp_path / "none")
    with pytest.raises(ValueError, match=r"is not a run, checkpoint or saved policy: it has neither checkpoints/ nor about.json"):
        load_policy(tmp_path)
    policy = Policy.of(trainer())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(ValueError, match="notes exists and is not a saved policy; choose another name"):
        policy.save(tmp_path / "notes")
    path = policy.save(tmp_path / "p")
    assert load_policy(path / "tensors.safetensors").action_space == policy.action_space      # a file in it will do
    (path / "tensors.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="bytes instead of"):
        load_policy(path)


@pytest.mark.parametrize("space", [
    spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Box(-np.inf, np.inf, (), np.float32),
    spaces.Box(np.array([-1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)), spaces.Box(-5, 9, (2,), np.int16),
    spaces.Discrete(4, start=-2), spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([[3, 2], [1, 5]], start=[[1, 0], [0, 2]]),
    spaces.MultiBinary(3), spaces.MultiBinary([2, 3]), spaces.Tuple((spaces.Discrete(2), spaces.Tuple((spaces.MultiBinary(1),)))),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Dict(b=spaces.Box(0, 1)))]),
], ids=str)
def test_spaces_travel_as_json(space):
    got = build_space(json.loads(json.dumps(describe_space(space), allow_nan=False)))
    assert got == space
    assert repr(got) == repr(space)      # the order of a dict's entries too
    assert got.dtype == space.dtype


def test_unknown_spaces_are_refused():
    with pytest.raises(TypeError, match="cannot be saved"):
        describe_space(spaces.Text(3))
    with pytest.raises(ValueError, match="unknown space"):
        build_space({"type": "Riemann"})


def test_what_is_no_policy_and_no_state(tmp_path):
    (tmp_path / "sig.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"sig\.onnx is not a policy; pass the folder"):
        load_policy(tmp_path / "sig.onnx")
    policy = Policy.of(trainer())
    with pytest.raises(TypeError, match="state must be what act"):
        policy.act(torch.tensor(1), (1, 2))
    with pytest.raises(TypeError, match=r"memory must be a name .* got GRU; .* hm.register_memory"):
        hm.train("TMaze", hm.GRU)
