"""`AgentInputs` and `FeatureMap`: the same numbers as the wrappers, for one step and for whole sequences."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from hadamem import envs
from hadamem.envs import trees
from hadamem.envs.features import AgentInputs, FeatureMap
from hadamem.envs.spaces import Image, find_images

from ..cuda_graphs import captured
from .test_wrappers import MIXED, Echo

IMAGE = spaces.Box(0, 255, (3, 5, 5), np.uint8)
PAIR = spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 4, 3])))
CASES = {
    "dict": (MIXED, spaces.Discrete(4)),
    "tuple": (PAIR, spaces.MultiDiscrete([3, 2])),
    "multidiscrete": (spaces.MultiDiscrete([3] * 52), spaces.Discrete(52)),
    "grid actions": (spaces.Discrete(3), spaces.MultiDiscrete([[2, 3], [3, 2]])),
    "bits": (spaces.MultiBinary([2, 2]), spaces.MultiBinary(3)),
    "image": (IMAGE, spaces.Discrete(4)),
    "box": (spaces.Box(-1, 1, (2,)), spaces.Box(-2, 2, (3,))),
    "box above 0": (spaces.Box(-1, 1, (2, 1)), spaces.Box(1, 2, (2,))),
    "one number": (spaces.Box(-1, 1, ()), spaces.Box(-1, 1, ())),
    "start": (spaces.Discrete(3, start=-1), spaces.Discrete(4)),
}
SETTINGS = [dict(), dict(previous_action=False), dict(first_step=False), dict(previous_action=False, first_step=False),
            dict(scale_images=True)]
N, T = 3, 8


class Recorder(Echo):
    """Keeps the raw observations that it shows."""

    def observe(self):
        self.shown = super().observe()
        return self.shown


def rollout(observations, actions, **settings):
    """T steps over the ends of episodes: raw observations, the actions before them, first flags, and the features of the wrapped env."""
    env = Recorder(N, observations=observations, actions=actions, length=3, autoreset_mode="next_step")
    wrapped = envs.wrap(env, **settings)
    features, _ = wrapped.reset(seed=0)
    wrapped.action_space.seed(0)
    action = torch.as_tensor(wrapped.action_space.sample())      # before the first observation: must not matter
    steps = []
    for _ in range(T):
        steps.append((env.shown, action, env.started.clone(), features))
        action = torch.as_tensor(wrapped.action_space.sample())
        features, *_ = wrapped.step(action)
    return AgentInputs(observations, actions, **settings), steps


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_step_equals_the_wrappers(case, settings):
    inputs, steps = rollout(*CASES[case], **settings)
    firsts = torch.stack([first for _, _, first, _ in steps])
    assert firsts.any()
    assert not firsts.all()
    for obs, action, first, want in steps:
        got = inputs(obs, action, first)
        assert got.shape == (N, inputs.size)
        assert got.dtype == torch.float32
        assert torch.equal(got, want)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_sequence_equals_its_steps(case, settings):
    inputs, steps = rollout(*CASES[case], **settings)
    obs, action, first, want = (trees.apply(lambda *leaves: torch.stack(leaves, 1), *part) for part in zip(*steps, strict=True))
    got = inputs(obs, action, first)                          # [N, T, F]
    assert torch.equal(got, want)
    halves = [trees.apply(lambda x: x.unflatten(1, (2, T // 2)), part) for part in (obs, action, first)]
    assert torch.equal(inputs(*halves), want.unflatten(1, (2, T // 2)))
    assert torch.equal(inputs(*(trees.apply(lambda x: x[1, 2], part) for part in (obs, action, first))), want[1, 2])


def test_every_task_and_the_last_observation():
    """Raw observations of a real task give the features of the wrapped task, `final_obs` included."""
    for name in ("popgym/AutoencodeEasy", "popgym/BattleshipEasy", "popgym/ConcentrationEasy", "Wind", "VisualMatch", "TMaze"):
        raw, wrapped = envs.make(name, num_envs=4, seed=3, max_episode_steps=3), envs.make(name, num_envs=4, seed=3, max_episode_steps=3)
        wrapped = envs.wrap(wrapped, scale_images=True)
        inputs = AgentInputs(raw.single_observation_space, raw.single_action_space, scale_images=True)
        obs, want = raw.reset()[0], wrapped.reset()[0]
        raw.action_space.seed(0)
        action = torch.as_tensor(raw.action_space.sample())
        for _ in range(7):
            assert torch.equal(inputs(obs, action, raw.started), want)
            action = torch.as_tensor(raw.action_space.sample())
            obs, _, _, _, info = raw.step(action)
            want, _, _, _, wrapped_info = wrapped.step(action)
            assert torch.equal(inputs(info["final_obs"], action, torch.zeros_like(raw.started)), wrapped_info["final_obs"])


@pytest.mark.parametrize("actions", [spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 3], start=[1, -1]),
                                     spaces.MultiDiscrete([[2, 3], [3, 2]])], ids=str)
def test_a_joint_code_of_the_previous_action(actions):
    """One code among all combinations, the last part counting fastest; the null action at the first step. Nothing else changes."""
    inputs, steps = rollout(PAIR, actions)
    joint = AgentInputs(PAIR, actions, joint_previous_action=True).to("cpu")
    sizes, start, shape = actions.nvec.reshape(-1), actions.start.reshape(-1), actions.shape
    ((low, high),), ((old_low, old_high),) = joint.parts["prev_action"], inputs.parts["prev_action"]
    assert high - low == sizes.prod()
    for obs, action, first, _ in steps:
        got, want = joint(obs, action, first), inputs(obs, action, first)
        assert torch.equal(got[:, :low], want[:, :old_low])
        assert torch.equal(got[:, high:], want[:, old_high:])
        taken = torch.where(first.view(-1, *[1] * len(shape)), inputs.null, action).reshape(N, -1).numpy() - start
        assert got[:, low:high].nonzero()[:, 1].tolist() == np.ravel_multi_index(taken.T, sizes).tolist()
    assert torch.equal(torch.stack([joint(*step[:3]) for step in steps], 1),
                       joint(*(trees.apply(lambda *x: torch.stack(x, 1), *part) for part in list(zip(*steps, strict=True))[:3])))


def test_a_joint_code_is_for_multidiscrete_actions():
    plain, joint = (AgentInputs(spaces.Discrete(2), spaces.Discrete(4), joint_previous_action=flag) for flag in (False, True))
    assert joint.size == plain.size
    assert not joint.joint_previous_action


@pytest.mark.parametrize("lead", [(3,), (2, 5)])
def test_codes_are_compared_or_scattered(lead):
    """As a GPU does it, and as a CPU does."""
    space = spaces.Tuple((spaces.Discrete(4, start=-1), spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([2, 1, 5]), spaces.MultiBinary(2)))
    scattered, compared = FeatureMap(space), FeatureMap(space)
    assert not scattered.compares
    compared.compares = True
    obs = (torch.randint(-3, 6, lead), torch.randn(*lead, 3), torch.randint(-1, 7, (*lead, 3)), torch.randint(0, 2, (*lead, 2)))
    assert torch.equal(compared(obs), scattered(obs))


def test_a_gpu_compares_a_few_codes_alone(monkeypatch):
    """What is compared takes eight bytes for every feature, which images and numbers do not need."""
    monkeypatch.setattr("hadamem.envs.features.SCATTERS", ())
    sizes = {1000: True, 2000: False}
    assert {n: FeatureMap(spaces.MultiDiscrete([n])).compares for n in sizes} == sizes
    assert not FeatureMap(spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (3,))))).compares


@pytest.mark.parametrize("compares", [False, True])
def test_wrong_numbers_stay_inside_their_codes(compares):
    features = FeatureMap(PAIR)
    features.compares = compares
    high = features((torch.tensor([9]), torch.tensor([[9, 9, 9]])))
    low = features((torch.tensor([-9]), torch.tensor([[-9, -9, -9]])))
    assert high.tolist() == [[0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1]]
    assert low.tolist() == [[1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0]]


def test_images_among_features():
    space = spaces.Dict({"z": IMAGE, "b": spaces.Discrete(3), "a": spaces.Box(0, 255, (12,), np.uint8)})
    assert find_images(space) == (Image(15, (3, 5, 5), True),)
    assert find_images(space, (2, 2, 3)) == (Image(0, (2, 2, 3), False), Image(15, (3, 5, 5), True))
    inputs = AgentInputs(space, spaces.Discrete(4), scale_images=True)
    assert inputs.images() == (Image(15 + 2 + 4, (3, 5, 5), True),)      # is_t0 and prev_action come before z
    obs = trees.apply(torch.as_tensor, space.sample())
    features = inputs(trees.apply(lambda x: x[None], obs), torch.tensor([1]), torch.tensor([False]))
    (image,) = inputs.images()
    assert torch.equal(features[0, image.offset:image.offset + 75].view(image.shape), obs["z"] * (1 / 255))
    assert AgentInputs(spaces.Discrete(2), spaces.Discrete(2)).images() == ()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_in_a_cuda_graph(case):
    inputs, steps = rollout(*CASES[case], scale_images=True)
    obs, action, first, want = (trees.apply(lambda *leaves: torch.stack(leaves, 1), *part) for part in zip(*steps, strict=True))
    there = inputs.to("cuda")
    obs, action, first = (trees.apply(lambda x: x.cuda(), part) for part in (obs, action, first))
    _, out, graph = captured(lambda: there(obs, action, first))
    graph.replay()
    assert torch.equal(out.cpu(), want)
