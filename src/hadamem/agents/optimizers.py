"""Adam as all agents use it: a learning rate that can change inside a CUDA graph, updates that are skipped if they are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.adam import AdamState, adam, usable

ALIGNED = 64      # numbers; what begins at a multiple of them suits the widest loads of a GPU


class Adam(torch.optim.Adam):
    """Fused Adam whose state exists from the start, so that checkpoints and CUDA graphs find its tensors in place.

    `skip` is a tensor: where it is 1, `step` changes nothing. `rate` is the learning rate, a tensor as well. `update` is a whole step:
    backward, clipping, a check for numbers that are not finite, and `step`.

    On a GPU the parameters become views of one vector, `flat`, which a kernel of our own updates; elsewhere `flat` is None.
    """

    def __init__(self, network: nn.Module, learning_rate: float, eps: float = 1e-8):
        self.names = {id(p): name for name, p in network.named_parameters()}
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        self.unblocked = torch.zeros_like(self.skip)
        super().__init__(self.parameters, lr=self.rate, eps=eps, fused=True, capturable=device.type == "cuda")
        self.found_inf, self.grad_scale = self.skip, None      # attributes that torch's fused Adam reads
        self.flat: Flat | None = None
        if usable(device) and all(p.dtype == torch.float32 for p in self.parameters):
            self.flat = Flat(self.parameters)
            self.flat_state = AdamState.of(self.flat.vector)
            self.skip = self.flat_state.skip
        self._create_state()

    def update(self, loss: Tensor, max_grad_norm: float | None = None, blocked: Tensor | None = None) -> Tensor:
        """Backward, clip, step. Skipped if loss or gradient are not finite, or if `blocked` is not 0. Returns the norm of the gradient."""
        self.zero_grad(set_to_none=True)
        loss.backward()
        limit = math.inf if max_grad_norm is None else max_grad_norm
        if self.flat is not None:
            self._flat_step(loss.detach(), self.unblocked if blocked is None else blocked, limit)
            return self.flat_state.norm
        norm = nn.utils.clip_grad_norm_(self.parameters, limit, foreach=True)
        bad = ~torch.isfinite(norm + loss.detach())
        self.skip.copy_(bad if blocked is None else bad | (blocked > 0))
        self.step()
        return norm.detach()

    def step(self, closure: Any = None) -> Any:
        """A step with the gradients as they are, unless `skip` is 1."""
        if self.flat is None:
            return super().step(closure)
        loss = None if closure is None else closure()
        self._flat_step(torch.zeros_like(self.skip), self.skip.clone(), math.inf)      # a kernel must not write what it reads
        return loss

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter name, and the learning rate."""
        found = {f"{self.names[id(p)]}.{key}": x for p, values in self.state.items() for key, x in values.items()}
        return {**found, "learning_rate": self.rate}

    @torch.no_grad()
    def load_state_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state_tensors`, in place."""
        for name, x in self.state_tensors().items():
            x.copy_(state[name])

    def _flat_step(self, loss: Tensor, blocked: Tensor, max_norm: float) -> None:
        assert self.flat is not None
        adam(self.flat_state, self.flat.gather([p.grad for p in self.parameters]), self.rate, loss, blocked, max_norm,
             self.defaults["eps"])

    def _create_state(self) -> None:
        if self.flat is not None:
            means, squares = (self.flat.views(x) for x in (self.flat_state.exp_avg, self.flat_state.exp_avg_sq))
            for p, mean, square in zip(self.parameters, means, squares, strict=True):
                self.state[p] = {"step": self.flat_state.steps, "exp_avg": mean, "exp_avg_sq": square}
            return
        for p in self.parameters:      # Adam creates its state in its first step: take one that is skipped
            p.grad = torch.zeros_like(p)
        self.skip.fill_(1)
        self.step()
        self.zero_grad(set_to_none=True)
        self.skip.zero_()


class Flat:
    """Tensors that are made views of one vector, each at an aligned place, with zeros in between."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.shapes = [x.shape for x in tensors]
        self.gaps = [tensors[0].new_zeros(-x.numel() % ALIGNED) for x in tensors]
        self.vector = self.gather([x.detach() for x in tensors])
        for x, view in zip(tensors, self.views(self.vector), strict=True):
            x.data = view

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """A vector of tensors with the same shapes; zeros for None."""
        parts = []
        for x, shape, gap in zip(tensors, self.shapes, self.gaps, strict=True):
            parts += [gap.new_zeros(shape.numel()) if x is None else x.reshape(-1), gap]
        return torch.cat(parts)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The tensors that make up a vector."""
        sizes = [size for shape, gap in zip(self.shapes, self.gaps, strict=True) for size in (shape.numel(), gap.numel())]
        return [x.view(shape) for x, shape in zip(vector.split(sizes)[::2], self.shapes, strict=True)]
