"""Jobs in child processes: from a list, or from a generator that decides late."""

import signal
import sys

import pytest

from hadamem.training.processes import INTERRUPTED, Job, run_jobs


def job(tmp_path, name, code=0, program="raise SystemExit({code})"):
    return Job(name, lambda: [sys.executable, "-c", program.format(code=code)], tmp_path / f"{name}.log")


def test_a_generator_is_asked_when_there_is_a_place(tmp_path):
    ended, asked = [], []

    def jobs():
        for n in range(3):
            asked.append((n, len(ended)))
            yield job(tmp_path, str(n))

    assert not run_jobs(jobs(), 1, tick=lambda running: ended.extend(x for x in running if x.code is not None), every=30.0)
    assert asked == [(0, 0), (1, 1), (2, 2)]
    assert [x.code for x in ended] == [0, 0, 0]


def test_where_a_second_start_comes(tmp_path):
    for kind, order in ((list, ["a", "b", "a"]), (iter, ["a", "a", "b"])):
        jobs = [job(tmp_path, "a", 1), job(tmp_path, "b")]
        ended = list[str]()
        run_jobs(kind(jobs), 1, again=lambda x: x.starts < 2, every=30.0,
                 tick=lambda running, ended=ended: ended.extend(x.name for x in running))
        assert ended == order


def test_a_job_can_be_interrupted(tmp_path):
    waiting = job(tmp_path, "a", program="import time; print('on', flush=True); time.sleep(60)")

    def tick(running):
        if waiting.log.read_text():
            waiting.interrupt()

    run_jobs([waiting], 1, tick=tick, every=0.2)
    assert waiting.code in (-signal.SIGINT, 1, 130)


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_while_a_job_starts(tmp_path, started):
    """The child is stopped, and nothing counts as finished."""
    class Unlucky(Job):
        def start(self, slot):
            if started:
                super().start(slot)
            raise KeyboardInterrupt

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    jobs = [Unlucky(name, lambda: command, tmp_path / f"{name}.log") for name in "ab"]
    assert run_jobs(jobs, 2)
    assert jobs[1].code == INTERRUPTED
    assert jobs[0].code == INTERRUPTED if not started else jobs[0].code != 0
    assert not started or jobs[0].process.poll() is not None
