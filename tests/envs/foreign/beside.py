"""Steps a batched env beside single Gymnasium envs and compares everything."""

import numpy as np
import pytest
import torch

PLACES = [0, 2]      # workers


def same(tree, i, want):
    if isinstance(want, dict):
        for key in want:
            same(tree[key], i, want[key])
    elif isinstance(want, tuple):
        for part, value in zip(tree, want, strict=True):
            same(part, i, value)
    else:
        np.testing.assert_array_equal(tree[i].numpy(), want)


def play(env, make, steps, seed=3, chosen=None):
    """Step `env` beside single envs made by hand, in same-step mode; everything must be equal."""
    singles = [make() for _ in range(env.num_envs)]
    space = env.single_action_space
    space.seed(0)
    obs, info = env.reset(seed=seed)
    assert env.started.all()
    for i, single in enumerate(singles):
        first, first_info = single.reset(seed=seed + i)
        same(obs, i, first)
        if "action_mask" in first_info:
            np.testing.assert_array_equal(info["action_mask"][i], first_info["action_mask"])
    ends = 0
    for _ in range(steps):
        action = np.stack([space.sample() for _ in singles])
        obs, reward, terminated, truncated, info = env.step(torch.as_tensor(action))
        assert reward.dtype == torch.float32
        for i, single in enumerate(singles):
            start = getattr(single.action_space, "start", 0)
            now, pay, over, cut, more = single.step(action[i] + start)
            assert float(reward[i]) == pytest.approx(pay, rel=1e-6)
            assert (bool(terminated[i]), bool(truncated[i])) == (over, cut)
            same(info["final_obs"], i, now)
            assert bool(info["_final_obs"][i]) == (over or cut) == bool(env.started[i])
            if over or cut:
                ends += 1
                if "is_success" in more:
                    assert bool(info["success"][i]) == more["is_success"]
                    assert info["final_info"][i]["note"] == more["note"]
                now, more = single.reset()
            else:
                assert info["final_info"][i] is None
            same(obs, i, now)
            if "action_mask" in more:
                np.testing.assert_array_equal(info["action_mask"][i], more["action_mask"])
    return ends
