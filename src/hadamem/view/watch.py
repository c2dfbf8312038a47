"""See a policy play: episodes as frames with captions, written as GIF or MP4 or shown as text in a terminal."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from gymnasium import spaces

from .. import envs
from ..envs import render
from ..training.evaluate import begin, check_fit, check_seed

LINGER = 1.5          # seconds that the last frame of an episode stays
NARROWEST = 240       # pixels, so that captions can be read
SUFFIXES = (".gif", ".mp4")


class Frame(NamedTuple):
    """What is seen before an action [H, W, 3] uint8 or as text, what the policy then did and what came of it; and if that was the end."""

    view: Any
    caption: str
    last: bool


def play_frames(policy: Any, env: str | Callable[..., Any], *, episodes: int = 1, seed: int = 0, deterministic: bool = False,
                text: bool = False, colour: bool = False, max_steps: int = 1000,
                env_options: Mapping[str, Any] | None = None) -> Iterator[Frame]:
    """Episodes of a policy, frame by frame. The view shows all of the env, also what the policy cannot see.

    env: a name of `hm.envs`, a Gymnasium id or a callable that makes a Gymnasium env; one that renders no pictures shows its observation.
    text: views are texts; colour: with colour codes. max_steps: longer episodes are not shown to their end. seed: as in `evaluate`.
    """
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    check_seed(seed)
    made = _make_env(env, policy.device, "ansi" if text else "rgb_array", dict(env_options or {}))
    try:
        check_fit(policy, made)
        generator = torch.Generator(policy.device).manual_seed(seed)
        for episode in range(episodes):
            start = begin(made, policy, seed) if episode == 0 else made.reset()
            yield from _episode(policy, made, start, deterministic, generator, max_steps, lambda: _view(made, text, colour))
    finally:
        made.close()


def _episode(policy: Any, env: Any, start: tuple[Any, dict[str, Any]], deterministic: bool, generator: torch.Generator, max_steps: int,
             view: Callable[[], Any]) -> Iterator[Frame]:
    obs, info = start
    state, reset = policy.initial_state(1, generator), True
    names = env.action_names()
    total, over, steps = 0.0, False, 0
    while not over and steps < max_steps:
        seen = view()
        action, state = policy.act(obs, state, reset, deterministic, mask=info.get("action_mask"), generator=generator)
        obs, reward, terminated, truncated, info = env.step(action)
        total, steps = total + float(reward[0]), steps + 1
        reset = False
        over = bool(terminated[0] | truncated[0])
        did = _in_words(action[0], env.single_action_space, names)
        yield Frame(seen, f"{did}, reward {float(reward[0]):+.3g}, return {total:+.3g}", False)
    success = f", {'success' if bool(info['success'][0]) else 'no success'}" if over and "success" in info else ""
    yield Frame(view(), f"{'end' if over else 'stopped'} after {steps} steps: return {total:+.3g}{success}", True)


def write(frames: Iterable[Frame], path: Path | str, fps: float = 4.0) -> Path:
    """Write frames to a .gif or .mp4 file, whichever the path says. Several episodes follow each other."""
    path = Path(path)
    check_path(path)
    if not 0 < fps <= 100:
        raise ValueError(f"fps must be above 0 and at most 100, got {fps}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        (_write_gif if path.suffix.lower() == ".gif" else _write_mp4)(frames, part, fps)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def check_path(path: Path | str) -> None:
    """An error now rather than after the episode, if a video of this name cannot be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a video is written to a .gif or .mp4 file, got {str(path)!r}")
    if suffix == ".mp4" and find_ffmpeg() is None:
        raise ValueError("an .mp4 file needs ffmpeg: install it, or `pip install imageio-ffmpeg`, or write a .gif file instead")


def show(frames: Iterable[Frame], fps: float = 4.0, out: TextIO | None = None) -> None:
    """Print text frames: on a terminal in one place and at speed, else one below the other."""
    out = out or sys.stdout
    moving = out.isatty()
    for frame in frames:
        start = "\x1b[H\x1b[2J" if moving else ""
        print(f"{start}{frame.view}\n{frame.caption}\n", file=out, flush=True)
        if moving:
            time.sleep(LINGER if frame.last else 1 / fps)


def find_ffmpeg() -> str | None:
    """The program, or the one that imageio-ffmpeg brings along."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            return None
    return found


def picture(frame: Frame) -> np.ndarray:
    """The view with its caption below it, [H, W, 3] uint8; sides are multiples of 16."""
    return render.caption(frame.view, frame.caption, NARROWEST)


def _write_gif(frames: Iterable[Frame], path: Path, fps: float) -> None:
    from PIL import Image

    def images() -> Iterator[Any]:
        for frame in frames:
            image = Image.fromarray(picture(frame)).quantize(128, dither=Image.Dither.NONE)
            image.info["duration"] = round(1000 * (LINGER if frame.last else 1 / fps))
            yield image

    rest = images()
    first = next(rest)
    first.save(path, format="GIF", save_all=True, append_images=rest, loop=0)


def _write_mp4(frames: Iterable[Frame], path: Path, fps: float) -> None:
    process = None
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads would fill up and stop ffmpeg
    try:
        for frame in frames:
            image = picture(frame)
            if process is None:
                height, width = image.shape[:2]
                process = subprocess.Popen(
                    [str(find_ffmpeg()), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                     "-r", str(fps), "-i", "-", "-pix_fmt", "yuv420p", "-f", "mp4", str(path)], stdin=subprocess.PIPE, stderr=errors)
            assert process.stdin is not None
            for _ in range(max(1, round(LINGER * fps)) if frame.last else 1):
                process.stdin.write(_fitted(image, height, width).tobytes())
    except BrokenPipeError:
        pass      # ffmpeg gave up: its exit code and words follow
    finally:
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()
    if process is None or process.returncode:
        errors.seek(0)
        raise RuntimeError(f"ffmpeg could not write {path}: {errors.read().decode(errors='replace').strip()[-300:]}")


def _fitted(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Cut or padded to the size of the first frame."""
    if image.shape[:2] == (height, width):
        return image
    sheet = np.full((height, width, 3), render.PAPER, dtype=np.uint8)
    part = image[:height, :width]
    sheet[:part.shape[0], :part.shape[1]] = part
    return sheet


def _make_env(env: str | Callable[..., Any], device: Any, mode: str, options: dict[str, Any]) -> Any:
    """One copy; a foreign env is made once more with the render mode, if it knows it."""
    make: Any = envs.make if isinstance(env, str) else envs.adapt
    plain = dict(num_envs=1, device=device, autoreset_mode="disabled", **options)
    made = make(env, **plain)
    group = getattr(made.backend, "group", None) if isinstance(made, envs.AdaptedEnv) else None
    if group is None or made.render_mode is not None or mode not in group.envs[0].metadata.get("render_modes", ()):
        return made
    try:
        shown = make(env, **plain, render_mode=mode)
    except (TypeError, envs.EnvError):      # a callable that takes no render_mode
        return made
    made.close()
    return shown


def _view(env: Any, text: bool, colour: bool) -> Any:
    """What a foreign env renders, if it does; else our own picture or text."""
    shown = None
    if isinstance(env, envs.AdaptedEnv) and env.render_mode is not None:
        try:
            shown = env.render()
        except envs.EnvError as error:           # a package that it draws with is missing, say
            env.render_mode = None
            warnings.warn(f"hadamem: the observation is shown instead of a picture, for {error}"[:300], RuntimeWarning, stacklevel=2)
    if text:
        return shown if isinstance(shown, str) else envs.render.text(env, colour=colour)
    good = isinstance(shown, np.ndarray) and shown.ndim == 3 and shown.shape[2] == 3
    return np.asarray(shown, dtype=np.uint8) if good else envs.render.picture(env)


def _in_words(action: Any, space: Any, names: Mapping[int, str]) -> str:
    value = action.cpu().numpy() if isinstance(action, torch.Tensor) else np.asarray(action)
    return names.get(int(value), f"action {int(value)}") if isinstance(space, spaces.Discrete) else f"action {render.format_value(value)}"
