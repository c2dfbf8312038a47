"""Differentiable neural computer (Graves et al. 2016): an LSTM that writes to and reads from slots, and the simpler way of the NTM."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..states import where
from ._sequential import one_step, sequential
from .base import Memory, check_flag, check_size, check_state
from .inspection import Shown, outer

EMPTY = 1e-6     # every entry of a fresh memory: cosine similarity has no gradient at 0
NORM_EPS = 1e-6  # added to squared norms: a slot is similar to nothing before something is written to it
USAGE_STEPS = 1e4  # resolution to which usages are compared
USAGE_EPS = 1e-6 # usage from which a slot counts as used at all: keeps the gradient of products of usages finite


class DNCState(NamedTuple):
    """Everything that a reset restores, for N slots, W words, R read heads, C units of the controller."""

    M: Tensor               # [B, N, W]
    read_weights: Tensor    # [B, R, N]
    write_weights: Tensor   # [B, N]
    usage: Tensor           # [B, N], without allocation [B, 0]
    links: Tensor           # [B, N, N], links[i, j]: slot i was written right after slot j; without links [B, 0, 0]
    precedence: Tensor      # [B, N], how much each slot was the last one written; without links [B, 0]
    reads: Tensor           # [B, R W], what the controller sees next
    h: Tensor               # [B, C]
    c: Tensor               # [B, C]


class Interface(NamedTuple):
    """The controller's outputs that control the memory at one step."""

    write_key: Tensor    # [B, 1, W], a unit vector times its strength
    read_keys: Tensor    # [B, R, W], likewise
    add: Tensor          # [B, W]
    erase: Tensor        # [B, W] in (0, 1)
    place: Tensor        # [B, 1]: to a free slot rather than by content; without allocation by content rather than where it was last time
    write: Tensor        # [B, 1] whether to write at all; without allocation [B, 0]
    free: Tensor         # [B, R] whether a slot just read may be written over; without allocation [B, 0]
    modes: Tensor        # [B, R, 3] backward, content, forward; without links [B, R, 1] by content rather than where it was last time


class DNC(Memory):
    """Differentiable neural computer. memory_size is the number of slots N; y = [h_t, reads_t], or with `output_size` a linear map of it.

    An LSTM of `controller_size` units sees x_t and the last reads; from its output come a write key, `reads` read keys, gates and vectors:

        w_t = write gate (place a_t + (1 - place) c_t)         a_t free slots by usage, c_t softmax of strength times cosine(M_{t-1}, key)
        M_t = M_{t-1} ⊙ (1 - w_t ⊗ e_t) + w_t ⊗ v_t             C = 1 - w ⊗ e in [0, 1], U = w ⊗ v
        L_t: which slot was written after which;  r_t = M_tᵀ (π₁ L_tᵀ r' + π₂ c_t + π₃ L_t r'), r' the last read weights

    w and e depend on M_{t-1}, so the steps are computed one after the other.
    word_size: W of a slot. reads: number of read heads.
    allocation=False: w_t interpolates between content and the last w (no write gate, no usage). links=False: so do the read weights. Both
    are a neural Turing machine without shifts and sharpening; interpolated weights start at 1 / N and stay on the simplex.
    """

    state_type = DNCState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 32, *, word_size: int = 16, reads: int = 2,
                 controller_size: int = 128, allocation: bool = True, links: bool = True):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = check_size("memory_size", memory_size)
        self.word_size, self.reads = check_size("word_size", word_size), check_size("reads", reads)
        self.controller_size = check_size("controller_size", controller_size)
        self.allocation, self.links = check_flag("allocation", allocation), check_flag("links", links)
        W, R, C = self.word_size, self.reads, self.controller_size
        self.output_size = C + R * W if output_size is None else check_size("output_size", output_size)
        self.input = nn.Linear(self.input_size, 4 * C)
        self.recur = nn.Linear(C + R * W, 4 * C, bias=False)
        with torch.no_grad():
            self.input.bias[C:2 * C] = 1.0        # remember at first
        gates = W + 1 + (1 + R) * allocation + R * (not links)
        self._sizes = [(R + 1) * W, R + 1, W, gates, 3 * R * links]
        self.interface = nn.Linear(C, sum(self._sizes))
        self.out = None if output_size is None else nn.Linear(C + R * W, self.output_size)

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        N = self.memory_size
        fill = {"M": EMPTY, "write_weights": 0.0 if self.allocation else 1 / N, "read_weights": 0.0 if self.links else 1 / N}
        return DNCState(**{name: torch.full((batch_size, *shape), fill.get(name, 0.0), device=device, dtype=dtype)
                           for name, shape in self._shapes().items()})

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        N, W, R, C = self.memory_size, self.word_size, self.reads, self.controller_size
        A, K = N * self.allocation, N * self.links
        return {"M": (N, W), "read_weights": (R, N), "write_weights": (N,), "usage": (A,), "links": (K, K), "precedence": (K,),
                "reads": (R * W,), "h": (C,), "c": (C,)}

    def forward(self, x, state=None, reset=None, *, resets_only_at_start=False):
        self.check_inputs(x, state, reset)
        state = self.initial_state(x.shape[0], device=x.device) if state is None else state
        for name, shape in self._shapes().items():
            check_state(name, getattr(state, name), shape)
        state = self.widen(state)
        if reset is not None and (resets_only_at_start or x.shape[1] == 1):
            state, reset = where(reset[:, 0], self.initial_state(1, x.device, state.M.dtype), state), None
        z, state = self._steps(self.input(x).to(state.M.dtype), state, reset)
        y = z.to(x.dtype)
        return y if self.out is None else self.out(y), state

    @sequential
    def _steps(self, g: Tensor, state: DNCState, reset: Tensor | None) -> tuple[Tensor, DNCState]:
        """g [B, T, 4 C] what the inputs give the controller -> [h, reads] of every step [B, T, C + R W], and the state after the last."""
        dtype = g.dtype
        weights = [p.to(dtype) for p in (self.recur.weight.t(), self.interface.weight.t(), self.interface.bias)]
        fresh = None if reset is None else self.initial_state(1, g.device, dtype)
        apart = 1 - torch.eye(state.links.shape[-1], device=g.device, dtype=dtype)
        scale = _inverse_norm(state.M)
        step, zs = one_step(DNC._step, g), []
        z = torch.cat((state.h, state.reads), dim=1)
        for t, g_t in enumerate(g.unbind(1)):
            if reset is not None and fresh is not None:
                state = where(reset[:, t], fresh, state)
                scale = torch.where(reset[:, t, None], _inverse_norm(fresh.M), scale)
                z = torch.cat((state.h, state.reads), dim=1)
            ready = z.requires_grad or not g_t.requires_grad   # else a graph would be compiled for the first step alone
            z, state, scale = (step if ready else DNC._step)(self, g_t, z, state, scale, apart, *weights)
            zs.append(z)
        return torch.stack(zs, dim=1), state

    def _step(self, g: Tensor, z: Tensor, state: DNCState, scale: Tensor, apart: Tensor, W_recur: Tensor, W_interface: Tensor,
              b_interface: Tensor) -> tuple[Tensor, DNCState, Tensor]:
        """One step of controller and memory; z [B, C + R W] is [h, reads] of the step before; the new one is returned."""
        C = self.controller_size
        gates = torch.addmm(g, z, W_recur)
        i, f, o = gates[:, :3 * C].sigmoid().chunk(3, dim=1)
        c = torch.addcmul(f * state.c, i, gates[:, 3 * C:].tanh())
        h = o * c.tanh()
        state, scale = self._access(self._say(torch.addmm(b_interface, h, W_interface)), state._replace(h=h, c=c), scale, apart)
        return torch.cat((h, state.reads), dim=1), state, scale

    def _say(self, spoken: Tensor) -> Interface:
        """The controller's output layer [B, n], split, and each part mapped to its range."""
        W, R, free = self.word_size, self.reads, self.reads * self.allocation
        keys, strength, add, gates, modes = spoken.split(self._sizes, dim=1)
        keys = keys.unflatten(1, (R + 1, W))
        keys = keys * ((1 + F.softplus(strength)) * _inverse_norm(keys))[..., None]
        erase, place, write, free, by_content = gates.sigmoid().split([W, 1, int(self.allocation), free, R * (not self.links)], dim=1)
        modes = modes.unflatten(1, (R, 3)).softmax(dim=-1) if self.links else by_content[..., None]
        return Interface(keys[:, :1], keys[:, 1:], add, erase, place, write, free, modes)

    def _access(self, say: Interface, old: DNCState, scale: Tensor, apart: Tensor) -> tuple[DNCState, Tensor]:
        """Write to the memory, then read from it. scale [B, N]: the inverse norms of its slots, handed on to the next step."""
        w, u, M, L, p = old.write_weights, old.usage, old.M, old.links, old.precedence
        content = _similar(say.write_key, M, scale)[:, 0]                                                  # [B, N]
        if self.allocation:
            u = torch.addcmul(u, 1 - u, w) * _retained(say.free, old.read_weights)
            w = say.write * torch.lerp(content, _allocate(u), say.place)
        else:
            w = torch.lerp(w, content, say.place)
        M = torch.addcmul(M, w[..., None], torch.addcmul(say.add[:, None], M, say.erase[:, None], value=-1))  # M ⊙ (1 - w ⊗ e) + w ⊗ v
        scale = _inverse_norm(M)
        r = _similar(say.read_keys, M, scale)                                                         # [B, R, N]
        if self.links:
            rest = 1 - w
            L = torch.addcmul(L * (rest[:, :, None] - w[:, None]), w[:, :, None], p[:, None]) * apart
            p = torch.addcmul(w, 1 - w.sum(dim=1, keepdim=True), p)
            before, now, after = say.modes.split(1, dim=-1)
            r = torch.addcmul(torch.addcmul(now * r, before, torch.bmm(old.read_weights, L)), after, torch.bmm(old.read_weights, L.mT))
        else:
            r = torch.lerp(old.read_weights, r, say.modes)
        return DNCState(M, r, w, u, L, p, torch.bmm(r, M).flatten(1), old.h, old.c), scale

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        after = self.step(x, state, reset)[1]
        say = self._say(F.linear(after.h, *(p.to(after.h.dtype) for p in (self.interface.weight, self.interface.bias))))
        w = after.write_weights
        shown = {"M": Shown(after.M, "state", "slots (rows) and their words"),
                 "C": Shown(1 - outer(w, say.erase), "factor", "1 - w ⊗ e: what the old slots were multiplied with"),
                 "U": Shown(outer(w, say.add), "update", "w ⊗ v: what was written"),
                 "write weights": Shown(w, "gate", "which slots were written to")}
        for head in range(self.reads):
            shown[f"read weights {head + 1}"] = Shown(after.read_weights[:, head], "read", f"which slots read head {head + 1} read")
        if self.allocation:
            shown |= {"usage": Shown(after.usage, "state", "how much each slot is in use"),
                      "write gate": Shown(say.write[:, 0], "gate", "whether anything was written")}
        if self.links:
            shown["links"] = Shown(after.links, "state", "row i, column j: slot i was written right after slot j")
        return {**shown, "h": Shown(after.h, "state", "the controller's output"), "c": Shown(after.c, "state", "the controller's cells")}

    def extra_repr(self) -> str:
        return (f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}, word_size={self.word_size}, reads={self.reads}, "
                f"controller_size={self.controller_size}, allocation={self.allocation}, links={self.links}")


def _inverse_norm(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().sum(dim=-1) + NORM_EPS)


def _similar(keys: Tensor, M: Tensor, scale: Tensor) -> Tensor:
    """Weights on the slots by content: keys [B, R, W] as strong unit vectors, M [B, N, W] -> [B, R, N]."""
    return torch.softmax(torch.bmm(keys, M.mT) * scale[:, None], dim=-1)


def _retained(free: Tensor, read_weights: Tensor) -> Tensor:
    """The share of each slot that no head that read it sets free: free [B, R], read_weights [B, R, N] -> [B, N]."""
    kept = (1 - free[..., None] * read_weights).unbind(1)
    share = kept[0]
    for k in kept[1:]:           # not torch.prod: its gradient looks at the values on the host
        share = share * k
    return share


def _allocate(usage: Tensor) -> Tensor:
    """Weights [B, N] on free slots, the least used first: a of slot n = (1 - u_n) times the product of all smaller u.

    Slots that nothing was written to have nearly the same usage: those that differ by less than 1 / USAGE_STEPS count as equal and go by
    their number. Else rounding would decide which one is written, and whole sequences and single steps would write to different ones.
    The product is the exponential of a sum of logarithms: finite gradients, and no look at the values on the host, unlike torch.cumprod.
    """
    order = (usage.detach() * USAGE_STEPS).round().sort(dim=-1, stable=True).indices
    u = usage.gather(-1, order)
    log = torch.log(USAGE_EPS + (1 - USAGE_EPS) * u)
    return torch.zeros_like(u).scatter(-1, order, (1 - u) * (log.cumsum(dim=-1) - log).exp())
