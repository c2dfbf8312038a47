"""PPO with a hadamem memory in TorchRL, and the same agent without memory.

    pip install 'hadamem[torchrl]' gymnasium
    python examples/integrations/torchrl_ppo.py                # half a minute on one core

The task shows a bit at the first step and asks for it four steps later: return 1 at best, 0 on average without memory.
"""

from __future__ import annotations

import argparse

import torch
from recall_env import Recall
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import hadamem as hm
from hadamem.integrations.torchrl import MemoryModule


def make_networks(memory: str) -> tuple[MemoryModule, ProbabilisticActor, TensorDictSequential]:
    """One memory for the actor and the critic."""
    remember = MemoryModule(hm.make_memory(memory, 2, 32, memory_size=16), in_key="observation", out_key="remembered")
    choose = TensorDictModule(nn.Sequential(nn.Tanh(), nn.Linear(32, 2)), in_keys=["remembered"], out_keys=["logits"])
    actor = ProbabilisticActor(TensorDictSequential(remember, choose), in_keys=["logits"], distribution_class=OneHotCategorical,
                               return_log_prob=True)
    critic = TensorDictSequential(remember, ValueOperator(nn.Sequential(nn.Tanh(), nn.Linear(32, 1)), in_keys=["remembered"]))
    return remember, actor, critic


def make_env(remember: MemoryModule, num_envs: int = 16) -> TransformedEnv:
    env = SerialEnv(num_envs, lambda: GymWrapper(Recall()))
    return TransformedEnv(env, Compose(InitTracker(), remember.make_tensordict_primer()))


def train(memory: str, steps: int) -> float:
    """The mean return of the episodes of the last quarter of training."""
    torch.manual_seed(0)
    remember, actor, critic = make_networks(memory)
    env = make_env(remember)
    env.set_seed(0)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True, deactivate_vmap=True)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), lr=2e-3)
    returns = []
    for data in Collector(env, actor, frames_per_batch=16 * 32, total_frames=steps):       # [16 envs, 32 steps]
        rewards, over = data["next", "reward"], data["next", "done"]
        returns.append(rewards[over].mean().item())                                         # rewarded only at the end
        for _ in range(5):
            with torch.no_grad():
                advantage(data)
            for rows in torch.randperm(16).split(8):                                        # whole sequences
                losses = loss(data[rows])
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
    last = returns[-len(returns) // 4:]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", nargs="+", default=["shm", "none"], help="names of hm.list_memories()")
    parser.add_argument("--steps", type=int, default=10_240, help="env steps to train for")
    args = parser.parse_args()
    for memory in args.memories:
        print(f"{memory}: return {train(memory, args.steps):.2f} (1 at best, 0 without memory)")


if __name__ == "__main__":
    main()
