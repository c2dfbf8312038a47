"""Adding an env takes its own file and one line of the registry: everything else finds it by name. The page shows that file."""

import io
from pathlib import Path

import gymnasium
import pytest
import torch

from hadamem import envs
from hadamem.envs import render
from hadamem.envs.listing import rows
from hadamem.envs.play import play
from hadamem.envs.registry import TASKS

from . import parity

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture
def name():
    envs.register_env("Parity", f"{parity.__name__}:Parity", dict(steps=5), "name the parity of all bits so far")
    yield "Parity"
    forget("Parity")


def forget(name):
    del TASKS[name]
    del gymnasium.registry[envs.gymnasium_id(name)]


def test_make_and_list(name):
    env = envs.make(name, num_envs=64, seed=0)
    assert isinstance(env, parity.Parity)
    assert name in envs.list_envs()
    row = next(row for row in rows() if row.name == name)
    assert row[1:] == ("Discrete 2", "Discrete 2", "5", "name the parity of all bits so far")
    assert envs.make(name, steps=9).episode_steps == 9
    with pytest.raises(TypeError, match="Parity has no option 'step'; it takes steps, device"):
        envs.make(name, step=3)


def test_it_plays_by_its_rules(name):
    """A player that adds up what it observes is always right."""
    env = envs.make(name, num_envs=64, seed=0)
    parities, total = env.reset()[0], torch.zeros(64)
    for _ in range(5):
        obs, reward, terminated, _, info = env.step(parities)
        parities, total = parities ^ info["final_obs"], total + reward
    assert bool(terminated.all())
    assert torch.allclose(total, torch.ones(64))
    assert 0 < int(obs.sum()) < 64


def test_gymnasium_knows_it(name):
    assert gymnasium.make("hadamem/Parity-v0", steps=3).unwrapped.batch.episode_steps == 3
    many = gymnasium.make_vec("hadamem/Parity-v0", num_envs=4, vectorization_mode="vector_entry_point")
    assert isinstance(many.batch, parity.Parity)
    assert isinstance(envs.make("hadamem/Parity-v0"), parity.Parity)


def test_names_that_gymnasium_cannot_have(name):
    with pytest.raises(ValueError, match=r"'lab/Parity' has the same Gymnasium id as 'Parity' \('hadamem/Parity-v0'\); choose another"):
        envs.register_env("lab/Parity", parity.Parity)
    with pytest.raises(ValueError, match="'my parity' makes no Gymnasium id"):
        envs.register_env("my parity", parity.Parity)
    assert not {"lab/Parity", "my parity"} & set(TASKS)
    del TASKS[name]      # as when a module is loaded again
    envs.register_env(name, parity.Parity)


def test_text_and_picture(name):
    env = envs.make(name, seed=0)
    env.reset()
    assert render.text(env) == f"step 0 of 5\nbit {int(env.bit)}\nparity {int(env.parity)}"
    assert "parity" not in render.text(env, hidden=False)
    assert render.picture(env).shape == (128, 480, 3)


def test_play(name):
    out = io.StringIO()
    play(name, seed=0, source=io.StringIO("e\no\nq\n"), out=out)
    assert "Parity: name the parity of all bits so far\nactions: e even, o odd (or 0 to 1)" in out.getvalue()
    assert out.getvalue().count("reward") == 2
    assert parity.Parity.action_names() == {0: "even", 1: "odd"}


def test_other_ways():
    """Without a registration: the class itself, or its name as a script's user would write it."""
    env = envs.make(f"{parity.__name__}:Parity", num_envs=3, steps=4)
    assert isinstance(env, parity.Parity)
    assert (env.num_envs, env.episode_steps) == (3, 4)
    envs.register_env("Parity", parity.Parity)
    try:
        assert type(envs.make("Parity")) is parity.Parity
        with pytest.raises(ValueError, match="'Parity' is registered already"):
            envs.register_env("Parity", parity.Parity)
    finally:
        forget("Parity")
    with pytest.raises(TypeError, match=r"target must be a BatchedEnv class.*got <class 'int'>"):
        envs.register_env("Number", int)


def test_the_page_shows_the_same_code():
    code = Path(parity.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert code in PAGE.read_text(encoding="utf-8")
