"""Adam as all agents use it: a learning rate that can change inside a CUDA graph, updates that are skipped if they are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Adam(torch.optim.Adam):
    """Fused Adam whose state exists from the start, so that checkpoints and CUDA graphs find its tensors in place.

    `skip` is a tensor: where it is 1, `step` changes nothing. `rate` is the learning rate, a tensor as well.
    """

    def __init__(self, network: nn.Module, learning_rate: float, eps: float = 1e-8):
        self.names = {id(p): name for name, p in network.named_parameters()}
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        super().__init__(self.parameters, lr=self.rate, eps=eps, fused=True, capturable=device.type == "cuda")
        self.found_inf, self.grad_scale = self.skip, None      # attributes that torch's fused Adam reads
        self._create_state()

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter name, and the learning rate."""
        found = {f"{self.names[id(p)]}.{key}": x for p, values in self.state.items() for key, x in values.items()}
        return {**found, "learning_rate": self.rate}

    @torch.no_grad()
    def load_state_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state_tensors`, in place."""
        for name, x in self.state_tensors().items():
            x.copy_(state[name])

    def _create_state(self) -> None:
        """Adam creates its state in its first step: take one that is skipped."""
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.skip.fill_(1)
        self.step()
        self.zero_grad(set_to_none=True)
        self.skip.zero_()
