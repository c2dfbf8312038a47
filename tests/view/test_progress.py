"""The live view: its numbers, and that it fits any terminal."""

import contextlib
import dataclasses
import io
import os
from types import SimpleNamespace

import pytest
import torch

from hadamem.runs.config import make_config
from hadamem.view.progress import POINTS, Progress, Summary, clock, evaluation_text, number, percent

pytest.importorskip("rich")
from rich.cells import cell_len
from rich.console import Console


def row(i, value=0.5, batch=100, **more):
    return {"iteration": i, "steps": i * batch, "episodes": 50.0, "return": value, "length": 10.0, "entropy": 1.2, "kl": 0.01,
            "value_loss": 0.1, "seconds": 2.0, "rollout_seconds": 0.5, "update_seconds": 1.5, "skipped": 0.0, **more}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def tally_of(values, seconds=2.0, first=1, **more):
    clock = Clock()
    tally = Summary(clock)
    for i, value in enumerate(values, start=first):
        clock.now += seconds
        tally.add(row(i, value, **more))
    return tally


def test_speed_and_time_left():
    tally = tally_of([0.0] * 5)
    assert tally.rate == pytest.approx(50)                # 100 steps every 2 s
    assert tally.seconds_left(1000) == pytest.approx(10)
    assert tally.seconds_left(100) == 0
    assert (tally.time_share("rollout"), tally.time_share("update")) == (pytest.approx(0.25), pytest.approx(0.75))


def test_speed_is_the_recent_one():
    tally = tally_of([0.0] * 20)
    for i in range(21, 60):
        tally.clock.now += 1.0
        tally.add(row(i))
    assert tally.rate == pytest.approx(100)


def test_the_speed_of_a_resumed_run_ignores_earlier_steps():
    tally = tally_of([0.0], first=500)
    assert tally.rate == pytest.approx(50)


def test_return_is_the_mean_of_the_last_episodes():
    tally = tally_of([0.0, 0.0, 1.0, 3.0])                # 50 episodes each: the last two rows make 100
    assert tally.mean("return") == pytest.approx(2.0)
    assert tally.mean("success") is None
    tally.add(row(5, episodes=0.0))                       # none ended
    assert tally.mean("return") == pytest.approx(2.0)
    assert tally_of([1.0, 2.0], episodes=300.0).mean("return") == pytest.approx(2.0)


def test_a_row_without_episodes_shows_a_dash():
    tally = Summary()
    tally.add({"iteration": 1, "steps": 100, "episodes": 0.0, "seconds": 1.0})
    assert tally.mean("return") is None
    assert tally.sparkline(10) == ""


def test_the_curve_stays_small():
    tally = tally_of([float(i) for i in range(20 * POINTS)], seconds=1e-3)
    assert len(tally.curve) <= POINTS
    assert len(tally.times) < 20_000
    assert sum(n for _, n in tally.curve) <= 20 * POINTS
    means = [mean for mean, _ in tally.curve]
    assert means == sorted(means)
    assert tally.sparkline(8) == "▁▂▃▄▅▆▇█"


def test_a_flat_curve_does_not_jump():
    assert set(tally_of([0.5, 0.5001, 0.5, 0.4999]).sparkline(4)) <= set("▁▂▃▄▅")
    assert tally_of([2.0] * 6).sparkline(3) == "▁▁▁"


@pytest.mark.parametrize(("x", "text"), [(None, "-"), (0.0, "0.000"), (-0.4567, "-0.457"), (12.3456, "12.346"), (1234.5, "1.23e+03"),
                                         (0.00123, "0.00123")])
def test_number(x, text):
    assert number(x) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.4, "0:00"), (62, "1:02"), (3723, "1:02:03"), (400_000, "111:06:40")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_percent():
    assert (percent(None), percent(0.0), percent(0.999)) == ("-", "0 %", "100 %")


CONFIG = make_config(env="popgym/RepeatPreviousEasy", steps=1000)
BUILT = SimpleNamespace(device="cpu", network=torch.nn.Linear(1000, 63), num_envs=80, steps=51, replay=None)


def test_lines_without_a_terminal():
    out = io.StringIO()
    with Progress(CONFIG, "runs/x", out, every=1e9) as progress:
        progress.built(BUILT)
        for i in range(1, 11):
            progress(row(i, success=0.25))
    head, first, last = out.getvalue().splitlines()      # the first and the last row; the others came within `every` seconds
    assert head == "popgym/RepeatPreviousEasy, ppo with shm, preset default: cpu, 63,063 parameters, 80 envs x 51 steps"
    assert first.startswith("step 100 (10 %), return 0.500, success 25 %, entropy 1.200, KL 0.01, value loss 0.100, ")
    assert last.startswith("step 1,000 (100 %)")
    assert last.endswith("0:00 left")
    assert "\x1b" not in out.getvalue()


EVALUATED = {"eval_return": 0.83, "eval_success": 0.91, "eval_seconds": 1.0}


def test_lines_show_the_latest_evaluation():
    out = io.StringIO()
    with Progress(CONFIG, "", out, every=0.0) as progress:
        progress(row(1))
        progress(row(2, **EVALUATED))
        progress(row(3))
        progress(row(4, eval_return=0.5))
    texts = [line.partition(", entropy")[0].partition("return 0.500")[2] for line in out.getvalue().splitlines()]
    assert texts == ["", *[", eval 0.830 (success 91 %) at 200 steps"] * 2, ", eval 0.500 at 400 steps"]


@pytest.mark.parametrize(("width", "text"), [(None, "0.830 (success 91 %) at 40,000 steps"), (36, "0.830 (success 91 %) at 40,000 steps"),
                                             (35, "0.830 (success 91 %) at 40k"), (26, "0.830 (91 %) at 40k"), (18, "0.830 (91 %)"),
                                             (11, "0.830")])
def test_an_evaluation_in_words(width, text):
    assert evaluation_text({"steps": 40_000, **EVALUATED}, width) == text


@pytest.mark.parametrize("live", [False, True])
def test_a_run_continues_when_the_output_is_closed(live):
    reading, writing = os.pipe()
    with open(writing, "w") as stream, Progress(CONFIG, "runs/x", stream, live=live, every=0.0) as progress:
        progress.built(BUILT)
        os.close(reading)
        for i in range(1, 4):
            progress(row(i))
            progress.say("a line after the output was closed")
        assert progress.tally.row["steps"] == 300
        print("a later line", file=stream, flush=True)


def test_skipped_updates_are_shown():
    out = io.StringIO()
    with Progress(CONFIG, "", out, every=0.0) as progress:
        progress(row(1, skipped=2.0))
        progress(row(2, skipped=1.0))
    assert [line.split(" updates skipped")[0][-1] for line in out.getvalue().splitlines()] == ["2", "3"]


def draw(progress, width, encoding="utf-8"):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=out, width=width, height=40, force_terminal=True, color_system=None, legacy_windows=False).print(progress)
    out.flush()
    return out.buffer.getvalue().decode(encoding).splitlines()


@pytest.mark.parametrize("width", [30, 40, 50, 64, 80, 120, 200])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_the_panel_fits_and_keeps_its_size(width, rows):
    progress = Progress(CONFIG, "runs/a-run-with-a-rather-long-name-0", io.StringIO(), live=True)
    progress.built(BUILT)
    for i in range(1, rows + 1):
        progress(row(i, -0.5 + i / 30, success=i / 30))
    lines = draw(progress, width)
    assert {cell_len(line) for line in lines} == {min(width - 2, 92)}
    assert len(lines) == (11 if width >= 66 else 16)      # the same height from the first row to the last


def test_the_contents_of_the_panel():
    progress = Progress(CONFIG, "runs/x", io.StringIO(), live=True)
    progress.built(BUILT)
    for i in range(1, 6):
        progress(row(i, float(i), success=0.5))
    text = "\n".join(draw(progress, 80))
    for words in ("popgym/RepeatPreviousEasy, ppo with shm, default", "50 %", "500 / 1,000 steps", "return", "success", "entropy", "KL",
                  "value loss", "steps/s", "rollout", "25 % of the time", "75 % of the time", "left", "63,063 parameters", "runs/x", "█"):
        assert words in text
    assert "not finite" not in text
    progress(row(6, skipped=1.0))
    assert "1 updates were not finite" in "\n".join(draw(progress, 80))


@pytest.mark.parametrize("width", [30, 40, 50, 64, 66, 80, 120])
def test_the_panel_with_evaluations_fits_and_keeps_its_size(width):
    progress, heights = Progress(dataclasses.replace(CONFIG, eval_every=100), "runs/x", io.StringIO(), live=True), set()
    progress.built(BUILT)
    for i in range(1, 5):
        progress(row(i, success=0.5, **(EVALUATED if i == 3 else {})))
        lines = draw(progress, width)
        heights.add(len(lines))
        assert {cell_len(line) for line in lines} == {min(width - 2, 92)}
        assert any("│ eval       0.830" in line for line in lines) == (i >= 3)
    assert heights == {12 if width >= 66 else 18}
    assert any("evaluation 11 % of the time" in line for line in lines) == (width > 30)      # 1 of 9 s


def test_the_panel_on_an_old_terminal():
    progress = Progress(CONFIG, "runs/x", io.StringIO(), live=True)
    for i in range(1, 6):
        progress(row(i, float(i)))
    assert "#" in "\n".join(draw(progress, 80, encoding="ascii"))


def test_the_end_of_a_failed_run_leaves_the_terminal_alone():
    out = io.StringIO()
    progress = Progress(CONFIG, "runs/x", out, live=True)
    with contextlib.suppress(RuntimeError), progress:
        progress.built(BUILT)
        progress(row(1))
        raise RuntimeError
    assert progress._panel is None
    assert out.getvalue().count("runs/x") == 1


def test_a_run_that_cannot_be_built_draws_nothing():
    out = io.StringIO()
    with pytest.raises(ValueError, match="unknown"), Progress(CONFIG, "runs/x", out, live=True):
        raise ValueError("unknown env")
    assert "steps" not in out.getvalue()


def test_the_first_line_says_how_large_the_replay_is():
    out = io.StringIO()
    replay = SimpleNamespace(capacity=12_500, nbytes=75 << 20)
    Progress(make_config("visualmatch-250"), stream=out, live=False).built(SimpleNamespace(**{**vars(BUILT), "replay": replay}))
    assert "replay of 1,000,000 steps (75.0 MiB)" in out.getvalue()
