"""Show a policy's episodes: frames with captions, as GIF, MP4 or text in a terminal."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from gymnasium import spaces

from .. import envs
from ..envs import render
from ..training.evaluate import check_fit, check_seed, reset_for_evaluation

LAST_FRAME_SECONDS = 1.5      # duration of the last frame of an episode
MIN_WIDTH = 240               # of a picture, in pixels, so that captions can be read
SUFFIXES = (".gif", ".mp4")


class Frame(NamedTuple):
    """A view of the env with a caption."""

    view: Any          # before the action: [H, W, 3] uint8, or text
    caption: str       # the action, its reward and the return so far
    last: bool         # of its episode: the view after the last action
    reward: float = 0.0


def play_frames(policy: Any, env: str | Callable[..., Any], *, episodes: int = 1, seed: int = 0, deterministic: bool = False,
                text: bool = False, colour: bool = False, max_steps: int = 1000,
                env_options: Mapping[str, Any] | None = None) -> Iterator[Frame]:
    """Episodes of a policy, frame by frame. Views show the whole state of the env, including what the policy cannot see.

    env: a name of `hm.envs`, a Gymnasium id or a callable that makes a Gymnasium env. If a Gymnasium env cannot render, its observation is
    shown. text: views are strings; colour: with ANSI colour codes. max_steps: stop an episode after this many steps.
    seed: as in `evaluate`.
    """
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    check_seed(seed)
    with open_env(policy, env, text=text, env_options=env_options) as made:
        generator = torch.Generator(policy.device).manual_seed(seed)
        for episode in range(episodes):
            start = reset_for_evaluation(made, policy, seed) if episode == 0 else made.reset()
            yield from play_episode(policy, made, start, deterministic, generator, max_steps, lambda: draw_env(made, text, colour))


@contextmanager
def open_env(policy: Any, env: str | Callable[..., Any], *, text: bool = False,
             env_options: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """One env to show, which fits the policy; closed at the end."""
    made = _make_env(env, policy.device, "ansi" if text else "rgb_array", dict(env_options or {}))
    try:
        check_fit(policy, made)
        yield made
    finally:
        made.close()


def play_episode(policy: Any, env: Any, start: tuple[Any, dict[str, Any]], deterministic: bool, generator: torch.Generator, max_steps: int,
                 view: Callable[[], Any]) -> Iterator[Frame]:
    """One episode from what `reset` gave: a frame for every action, and the last one."""
    obs, info = start
    state, reset = policy.initial_state(1, generator), True
    names = env.action_names()
    total, done, steps, paid = 0.0, False, 0, None
    while not done and steps < max_steps:
        seen = view()
        action, state = policy.act(obs, state, reset, deterministic, mask=info.get("action_mask"), generator=generator,
                                   **({"reward": paid} if getattr(policy, "sees_reward", False) else {}))
        obs, reward, terminated, truncated, info = env.step(action)
        total, steps, paid = total + float(reward[0]), steps + 1, reward
        reset = False
        done = bool(terminated[0] | truncated[0])
        label = _action_text(action[0], env.single_action_space, names)
        yield Frame(seen, f"{label}, reward {float(reward[0]):+.3g}, return {total:+.3g}", False, float(reward[0]))
    success = f", {'success' if bool(info['success'][0]) else 'no success'}" if done and "success" in info else ""
    yield Frame(view(), f"{'end' if done else 'stopped'} after {steps} steps: return {total:+.3g}{success}", True)


def write(frames: Iterable[Frame], path: Path | str, fps: float = 4.0) -> Path:
    """Write frames to a .gif or .mp4 file, depending on the suffix of the path. Episodes follow one another."""
    path = Path(path)
    check_path(path)
    check_fps(fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        (_write_gif if path.suffix.lower() == ".gif" else _write_mp4)(frames, part, fps)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def check_path(path: Path | str) -> None:
    """Raise a ValueError if no video can be written to this path; checked before the episodes are played."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"the file must end in .gif or .mp4, got {str(path)!r}")
    if suffix == ".mp4" and find_ffmpeg() is None:
        raise ValueError("an .mp4 file needs ffmpeg: install it, run `pip install imageio-ffmpeg`, or write a .gif file instead")


def check_fps(fps: float) -> None:
    if not 0 < fps <= 100:
        raise ValueError(f"fps must be above 0 and at most 100, got {fps}")


def show(frames: Iterable[Frame], fps: float = 4.0, out: TextIO | None = None) -> None:
    """Print text frames: animated on a terminal, otherwise one below the other."""
    check_fps(fps)
    out = out or sys.stdout
    animated = out.isatty()
    for frame in frames:
        start = "\x1b[H\x1b[2J" if animated else ""
        print(f"{start}{frame.view}\n{frame.caption}\n", file=out, flush=True)
        if animated:
            time.sleep(LAST_FRAME_SECONDS if frame.last else 1 / fps)


def find_ffmpeg() -> str | None:
    """Path of ffmpeg, or of the copy in imageio-ffmpeg; None if there is neither."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            return None
    return found


def picture(frame: Frame) -> np.ndarray:
    """The view with its caption below it, [H, W, 3] uint8; H and W are multiples of 16."""
    return render.caption(frame.view, frame.caption, MIN_WIDTH)


def _write_gif(frames: Iterable[Frame], path: Path, fps: float) -> None:
    from PIL import Image

    def images() -> Iterator[Any]:
        for frame in frames:
            image = Image.fromarray(picture(frame)).quantize(128, dither=Image.Dither.NONE)
            image.info["duration"] = round(1000 * (LAST_FRAME_SECONDS if frame.last else 1 / fps))
            yield image

    rest = images()
    first = next(rest)
    first.save(path, format="GIF", save_all=True, append_images=rest, loop=0)


def _write_mp4(frames: Iterable[Frame], path: Path, fps: float) -> None:
    process = None
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # an unread pipe would fill up and block ffmpeg
    try:
        for frame in frames:
            image = picture(frame)
            if process is None:
                height, width = image.shape[:2]
                process = subprocess.Popen(
                    [str(find_ffmpeg()), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                     "-r", str(fps), "-i", "-", "-pix_fmt", "yuv420p", "-f", "mp4", str(path)], stdin=subprocess.PIPE, stderr=errors)
            assert process.stdin is not None
            for _ in range(max(1, round(LAST_FRAME_SECONDS * fps)) if frame.last else 1):
                process.stdin.write(_fit(image, height, width).tobytes())
    except BrokenPipeError:
        pass      # ffmpeg has exited: its error is raised below
    finally:
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()
    if process is None or process.returncode:
        errors.seek(0)
        raise RuntimeError(f"ffmpeg could not write {path}: {errors.read().decode(errors='replace').strip()[-300:]}")


def _fit(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Crop or pad an image to the size of the first frame."""
    if image.shape[:2] == (height, width):
        return image
    sheet = np.full((height, width, 3), render.PAPER, dtype=np.uint8)
    part = image[:height, :width]
    sheet[:part.shape[0], :part.shape[1]] = part
    return sheet


def _make_env(env: str | Callable[..., Any], device: Any, mode: str, options: dict[str, Any]) -> Any:
    """Make one env. A Gymnasium env that supports the render mode is made again with it."""
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


def draw_env(env: Any, text: bool = False, colour: bool = False) -> Any:
    """A Gymnasium env's own rendering if there is one, otherwise our picture or text."""
    shown = None
    if isinstance(env, envs.AdaptedEnv) and env.render_mode is not None:
        try:
            shown = env.render()
        except envs.EnvError as error:           # e.g. a package for rendering is missing
            env.render_mode = None
            warnings.warn(f"hadamem: rendering failed, showing the observation instead: {error}"[:300], RuntimeWarning, stacklevel=2)
    if text:
        return shown if isinstance(shown, str) else envs.render.text(env, colour=colour)
    good = isinstance(shown, np.ndarray) and shown.ndim == 3 and shown.shape[2] == 3
    return np.asarray(shown, dtype=np.uint8) if good else envs.render.picture(env)


def _action_text(action: Any, space: Any, names: Mapping[int, str]) -> str:
    value = action.cpu().numpy() if isinstance(action, torch.Tensor) else np.asarray(action)
    return names.get(int(value), f"action {int(value)}") if isinstance(space, spaces.Discrete) else f"action {render.format_value(value)}"
