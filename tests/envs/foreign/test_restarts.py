"""Worker processes that die or hang are started again, and the episodes they took with them end as truncated ones."""

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from hadamem import envs
from hadamem.envs.foreign import pool

from ..toys import Fragile, Mixed, Stuck


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE", 0.5)      # seconds that a hanging worker delays the end


def rows(obs, which):
    return [obs["pair"][0][which].tolist(), obs["pair"][1][which].tolist(), obs["picture"][which].tolist()]


def run_and_kill(steps=2):
    """What the step gives in which worker 1 of 2 is found dead; the observations before it; and the env."""
    env = envs.adapt(Mixed, num_envs=4, workers=2, env_restarts=1, length=9)
    env.reset(seed=0)
    for _ in range(steps):
        before = env.step([0, 1, 1, 0])[0]
    env.backend.processes[1].kill()
    env.backend.processes[1].wait()
    with pytest.warns(RuntimeWarning, match="of envs 2 to 3 was killed by signal 9: restarted with new episodes, 1 of 1 restarts used"):
        found = env.step([0, 1, 1, 0])
    return found, before, env


def test_a_worker_that_dies_is_started_again():
    (obs, reward, terminated, truncated, info), before, env = run_and_kill()
    assert not terminated.any()
    assert truncated.tolist() == info["_final_obs"].tolist() == env.started.tolist() == [False, False, True, True]
    assert reward.tolist() == [1.0, 1.5, 0.0, 0.0]
    assert rows(info["final_obs"], slice(2, 4)) == rows(before, slice(2, 4))      # the last that is known
    assert info["final_info"] == [None, None, {"env_restarted": True}, {"env_restarted": True}]
    assert obs["pair"][1][:, 0].tolist() == [3, 3, 0, 0]                          # the others went on
    assert info["action_mask"][3].tolist() == [False, True, True]                 # of the new episode
    assert env.restarted == 1
    assert env.step([0, 1, 1, 0])[0]["pair"][1][:, 0].tolist() == [4, 4, 1, 1]
    for worker in (0, 1):
        env.backend.processes[worker].kill()
    with pytest.raises(envs.EnvError, match=r"envs 0 to 1 was killed by signal 9, and all 1 restarts \(env_restarts\) are used up"):
        env.step([0, 1, 1, 0])
    assert all(process.poll() is not None for process in env.backend.processes)


def test_the_new_episodes_are_others_and_can_be_repeated():
    seen = []
    for _ in range(2):
        _, _, env = run_and_kill(steps=1)
        episodes = []
        for _ in range(9 * 6):
            obs, *_ = env.step([0, 1, 1, 0])
            episodes.append(obs["pair"][0].tolist())
        env.close()
        seen.append(episodes)
    assert seen[0] == seen[1]
    whole = envs.adapt(Mixed, num_envs=4, workers=0, length=9)
    whole.reset(seed=0)
    undisturbed = [whole.step([0, 1, 1, 0])[0]["pair"][0].tolist() for _ in range(2 + 9 * 6)][2:]
    assert [row[:2] for row in undisturbed] == [row[:2] for row in seen[0]]
    assert [row[2:] for row in undisturbed] != [row[2:] for row in seen[0]]


def test_a_worker_that_hangs_is_started_again():
    """It hangs in the third step of every process."""
    env = envs.adapt(Stuck, num_envs=2, workers=1, env_restarts=1, env_timeout=1.0)
    env.reset(seed=0)
    for _ in range(2):
        assert not env.step([0, 0])[3].any()
    with pytest.warns(RuntimeWarning, match=r"envs 0 to 1 did not answer within 1 s \(env_timeout\): restarted"):
        assert env.step([0, 0])[3].all()
    for _ in range(2):
        assert not env.step([0, 0])[3].any()
    with pytest.raises(envs.EnvError, match=r"did not answer within 1 s \(env_timeout\), and all 1 restarts"):
        env.step([0, 0])


def test_without_restarts_a_time_limit_is_an_error():
    env = envs.adapt(Stuck, num_envs=1, env_timeout=1.0)      # a single env has a worker, too
    env.reset(seed=0)
    env.step([0])
    env.step([0])
    with pytest.raises(envs.EnvError, match=r"envs 0 to 0 did not answer within 1 s \(env_timeout\); its error"):
        env.step([0])


def test_a_worker_that_dies_between_episodes_is_started_again():
    env = envs.adapt(Mixed, num_envs=2, workers=2, env_restarts=3)
    env.reset(seed=0)
    told = []
    env.backend.notify = told.append
    env.backend.processes[0].kill()
    obs, _ = env.reset(seed=4)
    assert obs["pair"][1][:, 0].tolist() == [0, 0]
    assert len(told) == env.restarted == 1
    env.close()


def test_errors_of_an_env_are_no_reason_to_restart():
    env = envs.adapt(Fragile, num_envs=2, workers=2, env_restarts=3)
    env.reset(seed=0)
    env.step([0, 0])
    with pytest.raises(envs.EnvError, match="ZeroDivisionError"):
        env.step([0, 0])


def test_bad_arguments():
    for options, match in (({"env_restarts": 1, "workers": 0}, "need worker processes, got workers=0"),
                           ({"env_timeout": 1.0, "workers": 0}, "need worker processes"),
                           ({"env_restarts": -1}, "env_restarts must be"), ({"env_timeout": -1.0}, "env_timeout must be"),
                           ({"env_restarts": 1, "autoreset_mode": "next_step"}, "same_step")):
        with pytest.raises(ValueError, match=match):
            envs.adapt(Mixed, num_envs=2, **options)
    with pytest.raises(ValueError, match="single env"):
        envs.adapt(Mixed(), env_restarts=1)
    with pytest.raises(TypeError, match="used as it is"):
        envs.adapt(SyncVectorEnv([Mixed]), env_restarts=1)


def test_arrays_outlive_workers_that_share_them():
    """The file that they are in was deleted long ago."""
    env = envs.adapt(Mixed, num_envs=2, workers=1, env_restarts=2, length=3)
    env.backend.notify = lambda text: None
    env.reset(seed=0)
    for _ in range(2):
        env.backend.processes[0].kill()
        assert env.step([0, 0])[3].all()
        assert torch.equal(env.observe()["pair"][1][:, 0], torch.zeros(2, dtype=torch.float64))
        assert np.array_equal(env.step([0, 0])[0]["pair"][1], [[1, 2], [1, 2]])
    env.close()
