"""A vector env of the user's own behind the adapter: whatever autoreset mode and wrappers it has, the arrays of `Backend` come out."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from . import trees
from .adapter_backends import Backend, check_spaces
from .adapter_workers import STORED, UNKNOWN, choices, failures, flat_mask, leaves, taken

MAPS = gymnasium.vector.VectorObservationWrapper, gymnasium.vector.VectorActionWrapper, gymnasium.vector.VectorRewardWrapper


class Vector(Backend):
    """A Gymnasium vector env. What it does by itself at the end of an episode decides what can be offered.

    "same_step" is taken as it is. "disabled" ones are reset by mask, and so are Gymnasium's own that would wait for the next step.
    Other "next_step" envs stay so, without last observations, and so do all below a wrapper that may not bear it.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], mode: AutoresetMode | None):
        self.env, self.num_envs = env, env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        check_spaces(self.observation_space, self.action_space)
        self.leaves = leaves(self.observation_space, self.observation_space)
        self.render_mode, self.name = env.render_mode, str(env)
        self.episode_steps = None if env.spec is None else env.spec.max_episode_steps
        own = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.own = own if isinstance(own, AutoresetMode) else AutoresetMode(own)
        can_reset = _takes_reset_mask(env, self.own)
        possible = {self.own, AutoresetMode.SAME_STEP} if can_reset else {self.own}
        self.mode = mode or (AutoresetMode.SAME_STEP if can_reset else self.own)
        if self.mode not in possible:
            names = " or ".join(sorted(m.name.lower() for m in possible))
            raise ValueError(f"autoreset_mode must be {names} for this vector env, got {self.mode.name.lower()}")
        self.resets = self.mode is not self.own      # episodes are started from here
        n = self.num_envs
        self.elapsed, self.ended, self.steps = np.zeros(n, int), np.zeros(n, bool), 0
        self.sizes = choices(self.action_space)
        self.has_mask, self.action_mask = np.zeros(n, bool), np.zeros((n, sum(self.sizes)), bool)
        self.started, self.success = np.ones(n, bool), np.full(n, UNKNOWN)
        self.of_reset: set[str] = set()      # names in the infos of resets

    def limit(self, steps: int | None) -> None:
        if steps is not None and not self.resets and self.own is not AutoresetMode.DISABLED:
            raise ValueError("max_episode_steps: this vector env starts episodes by itself; set the limit where its envs are made, or "
                             "make it with autoreset_mode='Disabled'")
        self.steps = steps or 0

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        if mask is not None and not mask.any():      # nothing to do, which Gymnasium's would not take
            return
        more = {} if mask is None else {"reset_mask": mask.copy()}
        obs, info = self.env.reset(seed=seed, options={**(options or {}), **more} or None)  # type: ignore[arg-type]  # most take lists
        self.obs = self._checked(obs, "reset()")
        self.of_reset.update(_checked_info(info))
        which = np.ones(self.num_envs, bool) if mask is None else mask
        self.started = self.started | which
        self.elapsed[which], self.ended = 0, self.ended & ~which
        self._take_mask(info, which)

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        resetting = self.ended if self.own is AutoresetMode.NEXT_STEP and not self.resets else np.zeros(self.num_envs, bool)
        obs, reward, terminated, truncated, info = self.env.step(taken(self.action_space, action))
        self.reward, self.terminated, truncated = _array(reward), _array(terminated), _array(truncated)
        self.elapsed = np.where(resetting, 0, self.elapsed + 1)
        if self.steps:
            truncated = truncated | (self.elapsed >= self.steps)
        self.truncated, self.obs = truncated, self._checked(obs, "step()")
        over = self.terminated | truncated
        self.started, self.ended = resetting.copy(), over
        self._take_mask(_checked_info(info), np.ones(self.num_envs, bool))
        ends = {int(i): self._end_of(info, int(i)) for i in np.flatnonzero(over)}
        if over.any() and self.own is AutoresetMode.SAME_STEP:
            self.started, self.final = over.copy(), _filled(self.obs, info.get("final_obs"), over)
        elif over.any() and self.resets:
            self.final, self.started = trees.apply(lambda x: _array(x).copy(), self.obs), over.copy()
            obs, first = self.env.reset(options={"reset_mask": over.copy()})
            self.obs, self.ended = self._checked(obs, "reset()"), np.zeros(self.num_envs, bool)
            self._take_mask(first, over)
        self.elapsed[self.started] = 0
        self.success = np.full(self.num_envs, UNKNOWN)
        for i, end in ends.items():
            success = end.get("success", end.get("is_success"))
            self.success[i] = UNKNOWN if success is None else bool(success)
        return ends

    def render(self, i: int) -> Any:
        pictures = self.env.render()
        return pictures[i] if isinstance(pictures, (tuple, list)) else pictures

    def close(self) -> None:
        self.closed = True
        self.env.close()

    def _checked(self, obs: Any, what: str) -> Any:
        """Observations as they are stored. Numbers that lie on a GPU are not looked at: nothing waits for it."""
        for path, name, _, numbers in self.leaves:
            leaf = obs
            for key in path:
                leaf = leaf[key]
            if numbers is None or getattr(leaf, "is_cuda", False):
                continue
            batch = _array(leaf)
            try:
                numbers.check(batch, name)
            except ValueError:
                for i, row in enumerate(batch):      # whose is it?
                    with failures(i, what):
                        numbers.check(np.asarray(row), name)
        return trees.apply(_stored, obs)

    def _end_of(self, info: dict[str, Any], i: int) -> dict[str, Any]:
        """The last info of the episode of env i that ended in this step."""
        out = _info_of(info, i, self.num_envs)
        if self.own is not AutoresetMode.SAME_STEP:
            return out
        last = out.pop("final_info", None) or {}      # beside it: what the reset told, and what wrappers add, such as `episode`
        added = {name: value for name, value in out.items() if f"_{name}" in info and name != "final_obs" and name not in self.of_reset}
        return {**added, **last}

    def _take_mask(self, info: dict[str, Any], which: np.ndarray) -> None:
        n, size = self.action_mask.shape
        if not size:
            return
        if isinstance(self.observation_space, spaces.Dict) and "action_mask" in self.observation_space.spaces:
            given, masks = np.ones(n, bool), trees.apply(_array, self.obs["action_mask"])
            rows = zip(*masks, strict=True) if isinstance(masks, tuple) else masks
        else:
            given = _array(info.get("_action_mask", np.full(n, "action_mask" in info))) & which
            rows = info.get("action_mask", ())
        self.has_mask = np.where(which, given, self.has_mask)
        over = self.ended & (self.own is not AutoresetMode.SAME_STEP)      # in that mode the next episode has begun
        for i, mask in enumerate(rows):
            if given[i]:
                with failures(i, "its action_mask"):
                    self.action_mask[i] = flat_mask(mask, self.sizes, bool(over[i]))


def _takes_reset_mask(env: gymnasium.vector.VectorEnv[Any, Any, Any], mode: AutoresetMode) -> bool:
    """Whether reset(options={"reset_mask": ...}) surely works: in next-step mode for Gymnasium's own vector envs, and ours.

    Of wrappers only those that map observations, actions or rewards one by one may be around: others may keep count of episodes, and
    Gymnasium's vector envs take the mask out of the options before such a wrapper sees it.
    """
    from .gymnasium import TaskVectorEnv

    plain = gymnasium.vector.VectorWrapper.reset, gymnasium.vector.VectorObservationWrapper.reset
    inner = env
    while isinstance(inner, gymnasium.vector.VectorWrapper):
        if not isinstance(inner, MAPS) or type(inner).reset not in plain:
            return False
        inner = inner.env
    ours = isinstance(inner, (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv, TaskVectorEnv))
    return mode is AutoresetMode.DISABLED or (mode is AutoresetMode.NEXT_STEP and ours)



def _array(x: Any) -> np.ndarray:
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def _stored(x: Any) -> Any:
    """As workers would store it: of a type that torch knows well."""
    dtype = STORED.get(str(getattr(x, "dtype", "")).removeprefix("torch."))
    return x if dtype is None else _array(x).astype(dtype)


def _checked_info(info: Any) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise TypeError(f"the vector env must give its info as a dict of arrays, got {type(info).__name__}; leave out the wrapper that "
                        "changes it (DictInfoToList?)")
    return info


def _filled(obs: Any, final: Any, over: np.ndarray) -> Any:
    """`obs` with the rows of `final` (Gymnasium's: an array of objects, one for each env) where `over`."""
    out = trees.apply(lambda x: _array(x).copy(), obs)
    if final is None:
        return out
    if not (isinstance(final, np.ndarray) and final.dtype == object):      # a vector env of its own that gives a whole batch
        return trees.apply(lambda x: _array(_stored(x)), final)

    def put(target: Any, value: Any, i: int) -> None:
        if isinstance(target, dict):
            for key in target:
                put(target[key], value[key], i)
        elif isinstance(target, tuple):
            for inner, part in zip(target, value, strict=True):
                put(inner, part, i)
        else:
            target[i] = value

    for i in np.flatnonzero(over):
        put(out, final[i], int(i))
    return out


def _info_of(info: dict[str, Any], i: int, num_envs: int) -> dict[str, Any]:
    """What a vector env's info says of env i. Values that are not one for each env belong to all."""
    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return _info_of(value, i, num_envs)
        batched = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", False))
        return value[i] if batched and len(value) == num_envs else value

    return {name: part(value) for name, value in info.items() if not name.startswith("_") and np.all(part(info.get(f"_{name}", True)))}
