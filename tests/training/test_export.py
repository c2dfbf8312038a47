"""Exported programs act as their policy does, without hadamem, for every memory; what does not, is not written."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import hadamem as hm
from hadamem.training import agreement
from hadamem.training import export as exporting
from hadamem.training.agreement import ExportError, random_inputs
from hadamem.training.policy import Policy
from hadamem.training.step import Step, _tree
from tests.envs.toys import Actions, Mixed, Shapes

from .test_policy import BOX, MULTI, scrambled, trainer
from .toys import Recall

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
export_speed = pytest.importorskip("export_speed")      # of benchmarks/
ROOT = Path(__file__).parents[2]
START = functools.partial(Actions, spaces.Discrete(3, start=2))
SAC = {"num_epochs": None, "num_minibatches": None, "encoder_size": None, "layer_size": None, "head_size": None}
CASES = {      # settings of a run, and what the program has beside the usual inputs
    "dict with an image": ({"env": Mixed, "memory": "gru"}, {}),
    "dict, drawn actions": ({"env": Recall, "memory": "shm-paper"}, {"noise": True}),
    "parts, masked": ({"env": MULTI, "memory": "gru"}, {"mask": True}),
    "joint parts, masked and drawn": ({"env": MULTI, "memory": "gru", "joint_actions": "always", "joint_previous_action": True},
                                      {"mask": True, "noise": True}),
    "box, drawn, sees rewards": ({"env": BOX, "memory": "lstm", "previous_reward": True}, {"noise": True}),
    "actions from 2": ({"env": START, "memory": "none"}, {}),
    "image, two memories": ({"env": "VisualMatch", "memory": "ffm", "separate_memories": True}, {}),
    "nothing but observations": ({"env": "popgym/BattleshipEasy", "memory": "none", "time_encoding": "none", "previous_action": False,
                                  "first_step": False}, {}),
    "sac": ({"env": BOX, "memory": "shm", "agent": "sac", **SAC}, {}),
    "sac-discrete": ({"env": "popgym/RepeatPreviousEasy", "memory": "shm-paper", "agent": "sac-discrete", **SAC}, {"mask": True}),
}


def make_policy(memory="shm-paper", **settings):
    torch.manual_seed(0)
    made = trainer(**{"memory": memory, **settings})
    return Policy.of(scrambled(made))


def balanced_policy(memory):
    """Its actions vary: one that always did the same would agree with anything."""
    return export_speed.balance(make_policy(memory))


def session_of(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(None, given), strict=True))


def program_of(path):
    program = torch.export.load(path).module()
    return lambda given: {name: x.detach().numpy() for name, x in program({k: torch.from_numpy(x) for k, x in given.items()}).items()}


def namespaces(program):
    """Of the operations: "aten" are PyTorch's own."""
    return {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


def assert_same_actions(policy, run, steps, n):
    """Both go on from their own states, as they would in use, across resets."""
    step = Step(policy)
    theirs = np.zeros((n, step.layout.size), np.float32)
    mine = step.layout.unpack(torch.from_numpy(theirs))
    chosen = []
    for t, given in enumerate(random_inputs(step, steps, n, seed=n)):
        action, mine = policy.act(given["obs"], mine, given["reset"], deterministic=True)
        found = run({**given, "state": theirs})
        np.testing.assert_array_equal(found["action"], action, err_msg=f"step {t}")
        theirs = found["next_state"]
        chosen.append(action)
    assert export_speed.commonest(np.concatenate(chosen)) < 0.7


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """SHM.paper, whose random rows are drawn from an integer in the state; its ONNX file."""
    policy = balanced_policy("shm-paper")
    return policy, policy.export(tmp_path_factory.mktemp("export") / "policy.onnx")


@pytest.mark.parametrize("n", [1, 3])
def test_onnx_chooses_the_same_actions(paper, n):
    policy, made = paper
    assert_same_actions(policy, session_of(made.path), 200, n)


@pytest.mark.slow
@pytest.mark.parametrize("memory", hm.list_memories())
def test_every_memory_chooses_the_same_actions(memory, tmp_path):
    """1,000 steps in one row and in three, in both formats."""
    policy = balanced_policy(memory)
    rounding = 1e-4 if memory == "shm-release" else 2e-5      # its states exceed 1e4: outputs of 70 are differences of such
    for made, load in ((policy.export(tmp_path / "a.onnx"), session_of), (policy.export(tmp_path / "a.pt2"), program_of)):
        assert made.difference < rounding
        for n in (1, 3):
            assert_same_actions(policy, load(made.path), 1000, n)
    assert namespaces(torch.export.load(tmp_path / "a.pt2")) == {"aten"}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_input_and_agent(case, format, tmp_path):
    settings, more = CASES[case]
    policy = make_policy(**{name: x for name, x in settings.items() if x is not None}) if "agent" not in settings else sac_policy(settings)
    made = policy.export(tmp_path / "policy", format, **more)
    assert made.difference is not None      # it was compared, and rounding is all that differs
    names = [port.name for port in made.inputs]
    assert {"reset", "state", *more} <= set(names)
    assert ("reward" in names) == policy.sees_reward
    outputs = [port.name for port in made.outputs]
    assert outputs[0] == "action"
    assert ("logits" in outputs) != ({"mean", "log_std"} <= set(outputs))
    assert ("value" in outputs) == (policy.name == "ppo")


class Masks(Shapes):
    """Without the dtypes that NumPy does not sample."""

    def __init__(self, tuples):
        super().__init__(tuples)
        self.observation_space = spaces.Dict({name: self.observation_space[name] for name in ("small", "action_mask")})

    def obs(self):
        return {name: x for name, x in super().obs().items() if name in self.observation_space.spaces}


@pytest.mark.parametrize("tuples", [False, True])
def test_masks_in_observations(tuples):
    """One [2, 4] or a tuple of parts: the step forbids what `policy.act` forbids."""
    policy = make_policy("none", env=functools.partial(Masks, tuples))
    step = Step(policy)
    state, mine = torch.zeros(3, step.layout.size), policy.initial_state(3)
    for given in random_inputs(step, 20, 3):
        given = {name: torch.from_numpy(x) for name, x in given.items()}
        found = step({**given, "state": state})
        obs = _tree(policy.observation_space, {path: given[name] for name, path in step.paths.items()})
        action, mine = policy.act(obs, mine, given["reset"], deterministic=True)
        assert torch.equal(found["action"], action)
        allowed = torch.cat([given[name].reshape(3, -1, 4) for name in step.masks], 1)
        assert allowed.gather(2, action[..., None].long()).all()
        state = found["next_state"]


def sac_policy(settings):
    from hadamem.runs.config import make_config
    from hadamem.training.trainer import Trainer

    env = settings["env"]
    named = isinstance(env, str)
    config = make_config(env=env if named else "given", memory=settings["memory"], agent=settings["agent"], device="cpu", num_envs=4,
                         memory_size=8, log=(), **({} if named else {"workers": 0}))
    return Policy.of(scrambled(Trainer(config, None if named else env)))


def test_sac_leaves_its_critics_out():
    policy = sac_policy({"env": BOX, "memory": "gru", "agent": "sac"})
    assert Step(policy).layout.size == 8 + 2      # the actor's memory and the previous action


def test_a_program_of_torch_holds_plain_pytorch(tmp_path):
    policy = balanced_policy("gru")
    obs = torch.tensor([1, 2, 3])
    before, _ = policy.act(obs, None, deterministic=True)
    made = policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(made.path, extra_files=(about := {"hadamem.json": ""}))
    assert namespaces(program) == {"aten"}
    assert json.loads(about["hadamem.json"])["memory"] == "gru"
    assert str(ROOT).encode() not in made.path.read_bytes()
    assert_same_actions(policy, program_of(made.path), 50, 2)
    assert torch.equal(before, policy.act(obs, None, deterministic=True)[0])      # the policy is as it was


def test_the_file_says_what_it_is(paper):
    policy, made = paper
    about = onnxruntime.InferenceSession(str(made.path)).get_modelmeta().custom_metadata_map
    assert (about["hadamem"], about["memory"], about["agent"]) == (hm.__version__, "shm-paper", "ppo")
    assert json.loads(about["inputs"])["state"] == {"shape": ["N", Step(policy).layout.size], "dtype": "float32",
                                                    "is": "what the policy remembers; zeros at the start"}
    assert list(json.loads(about["outputs"])) == ["action", "logits", "value", "next_state"]
    assert made.bytes == made.path.stat().st_size
    assert str(ROOT).encode() not in made.path.read_bytes()


BLOCKED = """
import sys
for name in ("torch", "hadamem", "onnx", "gymnasium"):
    sys.modules[name] = None      # importing it fails
import runpy, json
import numpy as np
sys.argv = sys.argv[1:]
serve = runpy.run_path(sys.argv[0], run_name="__main__")
policy = serve["Policy"](sys.argv[1])
cards = np.random.default_rng(1).integers(4, size=30)
print(json.dumps([int(policy.act(np.array([t % 12 == 0]), obs=cards[t:t + 1])["action"][0]) for t in range(30)]))
"""


def test_the_example_serves_it_without_torch_or_hadamem(paper, tmp_path):
    policy, made = paper
    command = [sys.executable, "-c", BLOCKED, str(ROOT / "examples" / "serve_onnx.py"), str(made.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said, actions = done.stdout.splitlines()
    assert said.endswith("of 980 answers were right")
    cards, step = np.random.default_rng(1).integers(4, size=30), Step(policy)
    state, want = step.layout.unpack(torch.zeros(1, step.layout.size)), []
    for t in range(30):
        action, state = policy.act(cards[t:t + 1], state, np.array([t % 12 == 0]), deterministic=True)
        want.append(int(action[0]))
    assert json.loads(actions) == want


# --- states in a vector --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["shm-paper", "ffm", "gpt2", "dnc"])
def test_a_state_comes_back_bit_for_bit(memory):
    policy = make_policy(memory)
    obs = torch.tensor([0, 1, 3])
    _, state = policy.act(obs, policy.initial_state(3, torch.Generator().manual_seed(3)), torch.tensor([False, True, False]))
    layout = Step(policy).layout
    vector = layout.pack(state)
    assert vector.shape == (3, layout.size)
    for x, y in zip(hm.states.tensors(state), hm.states.tensors(layout.unpack(vector)), strict=True):
        assert torch.equal(x, y)
        assert x.dtype == y.dtype


def test_large_and_negative_integers_and_float64():
    policy = make_policy(memory_options={"backend": "reference"})
    policy.network.double()
    layout = Step(policy).layout
    state = layout.unpack(torch.zeros(4, layout.size, dtype=torch.float64))
    clock = torch.tensor([0, -1, (1 << 62) + 12345, -(1 << 63)])
    memory = state.network.actor.memory._replace(clock=clock, M=torch.randn(4, 8, 8, dtype=torch.float64))
    state = state._replace(network=state.network._replace(actor=state.network.actor._replace(memory=memory)))
    back = layout.unpack(layout.pack(state)).network.actor.memory
    assert torch.equal(back.clock, clock)
    assert torch.equal(back.M, memory.M)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "words"), [
    ("policy.bin", {}, "does not say which format is wanted; end it with .onnx or .pt2, or pass format"),
    ("policy", {"format": "tflite"}, "unknown format 'tflite'; choose from onnx, torch"),
    ("", {"format": "onnx"}, "is a folder; pass the name of a file, such as"),
    ("policy.onnx", {"mask": True}, "mask needs Discrete or MultiDiscrete actions, but those of the policy are Box"),
])
def test_bad_input(name, options, words, tmp_path):
    policy = make_policy("none", env=BOX)
    with pytest.raises(ValueError, match=words):
        policy.export(tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_packages_that_are_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"the format onnx needs onnxscript: pip install 'hadamem\[onnx\]'"):
        make_policy("none").export(tmp_path / "policy.onnx")


def test_a_program_that_differs_is_not_written(monkeypatch, tmp_path):
    """And what was there before stays."""
    policy = make_policy("none")
    path = tmp_path / "policy.pt2"
    path.write_text("an older file")
    load = exporting._torch

    def wrong(*args):
        data, run = load(*args)
        return data, lambda given: {name: x + (name == "value") for name, x in run(given).items()}

    monkeypatch.setattr(exporting, "_torch", wrong)
    with pytest.raises(ExportError, match=r"the program's value differs from the policy's by .* at step 0"):
        policy.export(path)
    assert path.read_text() == "an older file"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "change", "words"), [
    ("action", lambda x: (x + 1) % 4, "the program chose .* at step 0, and the policy"),
    ("logits", lambda x: x * np.nan, "logits differs from the policy's by inf"),
    ("next_state", lambda x: x + np.float32(1), "next_state has other integers than the policy's at step 0"),
    ("next_state", lambda x: x[:, :-1], "next_state has other integers"),
    ("value", lambda x: x[:, None], "value differs from the policy's by inf"),
])
def test_the_comparison_notices(name, change, words):
    step = Step(make_policy("none"))

    def run(given):
        found = {key: x.detach().numpy() for key, x in step({k: torch.from_numpy(x) for k, x in given.items()}).items()}
        return {**found, name: change(found[name])}

    with pytest.raises(ExportError, match=words):
        agreement.compare(step, run, steps=3)


def test_differences_are_measured_by_the_largest_entry():
    y = np.array([[1e6, 1.0], [-8.5e37, 3.0]], np.float32)
    assert agreement.difference(y, y) == 0
    assert agreement.difference(y + np.float32([[0, 0.5], [0, 0]]), y) == pytest.approx(5e-7, rel=1e-3)
    assert agreement.difference(y + np.float32([[0, 0], [0, 0.5]]), y) == pytest.approx(0.125)
    assert agreement.difference(y * np.float32([[1, 1], [0.5, 1]]), y) == pytest.approx(0.5)
    assert agreement.difference(np.array([np.inf]), np.array([np.inf])) == 0
    assert agreement.difference(np.array([np.nan]), np.array([1.0])) == np.inf


class Looking(hm.GRU):
    """A memory that looks at its values, which no exported program can."""

    def forward(self, x, state=None, reset=None):
        return super().forward(x if float(x.sum()) > 0 else 2 * x, state, reset)


def test_a_memory_that_cannot_be_exported_is_named(tmp_path):
    policy = make_policy(f"{__name__}:Looking")
    with pytest.raises(ExportError, match=r"memory '.*:Looking' with agent 'ppo' cannot be exported: .*\w"):
        policy.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
