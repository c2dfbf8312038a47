"""The view of many runs."""

import io

from hadamem.experiments.status import TaskStatus
from hadamem.view.many import ManyProgress, summary

TASKS = [TaskStatus("a-0", "finished", 100, 100, 5.0, 0.5), TaskStatus("b-0", "running", 25, 100, 2.0, -0.25),
         TaskStatus("c-0", "waiting", 0, 100), TaskStatus("d-0", "failed", 0, 100, 0.0, None, "no such thing")]


def test_summary():
    assert summary(TASKS, 75.0) == "1 of 4 finished, 1 running, 1 waiting, 1 failed, 31 %, 1:15 left"
    assert summary(TASKS[:1], 0.0) == "1 of 1 finished, 100 %"


def test_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with ManyProgress("mine", stream, every=0.0) as view:
        view(TASKS, None)
        view(TASKS, None)
    assert stream.getvalue() == "d-0 failed: no such thing\nmine: 1 of 4 finished, 1 running, 1 waiting, 1 failed, 31 %\n"


def test_the_live_view_shows_running_tasks():
    stream = io.StringIO()
    with ManyProgress("mine", stream, live=True) as view:
        view([*TASKS, *(TaskStatus(f"e-{n}", "running", 1, 100) for n in range(20))], 10.0)
    text = stream.getvalue()
    assert "b-0" in text
    assert "return -0.250" in text
    assert "and 9 more" in text
