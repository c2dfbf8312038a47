"""Frames of episodes: what they show, and how they are written as GIF, MP4 and text."""

import importlib
import io
import subprocess

import numpy as np
import pytest

from hadamem.training.evaluate import evaluate
from hadamem.view import watch
from hadamem.view.watch import Frame, play_frames, show, write

from ..envs.toys import Mixed
from ..training.test_evaluate import policy_for
from ..training.toys import Recall

NAME = "popgym/RepeatPreviousEasy"
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def policy():
    return policy_for(NAME)


def test_an_episode_frame_by_frame(policy):
    frames = list(play_frames(policy, NAME))
    assert [frame.last for frame in frames] == [False] * 51 + [True]
    assert {frame.view.shape for frame in frames} == {(272, 480, 3)}
    assert {frame.view.dtype for frame in frames} == {np.dtype(np.uint8)}
    assert frames[0].caption.split(",")[0] in ("spades", "diamonds", "clubs", "hearts")
    assert frames[-1].caption.startswith("end after 51 steps: return ")


def test_it_shows_the_episode_that_evaluate_plays(policy):
    total = evaluate(policy, NAME, 1, seed=7, deterministic=True).mean
    *_, last = play_frames(policy, NAME, seed=7, deterministic=True)
    assert last.caption == f"end after 51 steps: return {total:+.3g}"


def test_a_seed_shows_the_same_episode(policy):
    captions = [[frame.caption for frame in play_frames(policy, NAME, seed=seed)] for seed in (1, 1, 2)]
    assert captions[0] == captions[1] != captions[2]


def test_several_episodes_differ(policy):
    frames = list(play_frames(policy, NAME, episodes=2, text=True))
    assert [i for i, frame in enumerate(frames) if frame.last] == [51, 103]
    assert frames[0].view != frames[52].view


def test_long_episodes_are_stopped(policy):
    *rest, last = play_frames(policy, NAME, max_steps=5)
    assert len(rest) == 5
    assert last.caption.startswith("stopped after 5 steps")


def test_text_shows_success():
    env = policy_for("TMaze")
    *_, last = play_frames(env, "TMaze", text=True)
    assert last.caption.endswith("success")
    assert "@" in last.view


def test_a_gymnasium_env_without_rendering_shows_its_observation():
    frames = list(play_frames(policy_for(Recall), Recall, env_options={"length": 2}))
    assert len(frames) == 3
    assert all(frame.view.ndim == 3 for frame in frames)
    assert frames[0].caption.startswith("action ")


def test_a_gymnasium_env_renders_in_its_own_modes(monkeypatch):
    policy = policy_for(Mixed, num_minibatches=1)
    monkeypatch.setattr(Mixed, "metadata", {"render_modes": ["ansi"]})
    frames = list(play_frames(policy, Mixed, text=True))
    assert [frame.view.split()[0] for frame in frames] == ["t=0", "t=1", "t=2", "t=3", "t=4"]
    assert "success" in frames[-1].caption
    monkeypatch.setattr(Mixed, "metadata", {"render_modes": []})
    assert "t=0" not in next(iter(play_frames(policy, Mixed, text=True))).view


def test_gif(policy, tmp_path):
    path = write(play_frames(policy, NAME, max_steps=6), tmp_path / "new" / "episode.gif", fps=5)
    with Image.open(path) as gif:
        assert (gif.n_frames, gif.size) == (7, (480, 320))
        assert gif.info["duration"] == 200
        first = np.asarray(gif.convert("RGB")).astype(int)
        gif.seek(6)
        assert gif.info["duration"] == 1500
    want = watch.picture(next(iter(play_frames(policy, NAME))))
    assert np.abs(first - want).max() <= 8
    assert [p.name for p in path.parent.iterdir()] == ["episode.gif"]


def test_captions_fit_narrow_pictures():
    wide = watch.picture(Frame(np.zeros((20, 30, 3), np.uint8), "a" * 200, False))
    assert wide.shape[1] == 240
    assert wide.shape[0] % 16 == 0
    assert (wide[20:] < 100).any()


def test_mp4(policy, tmp_path):
    path = write(play_frames(policy, NAME, max_steps=6), tmp_path / "episode.mp4", fps=5)
    assert path.read_bytes()[4:8] == b"ftyp"
    printed = subprocess.run([watch.find_ffmpeg(), "-i", str(path)], capture_output=True, text=True).stderr
    assert "480x320" in printed
    assert "5 fps" in printed
    assert "Duration: 00:00:02.8" in printed      # 6 frames, and the last one for 1.5 s: 8 more


def test_mp4_that_fails_says_why(policy, tmp_path, monkeypatch):
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\necho out of film >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(watch, "find_ffmpeg", lambda: str(fake))
    with pytest.raises(RuntimeError, match="out of film"):
        write(play_frames(policy, NAME, max_steps=6), tmp_path / "x" / "episode.mp4")
    assert list((tmp_path / "x").iterdir()) == []


def test_without_ffmpeg_there_is_no_mp4(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"needs ffmpeg.*\.gif"):
        watch.check_path("episode.mp4")


@pytest.mark.parametrize(("path", "fps", "words"), [("a.avi", 4, "'a.avi'"), ("a", 4, "'a'"), ("a.gif", 0, "fps"), ("a.gif", 1e4, "fps")])
def test_bad_files(path, fps, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        write([], path, fps)


def test_bad_numbers(policy):
    for options, words in (({"episodes": 0}, "episodes"), ({"max_steps": 0}, "max_steps"), ({"seed": -1}, "seed")):
        with pytest.raises(ValueError, match=words):
            next(play_frames(policy, NAME, **options))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_show(monkeypatch):
    naps = []
    monkeypatch.setattr(watch.time, "sleep", naps.append)
    frames = [Frame("one", "a", False), Frame("two", "b", True)]
    out = io.StringIO()
    show(frames, out=out)
    assert out.getvalue() == "one\na\n\ntwo\nb\n\n"
    assert naps == []
    show(frames, fps=5, out=Terminal())
    assert naps == [0.2, watch.LAST_FRAME_SECONDS]
