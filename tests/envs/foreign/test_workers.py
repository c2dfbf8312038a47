"""Worker processes: errors come back with the env's index and traceback, and no process outlives its parent."""

import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from hadamem import envs
from hadamem.envs.foreign import pool

from ..toys import Fragile, Imported, Mixed, Slow, Unmakeable
from .beside import PLACES


def alive(env):
    return [p for p in env.backend.processes if p.poll() is None]


@pytest.mark.parametrize("workers", PLACES)
def test_errors_of_an_env_come_back(workers):
    env = envs.adapt(Fragile, num_envs=3, workers=workers)
    env.reset(seed=0)
    env.step([0, 0, 0])
    with pytest.raises(envs.EnvError, match=r"env 0 failed in step\(.*2.*\): ZeroDivisionError: the pole fell off the table") as caught:
        env.step([0, 0, 0])
    if workers:
        assert "toys.py" in str(caught.value)        # the traceback of the worker
        assert alive(env) == []
        with pytest.raises(RuntimeError, match="one of its envs failed"):
            env.reset()
    else:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(RuntimeError, match=r"interrupted.*reset\(\)"):      # the others may be a step ahead
            env.step([0, 0, 0])
        with pytest.raises(ValueError, match="without it"):
            env.reset(options={"reset_mask": np.array([True, False, False])})
        obs, _ = env.reset(seed=0)
        assert obs["pair"][1][:, 0].tolist() == [0, 0, 0]
        assert env.step([0, 0, 0])[0]["pair"][1][:, 0].tolist() == [1, 1, 1]
    env.close()


@pytest.mark.parametrize("workers", PLACES)
def test_an_env_that_calls_exit(workers):
    env = envs.adapt(Fragile, num_envs=2, workers=workers, when=1, how="sys.exit")
    env.reset(seed=0)
    with pytest.raises(envs.EnvError, match=r"^env 0 failed in step\(.*2.*\): it called sys.exit\(None\)"):
        env.step([0, 0])
    env.close()


def test_the_death_of_a_worker_is_an_error():
    env = envs.adapt(Fragile, num_envs=2, workers=2, how="exit")
    env.reset(seed=0)
    env.step([0, 0])
    with pytest.raises(envs.EnvError, match="envs 0 to 0 ended with code 3"):
        env.step([0, 0])
    assert alive(env) == []


@pytest.mark.parametrize("workers", PLACES)
def test_envs_that_cannot_be_made(workers):
    with pytest.raises(envs.EnvError, match="env 0 failed in its construction: OSError: no such robot"):
        envs.adapt(Unmakeable, num_envs=2, workers=workers)
    shapes = iter([(3, 4, 4), (3, 5, 5)])
    if not workers:
        with pytest.raises(ValueError, match="same observation space"):
            envs.adapt(lambda: Mixed(picture=next(shapes)), num_envs=2, workers=0)


def test_workers_import_neither_hadamem_nor_torch():
    env = envs.adapt(Imported, num_envs=2, workers=2)
    assert env.reset(seed=0)[0].tolist() == [0, 0]
    env.close()


def test_files_in_the_working_directory_stay_out_of_workers(tmp_path, monkeypatch):
    for name in ("random", "tempfile", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not what you want')")
    monkeypatch.chdir(tmp_path)
    env = envs.adapt("CartPole-v1", num_envs=2, workers=1)
    assert env.reset(seed=0)[0].shape == (2, 4)
    env.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate") or not os.path.isdir("/dev/shm"), reason="needs posix_fallocate and /dev/shm")
@pytest.mark.parametrize("everywhere", [False, True])
def test_too_little_shared_memory(tmp_path, monkeypatch, everywhere):
    asked = []

    def reserve(file, start, size):
        place = os.readlink(f"/proc/self/fd/{file}")
        asked.append(place)
        if everywhere or place.startswith("/dev/shm"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    if everywhere:
        with pytest.raises(OSError, match=r"share arrays of \d+ bytes.*--shm-size"):
            envs.adapt(Mixed, num_envs=2, workers=1)
    else:
        env = envs.adapt(Mixed, num_envs=2, workers=1)
        assert env.reset(seed=0, options={"start": 3})[0]["pair"][0].tolist() == [3, 3]
        env.close()
    assert [str(Path(place).parent) for place in asked] == ["/dev/shm", str(tmp_path)]
    assert not any(os.path.exists(place) for place in asked)


def test_processes_end_with_the_env():
    env = envs.adapt(Mixed, num_envs=2, workers=2)
    processes = env.backend.processes
    assert len(alive(env)) == 2
    del env
    gc.collect()
    assert [p.poll() for p in processes] == [0, 0]


SCRIPT = """
    import gymnasium, hadamem as hm
    class Own(gymnasium.Env):                     # in the main script, which has no `if __name__ == "__main__"`
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return 0, dict()
        def step(self, action):
            return 1, 1.0, False, False, dict()
    gymnasium.register("Own-v0", entry_point=Own)
    env = hm.envs.adapt("Own-v0", num_envs=2, workers=2)
    env.reset(seed=0)
    print(env.step([0, 1])[0].tolist(), *(p.pid for p in env.backend.processes), flush=True)
    {then}
"""


def script(tmp_path, then):
    path = tmp_path / "main.py"
    path.write_text(textwrap.dedent(SCRIPT).format(then=then))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone(pid, tries=100):
    for _ in range(tries):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("ends", "interrupted")), "killed"])
def test_processes_end_with_the_parent(tmp_path, how):
    parent = script(tmp_path, "" if how == "ends" else "while True: env.step([0, 1])")
    obs, *pids = parent.stdout.readline().rsplit(maxsplit=2)
    assert obs == "[1, 1]"
    if how != "ends":
        time.sleep(0.1)
        parent.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
    _, err = parent.communicate(timeout=30)
    assert all(gone(int(pid)) for pid in pids)
    if how == "interrupted":
        assert err.count("Traceback") == 1
        assert err.strip().endswith("KeyboardInterrupt")
    else:
        assert err == ""


HANGS = """
    import ctypes, pathlib, threading, gymnasium, hadamem as hm
    from hadamem.envs.foreign import pool
    pool.PATIENCE = 1                             # second
    class Hangs(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            self.seed = seed
            return 0, dict()
        def step(self, action):
            while self.seed:
                print("hangs", flush=True)
                {hang}
            return 0, 0.0, False, False, dict()
        def close(self):
            pathlib.Path("closed").touch()
    def make():
        global env
        env = hm.envs.adapt(Hangs, num_envs=2, workers=2)
        env.reset(seed=0)
    thread = threading.Thread(target=make)
    {step}
    print(*(p.pid for p in env.backend.processes), flush=True)
    env.step([0, 0])
"""


@pytest.mark.parametrize(("hang", "thread"), [
    pytest.param(hang, thread, id=f"{where}-{thread}", marks=[] if (where, thread) == ("in C", False) else pytest.mark.slow)
    for hang, where in (("while True: pass", "in Python"), ("ctypes.CDLL(None).sleep(30)", "in C")) for thread in (False, True)])
def test_a_worker_that_hangs_ends_with_a_killed_parent(tmp_path, hang, thread):
    """Also if the thread that started it has ended."""
    text = textwrap.dedent(HANGS).format(hang=hang, step="thread.start(), thread.join()" if thread else "make()")
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    pids = parent.stdout.readline().split()
    assert parent.stdout.readline() == "hangs\n"
    time.sleep(1.5)                               # longer than the watchdog sleeps: workers of a living parent must stay
    assert not any(gone(int(pid), tries=1) for pid in pids)
    parent.kill()
    parent.wait()
    assert all(gone(int(pid)) for pid in pids)
    assert (tmp_path / "closed").exists()         # by the other worker, in its second of grace
    parent.stdout.close()


def test_envs_that_do_not_answer_are_named(monkeypatch):
    env = envs.adapt(Slow, num_envs=4, workers=2)
    env.reset(seed=0)
    monkeypatch.setattr(pool, "QUIET", 0.05)
    with pytest.warns(RuntimeWarning, match="envs 0 to 1 have not answered"):
        env.step([2, 2, 2, 2])
    env.close()


def test_a_step_that_was_interrupted(monkeypatch):
    env = envs.adapt(Mixed, num_envs=2, workers=2)
    env.reset(seed=0)
    poll = type(env.backend.connections[1]).poll

    def interrupt(self, timeout=0.0):
        if self is env.backend.connections[1]:
            raise KeyboardInterrupt
        return poll(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(type(env.backend.connections[1]), "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step([0, 0])
    with pytest.raises(RuntimeError, match="interrupted"):
        env.step([0, 0])
    obs, _ = env.reset(seed=0)
    assert obs["pair"][1][:, 0].tolist() == [0, 0]
    env.close()
