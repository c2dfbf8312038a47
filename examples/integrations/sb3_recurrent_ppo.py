"""A hadamem memory in sb3-contrib's RecurrentPPO, and the same policy without memory.

    pip install 'hadamem[sb3]'
    python examples/integrations/sb3_recurrent_ppo.py          # about a minute on one core

The task shows a bit at the first step and asks for it four steps later: return 1 at best, 0 on average without memory.
"""

from __future__ import annotations

import argparse

from recall_env import Recall
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from hadamem.integrations.sb3 import MemoryPolicy


def train(memory: str, steps: int) -> RecurrentPPO:
    env = make_vec_env(Recall, n_envs=16, seed=0)
    model = RecurrentPPO(MemoryPolicy, env, policy_kwargs=dict(memory=memory, memory_size=16), learning_rate=1e-3, n_steps=32,
                         batch_size=256, n_epochs=5, gamma=0.99, ent_coef=0.01, seed=0, device="cpu")
    return model.learn(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", nargs="+", default=["shm", "none"], help="names of hm.list_memories()")
    parser.add_argument("--steps", type=int, default=20_000, help="env steps to train for")
    args = parser.parse_args()
    for memory in args.memories:
        model = train(memory, args.steps)
        score, _ = evaluate_policy(model, make_vec_env(Recall, n_envs=8, seed=1), n_eval_episodes=200)
        print(f"{memory}: return {score:.2f} (1 at best, 0 without memory)")


if __name__ == "__main__":
    main()
