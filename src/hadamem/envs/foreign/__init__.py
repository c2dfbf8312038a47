"""Gymnasium envs and vector envs as batched envs: `hm.envs.adapt("CartPole-v1", num_envs=8)`.

`adapter` is the batched env. It steps a backend: `backends` in this process, `pool` in worker processes, `vector` for a vector env.
`worker` is the program of a worker process; with `group` and `spaces`, which it uses, it needs numpy and Gymnasium only.
"""

from .adapter import AdaptedEnv, adapt, find_spec
from .group import EnvError

__all__ = ["AdaptedEnv", "EnvError", "adapt", "find_spec"]
