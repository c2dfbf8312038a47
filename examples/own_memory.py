"""Your own memory, from the class to a trained agent.

    python examples/own_memory.py                    # checks it, then trains for about 15 seconds on one core

Leaky keeps running means of its inputs. Each of its numbers forgets at its own learned rate:

    h_t = a ⊙ h_{t-1} + (1 - a) ⊙ W x_t              a = sigmoid(rate), so M_t = M_{t-1} ⊙ C_t + U_t with a constant C
    y_t = V h_t

To train it by name from the command line, in this folder:

    hadamem train --env TMaze --memory own_memory:Leaky --steps 200_000 --name leaky
    hadamem eval leaky --trust                       # the run's files name own_memory:Leaky, and may be imported
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn

import hadamem as hm
from hadamem.testing import check_memory


class LeakyState(NamedTuple):
    h: Tensor   # [B, H]; state tensors are batch-first


class Leaky(hm.Memory):
    """Running means that forget at learned rates."""

    state_type = LeakyState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 64):
        super().__init__()
        self.input_size, self.memory_size = input_size, memory_size
        self.output_size = memory_size if output_size is None else output_size
        self.write = nn.Linear(input_size, memory_size)
        self.read = nn.Linear(memory_size, self.output_size)
        self.rate = nn.Parameter(torch.linspace(0.0, 5.0, memory_size))       # half-lives from 1 to 100 steps

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        device, dtype = self.state_options(device, dtype)                     # defaults: those of the module's parameters
        return LeakyState(torch.zeros(batch_size, self.memory_size, device=device, dtype=dtype))

    def forward(self, x, state=None, reset=None):
        self.check_inputs(x, state, reset)
        (h,) = self.initial_state(x.shape[0], device=x.device) if state is None else state
        keep = torch.sigmoid(self.rate)                                       # [H]
        new = (1 - keep) * self.write(x)                                      # [B, T, H]
        seen = []
        for t in range(x.shape[1]):
            if reset is not None:                                             # step t starts an episode: drop the old state
                h = torch.where(reset[:, t, None], 0.0, h)
            h = keep * h + new[:, t]
            seen.append(h)
        return self.read(torch.stack(seen, dim=1)), LeakyState(h)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000, help="env steps to train for")
    parser.add_argument("--out", default=None, metavar="DIR", help="keep the run in this folder")
    args = parser.parse_args()

    report = check_memory(Leaky(input_size=8, output_size=6))                 # the whole contract: splits, resets, gradients, dtypes
    print(f"Leaky keeps the contract: {len(report.checks)} checks passed")
    hm.register_memory("leaky", Leaky)                                        # a name in this process
    memory = hm.make_memory("leaky", 8, 6, memory_size=32)
    print(f"it holds {memory.state_size} numbers for each sequence")

    # by module and class, so that a later process can load it
    run = hm.train("TMaze", memory="own_memory:Leaky", steps=args.steps, device="cpu", out=args.out)
    print(f"TMaze shows its cue only at the first step: return {run.summary()['return']:.2f} (0.5 without memory, 1 at best)")


if __name__ == "__main__":
    main()
