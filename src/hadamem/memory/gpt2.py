"""GPT-2 as a memory: causal attention over the steps of the episode, up to a window of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import MOST_ROUNDS, Memory, check_number, check_size, check_state
from .inspection import Shown
from .transformer import Block, Sight, join

PAST_WINDOW = ("slide", "recompute")
_ROWS = 1 << 15   # windows that one pass of "recompute" holds: bounds the memory, and the grid of a CUDA kernel


class GPT2State(NamedTuple):
    """The last window - 1 steps, the newest last; zeros where the episode is younger than that.

    "slide": keys and values of every layer [B, layers, window - 1, 2 width]. "recompute": mapped inputs [B, 1, window - 1, width].
    """

    past: Tensor
    position: Tensor   # [B] int64, steps of the episode so far


class GPT2(Memory):
    """A small GPT-2 over the inputs of the episode, with sine positions that restart at every reset.

        z = W_m x + b_m + sine(position);   per layer  z += attention(norm(z));  z += mlp(norm(z));   y = norm(z)

    memory_size is the width; heads must divide it (default: the largest of 4, 3, 2, 1 that does); layers; dropout (in training mode).
    window: how many steps, itself included, a step attends to; every step copies the state, which grows with it (255 KiB a row by default).
    Nothing is forgotten within the window; past_window says what happens beyond it:
    - "slide": keys keep the positions they were computed with and the oldest drops out, so a step costs O(window width).
    - "recompute", the published rule: every step runs the whole network over the last `window` inputs at positions 0 to window - 1,
      which no stored key survives. A step costs O(window width²) per layer (and window² width for all layers but the last), a sequence
      that may outgrow its window as much for every step.
    output_size: adds a linear layer; without it, y is memory_size wide.

    Differs from the published code: past_window="slide", window 256 and dropout 0 (there "recompute", 5000 and 0.1).
    """

    state_type = GPT2State

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, heads: int | None = None,
                 layers: int = 1, window: int = 256, dropout: float = 0.0, past_window: str = "slide"):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = width = check_size("memory_size", memory_size)
        self.output_size = width if output_size is None else check_size("output_size", output_size)
        self.heads = _heads(width) if heads is None else check_size("heads", heads)
        self.layers, self.window = check_size("layers", layers, MOST_ROUNDS), check_size("window", window)
        self.dropout, self.past_window = check_number("dropout", dropout), past_window
        if width % self.heads:
            raise ValueError(f"heads must divide memory_size={width}, got heads={heads}; change one of them")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if not isinstance(past_window, str) or past_window not in PAST_WINDOW:
            raise ValueError(f"unknown past_window {past_window!r}; choose from {', '.join(PAST_WINDOW)}")
        self.map = nn.Linear(self.input_size, width)
        self.blocks = nn.ModuleList(Block(width, self.heads, dropout) for _ in range(self.layers))
        self.norm = nn.LayerNorm(width)
        self.out = None if output_size is None else nn.Linear(width, self.output_size)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02)
                nn.init.zeros_(module.bias)

    @classmethod
    def choose_options(cls, options):
        if options.get("heads", 0) is None and "memory_size" in options:
            return {**options, "heads": _heads(check_size("memory_size", options["memory_size"]))}
        return options

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        past = torch.zeros(batch_size, *self._past_shape(), device=device, dtype=dtype)
        return GPT2State(past, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def _past_shape(self) -> tuple[int, int, int]:
        slides = self.past_window == "slide"
        return self.layers if slides else 1, self.window - 1, (2 if slides else 1) * self.memory_size

    def forward(self, x, state=None, reset=None, *, resets_only_at_start=False, starts_fresh=False):
        self.check_inputs(x, state, reset)
        if state is not None:
            self._check_state(state)
            state = self.widen(state)
        B, T = x.shape[:2]
        fresh = state is None or (reset is not None and starts_fresh and T > 1)   # nothing before these steps counts
        dtype = self.state_options(None, None)[1] if state is None else state.past.dtype
        position = self._positions(None if fresh else state.position, reset, T, x.device, resets_only_at_start)      # [B or 1, T]
        past, e, opens = None if fresh else state.past, self.map(x), reset if T == 1 else None
        if self.past_window == "slide":
            z, known = self._slide(e, past, position, opens)
        else:
            z, known = self._recompute(e, past, position, opens)
        y = self.norm(z)
        y = y if self.out is None else self.out(y)
        return y, GPT2State(self._keep(known, position, dtype), (position[:, -1] + 1).expand(B).clone())

    def _positions(self, past: Tensor | None, reset: Tensor | None, T: int, device: torch.device,
                   resets_only_at_start: bool) -> Tensor:
        """The step within its episode [B, T], or [1, T] where all rows share it."""
        t = torch.arange(T, device=device)[None]
        carried = t if past is None else past[:, None] + t
        if reset is None:
            return carried
        if T == 1 or resets_only_at_start:
            return carried if past is None else torch.where(reset[:, :1], t, carried)
        opened = torch.where(reset, t, -1).cummax(dim=1).values
        return torch.where(opened >= 0, t - opened, carried)

    def _sight(self, position: Tensor, P: int, opens: Tensor | None = None) -> Sight:
        """Each of T queries sees itself and what lies before it in its episode and its window."""
        T, W, device = position.shape[1], self.window, position.device
        now = P + torch.arange(T, device=device)
        first = now - position.clamp(max=W - 1)
        if P == 0 and T <= W and position.shape[0] == 1:      # one episode from its start: plain causal attention
            return Sight(first, None, P, opens)
        key = torch.arange(P + T, device=device)
        return Sight(first, ((key >= first[..., None]) & (key <= now[:, None]))[:, None], P, opens)

    def _slide(self, e: Tensor, past: Tensor | None, position: Tensor, opens: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """e [B, T, width] -> z after the last block, and the keys and values of every layer, those of the past first."""
        sight = self._sight(position, 0 if past is None else past.shape[2], opens)
        z = F.dropout(e + self._sines(position), self.dropout, self.training)
        known = []
        for n, block in enumerate(self.blocks):
            z, kv = block(z, None if past is None else past[:, n], sight)
            known.append(kv)
        return z, known

    def _recompute(self, e: Tensor, past: Tensor | None, position: Tensor, opens: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """e [B, T, width] -> z after the last block, and the mapped inputs, those of the past first."""
        B, T, W = *e.shape[:2], self.window
        near = 0 if past is not None else min(T, W)           # these steps cannot have outgrown the window
        parts = [self._slide(e[:, :near], None, position[:, :near])[0]] if near else []
        known = e if past is None else join(past[:, 0], e, opens)
        count, j = position.clamp(max=W - 1).expand(B, T), torch.arange(W, device=e.device)       # steps before it in its window
        rows, now = torch.arange(B, device=e.device)[:, None, None], known.shape[1] - T
        stride = max(1, _ROWS // B)
        for t in range(near, T, stride):
            n = count[:, t:t + stride]
            place = torch.arange(now + t, now + t + n.shape[1], device=e.device)[:, None] - n[..., None] + j
            inputs = known[rows, place.clamp(max=known.shape[1] - 1)]                            # [B, steps, W, width]
            inputs = torch.where((j <= n[..., None])[..., None], inputs, 0.0).flatten(0, 1)
            parts.append(self._window(inputs, n.flatten()).unflatten(0, (B, -1)))
        return torch.cat(parts, dim=1), [known]

    def _window(self, e: Tensor, at: Tensor) -> Tensor:
        """e [N, W, width] -> z after the last block at step `at` [N], of windows that start at position 0."""
        position = torch.arange(e.shape[1], device=e.device)[None]
        z = F.dropout(e + self._sines(position), self.dropout, self.training)
        for block in self.blocks[:-1]:
            z, _ = block(z, None, self._sight(position, 0))
        return self.blocks[-1].last(z, at)   # type: ignore[operator]

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        """The attention of every layer: weights of the last `window` steps for each head."""
        past, position = self.reopened(self.widen(state), reset)
        e = self.map(x)[:, None]                                                                 # [B, 1, width]
        if self.past_window == "slide":
            where, sight, z = position, self._sight(position[:, None], self.window - 1), e + self._sines(position[:, None])
        else:
            where, z = self._seen(e, past[:, 0], position)
            sight = self._sight(torch.arange(z.shape[1], device=z.device)[None], 0)
        shown = {}
        for n, block in enumerate(self.blocks):
            before = past[:, n] if self.past_window == "slide" else None
            weights = block.weights(z, before, sight)   # type: ignore[operator]
            weights = weights[:, :, 0] if before is not None else self._newest_last(weights, where)
            shown[f"attention {n + 1}"] = Shown(weights, "attention", f"layer {n + 1} of {self.layers}")
            z, _ = block(z, before, sight)
        return shown

    def _seen(self, e: Tensor, past: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """For "recompute": each row's place in its window [B], and the window's inputs with their positions [B, longest, width]."""
        known, n = torch.cat((past.to(e.dtype), e), dim=1), position.clamp(max=self.window - 1)
        j = torch.arange(int(n.max()) + 1, device=e.device)
        place = (self.window - 1 - n[:, None] + j).clamp(max=self.window - 1)
        inputs = known.gather(1, place[..., None].expand(-1, -1, known.shape[-1]))
        return n, torch.where((j <= n[:, None])[..., None], inputs, 0.0) + self._sines(j)

    def _newest_last(self, weights: Tensor, at: Tensor) -> Tensor:
        """Row `at` [B] of weights [B, heads, n, n], moved so that its own step is the last of `window`."""
        B, heads, n, _ = weights.shape
        row = weights.gather(2, at[:, None, None, None].expand(-1, heads, 1, n))[:, :, 0]        # [B, heads, n]
        place = self.window - 1 - at[:, None] + torch.arange(n, device=at.device)
        wide = row.new_zeros(B, heads, self.window + n)                                          # beyond the window: steps not seen yet
        return wide.scatter(2, place[:, None].expand_as(row), row)[..., :self.window]

    def _sines(self, position: Tensor) -> Tensor:
        """[..., T] -> [..., T, width]; in float64, because the angle of a late step has few digits left in float32."""
        width = self.memory_size
        rate = 10000.0 ** (-torch.arange(0, width, 2, device=position.device, dtype=torch.float64) / width)
        angle = position[..., None] * rate
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width].to(self.map.weight.dtype)

    def _keep(self, known: list[Tensor], position: Tensor, dtype: torch.dtype) -> Tensor:
        """The newest window - 1 of what is known, zero where that is another episode's."""
        P, T, kept = self.window - 1, position.shape[1], []
        age = torch.arange(P - 1, -1, -1, device=position.device)
        foreign = (age > position[:, -1:])[..., None]
        for x in known:
            N = x.shape[1]
            x = (x[:, N - P:] if N >= P else F.pad(x, (0, 0, P - N, 0))).to(dtype)
            kept.append(x if T == 1 else torch.where(foreign, 0.0, x))
        return torch.stack(kept, dim=1) if len(kept) > 1 else kept[0][:, None]

    def _check_state(self, state: GPT2State) -> None:
        sizes = "its sizes are layers, window - 1 and, by past_window, once or twice the width"
        check_state("past", state.past, self._past_shape(), fix=sizes)
        if state.position.dtype != torch.int64 or state.position.ndim != 1:
            got = f"{state.position.dtype} {list(state.position.shape)}"
            raise TypeError(f"state.position must be an int64 tensor of shape [B], got {got}; "
                            "keep what initial_state() gave, or use hm.states.to_vector and from_vector")

    def extra_repr(self) -> str:
        return (f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}, heads={self.heads}, layers={self.layers}, "
                f"window={self.window}, past_window={self.past_window!r}")


def _heads(width: int) -> int:
    return next(n for n in (4, 3, 2, 1) if width % n == 0)
