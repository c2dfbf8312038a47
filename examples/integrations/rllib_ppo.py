"""A hadamem memory in RLlib's PPO, and the same agent without memory.

    pip install 'hadamem[rllib]'
    python examples/integrations/rllib_ppo.py                  # a minute on one core
    python examples/integrations/rllib_ppo.py --task repeat    # with hadamem's vector env; pip install 'hadamem[rllib,envs]'

recall: a bit is shown at the first step and asked for four steps later. Return 1 at best, 0 on average without memory.
repeat: POPGym's RepeatPrevious with k = 2, say the suit of the card before. Return 1 at best, -0.5 on average without memory.
"""

from __future__ import annotations

import argparse

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env
from recall_env import Recall

from hadamem.integrations.rllib import MemoryModule

STEPS = {"recall": 20_480, "repeat": 51_200}      # env steps to train for


def make_config(memory: str, task: str = "recall", **options: object) -> PPOConfig:
    """Everything in this process; for more cores, raise num_env_runners. options: of the module."""
    model_config = dict(memory=memory, memory_size=32, memory_output_size=64, fcnet_hiddens=[64], max_seq_len=16, vf_share_layers=True)
    spec = RLModuleSpec(module_class=MemoryModule, model_config=model_config | options)
    config = (PPOConfig()
              .env_runners(num_env_runners=0, num_envs_per_env_runner=32,
                           env_to_module_connector=lambda env, spaces, device: FlattenObservations())      # one-hot codes
              .training(train_batch_size_per_learner=2048, minibatch_size=512, num_epochs=5, lr=2e-3, gamma=0.9, lambda_=0.95,
                        entropy_coeff=0.01, grad_clip=0.5)
              .rl_module(rl_module_spec=spec)
              .debugging(seed=0, log_level="ERROR"))
    if task == "recall":
        register_env("recall", lambda options: Recall(**options))
        config.environment("recall")
    else:      # a batch of hadamem: one call steps all envs; and an answer pays at once
        config.environment("hadamem.envs:hadamem/RepeatPreviousEasy-v0", env_config=dict(k=2))
        config.env_runners(gym_env_vectorize_mode="vector_entry_point").training(gamma=0.5)
    return config


def train(memory: str, task: str, steps: int) -> float:
    """The mean return of the latest 100 episodes."""
    algorithm = make_config(memory, task).build_algo()
    results = {"num_env_steps_sampled_lifetime": 0}
    while results["num_env_steps_sampled_lifetime"] < steps:
        results = algorithm.train()["env_runners"]
    algorithm.stop()
    return results["episode_return_mean"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=STEPS, default="recall")
    parser.add_argument("--memories", nargs="+", default=["shm", "none"], help="names of hm.list_memories()")
    parser.add_argument("--steps", type=int, help="env steps to train for")
    args = parser.parse_args()
    for memory in args.memories:
        score = train(memory, args.task, args.steps or STEPS[args.task])
        print(f"{memory}: return {score:.2f} (1 at best, {'0' if args.task == 'recall' else '-0.5'} without memory)")


if __name__ == "__main__":
    main()
