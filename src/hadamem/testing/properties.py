"""The properties that `hadamem.Memory` promises, one method each. `conformance.py` runs them; `trial.py` has what they share."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import states
from .trial import TOLERANCES, Broken, Trial, is_real, same_kind


class Suite(Trial):
    """The checks. Each is a method without arguments that raises Broken."""

    def checks(self) -> dict[str, tuple[Callable[[], None], str]]:
        """By name: the check, and what to do if it fails (nothing where its own words say it).

        In an order in which the first that fails is nearest to the cause: a leak from the future or from another row, or a state
        that is not used, breaks the comparisons of splits and resets too.
        """
        select = "where reset[:, t] is set take the fresh state instead of the old one, by torch.where and before x[:, t] is read"
        alike = "make every new tensor on the device and in the dtype of x, every state by self.state_options(device, dtype)"
        held = "register all that y depends on as parameters, buffers or submodules"
        return {
            "interface": (self.interface, ""),
            "initial state": (self.initial_state, ""),
            "state=None is a fresh state": (self.fresh_by_default, "with state=None start from self.initial_state(x.shape[0])"),
            "arguments are not changed": (self.arguments_unchanged, "compute new tensors in place of writing into those handed in"),
            "same call, same result": (
                self.repeatable, "compute y from x, state, reset and parameters only; return the state, do not keep it"),
            "causality": (self.causality, "let y[:, t] depend on x and reset up to step t only"),
            "batch rows are independent": (self.batch_rows, "compute every row by itself; no sum, mean or norm over the batch axis"),
            **({"it remembers": (
                self.remembers, "let y depend on the state, and the state on every x, without detach(), .data or no_grad() between")}
               if self.expect_memory else
               {"it does not remember": (self.remembers, "let y[:, t] depend on x[:, t] only, or pass expect_memory=True")}),
            "whole sequence == any split == step by step": (
                self.splits, "return the state after the last step, with all in it that later steps depend on"),
            "step == forward of one step": (self.step, "leave step() to hadamem.Memory, or let it give what forward() gives of x[:, None]"),
            "reset=None == no reset": (self.no_reset, "treat reset=None as a reset that is False everywhere"),
            "packed episodes == each alone": (self.packed, select),
            "a reset forgets the past": (self.reset_forgets, select),
            "a reset recovers from inf and nan in the state": (
                self.reset_recovers, "drop the old state by torch.where and not by a product: 0 * inf is nan"),
            "non-finite inputs stay in their row and end at a reset": (
                self.poison, "drop the old state by torch.where at a reset, and let no row of the batch enter another"),
            "gradients of a split == of the whole": (self.split_gradients, "return the state without detaching it; the caller does that"),
            "no gradient crosses a reset": (self.reset_gradients, "drop the old state by torch.where, and carry no part of it across"),
            f"gradients are finite over {self.long_T} steps": (
                self.long_gradients, "keep what a step multiplies the state by at or below 1 on average, or clip the state"),
            "state_dict round trip": (self.state_dict, held),
            "deepcopy": (self.deepcopy, held),
            "state to vector and back": (self.vector, "let the state hold float32 or complex64 numbers (and counters), batch first"),
            "works in float64": (self.float64, alike),
            **({"works on cuda": (self.cuda, alike)} if torch.cuda.is_available() and self.device.type != "cuda" else {}),
        }

    # --- the interface

    def interface(self) -> None:
        for name in ("initial_state", "step"):
            if not callable(getattr(self.module, name, None)):
                raise Broken(f"the module has no method {name}(); inherit from hadamem.Memory")
        output_size = getattr(self.module, "output_size", None)
        if not isinstance(output_size, int):
            raise Broken(f"module.output_size must be an int, got {output_size!r}")
        state = self.state(used=False)
        named = isinstance(state, tuple) and hasattr(state, "_fields")
        if not named or not all(isinstance(s, Tensor) for s in state):
            raise Broken(f"initial_state() must return a NamedTuple of tensors, got {type(state).__name__}")
        other = self.state(B=self.B + 1, used=False)
        for name, a, b in zip(state._fields, state, other, strict=True):
            if a.ndim < 1 or a.shape[0] != self.B or b.shape[0] != self.B + 1 or a.shape[1:] != b.shape[1:]:
                raise Broken(f"state.{name} must have the batch as its first axis and nowhere else, got shapes "
                             f"{list(a.shape)} and {list(b.shape)} for batches of {self.B} and {self.B + 1}")
        y, after = self.run(self.x(), state, self.resets())
        if tuple(y.shape) != (self.B, self.T, output_size):
            raise Broken(f"y must have shape [B, T, output_size] = [{self.B}, {self.T}, {output_size}], "
                         f"got {list(y.shape)}")
        if y.dtype != self.dtype or y.device != self.device:
            raise Broken(f"y must have the dtype and device of x, {self.dtype} on {self.device}, "
                         f"got {y.dtype} on {y.device}")
        same_kind(after, state, "the state that forward() returns")
        _, after = self.module.step(self.x()[:, 0], state)
        same_kind(after, state, "the state that step() returns")

    def initial_state(self) -> None:
        initial = self.module.initial_state
        a, b = self.state(used=False), self.state(used=False)
        for name, s, t in zip(a._fields, a, b, strict=True):
            if not torch.equal(s, t):
                raise Broken(f"state.{name} differs for two generators of the same seed; draw from `generator` only")
            if s.device != self.device:
                raise Broken(f"state.{name} must be on the module's device {self.device} by default, got {s.device}")
        before = torch.get_rng_state()
        self.state(used=False)
        if not torch.equal(before, torch.get_rng_state()):
            raise Broken("initial_state(generator=...) draws from torch's global generator too")
        for dtype in (torch.float32, torch.float64):
            for name, s in zip(a._fields, initial(self.B, dtype=dtype), strict=True):
                wide = dtype.to_complex() if s.is_complex() else dtype
                if is_real(s) and s.dtype != wide:
                    raise Broken(f"state.{name} must be {wide} for initial_state(dtype={dtype}), got {s.dtype}")
        for name, s in zip(a._fields, initial(self.B, device="meta"), strict=True):
            if s.device.type != "meta":
                raise Broken(f"state.{name} must be on the device asked for, 'meta', got {s.device}")

    def fresh_by_default(self) -> None:
        x = self.x()
        torch.manual_seed(7)
        y, _ = self.run(x)
        torch.manual_seed(7)
        want, _ = self.run(x, self.module.initial_state(self.B))
        self.same(y, want, "y without a state, against one from initial_state() under the same torch.manual_seed")

    def repeatable(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        want, want_state = self.run(x, state, reset)
        self.run(self.x(seed=2), self.state(seed=2), None)   # leaves traces only in a module that keeps some
        got, got_state = self.run(x, state, reset)
        self.same(got, want, "y of the second call; does the module store its state?")
        self.same_state(got_state, want_state, "the second call")

    def arguments_unchanged(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        parameters = {k: v.clone() for k, v in self.module.state_dict().items()}
        before = x.clone(), states.apply(Tensor.clone, state), reset.clone()
        calls: dict[str, Callable[[], Any]] = {     # without resets too: what drops the old state often makes a copy of it
            "forward(reset=None)": lambda: self.run(x, state),
            "forward()": lambda: self.run(x, state, reset),
            "step(reset=None)": lambda: self.module.step(x[:, 0], state),
            "step()": lambda: self.module.step(x[:, 0], state, reset[:, 0]),
        }
        for call, made in calls.items():
            with torch.no_grad():
                made()
            if not torch.equal(x, before[0]):
                raise Broken(f"{call} wrote into x")
            if not torch.equal(reset, before[2]):
                raise Broken(f"{call} wrote into reset")
            for name, a, b in zip(state._fields, state, before[1], strict=True):
                if not torch.equal(a, b):
                    raise Broken(f"{call} wrote into state.{name} in place; return a new tensor")
            for name, v in self.module.state_dict().items():
                if not torch.equal(v, parameters[name]):
                    raise Broken(f"{call} changed {name} of the module")

    # --- time

    def splits(self) -> None:
        x, state, T = self.x(), self.state(), self.T
        for what, reset in (("without resets", None), ("with resets", self.resets())):
            want, want_state = self.run(x, state, reset)
            ways = {"two parts": [T // 2], "three parts": [1, T - 3], "single steps": list(range(1, T))}
            for name, cuts in ways.items():
                got, got_state = self.pieces(x, state, reset, cuts)
                self.same(got, want, f"y in {name} {what}")
                self.same_state(got_state, want_state, f"{name} {what}")
        strided = x.transpose(0, 1).contiguous().transpose(0, 1)
        self.same(self.run(strided, state)[0], self.run(x, state)[0], "y for a non-contiguous x")

    def step(self) -> None:
        x, state = self.x(T=1), self.state()
        for reset in (None, torch.arange(self.B, device=self.device) % 2 == 0):
            want, want_state = self.run(x, state, None if reset is None else reset[:, None])
            got, got_state = self.module.step(x[:, 0], state, reset)
            self.same(got, want[:, 0], "y of step()")
            self.same_state(got_state, want_state, "step()")
            with torch.no_grad():     # acting may take another way
                got, got_state = self.module.step(x[:, 0], state, reset)
            self.same(got, want[:, 0], "y of step() without gradient")
            self.same_state(got_state, want_state, "step() without gradient")

    def no_reset(self) -> None:
        x, state = self.x(), self.state()
        want, want_state = self.run(x, state, None)
        got, got_state = self.run(x, state, torch.zeros(self.B, self.T, dtype=torch.bool, device=self.device))
        self.same(got, want, "y with an all-False reset")
        self.same_state(got_state, want_state, "an all-False reset")

    def packed(self) -> None:
        """An episode that a reset opens is run alone from a fresh state, so that a memory which ignores resets differs here too."""
        x, state, reset, fresh = self.x(), self.state(), self.resets(), self.state(used=False)
        got, got_state = self.run(x, state, reset)
        for b in range(self.B):
            row = slice(b, b + 1)
            alone, new = states.index(state, row), states.index(fresh, row)
            starts = sorted({0, *reset[b].nonzero()[:, 0].tolist()})
            for start, end in zip(starts, [*starts[1:], self.T], strict=True):
                opens = torch.zeros(1, end - start, dtype=torch.bool, device=self.device)
                opens[0, 0] = reset[b, start]
                if reset[b, start]:     # counters go on: what a reset draws may depend on them
                    alone = type(alone)(*(n if is_real(n) else old for n, old in zip(new, alone, strict=True)))
                y, alone = self.run(x[row, start:end], alone, opens)
                what = f"y of row {b}, steps {start} to {end - 1}, against that episode alone"
                self.same(got[row, start:end], y, what)
            self.same_state(states.index(got_state, row), alone, f"row {b}, against its last episode alone")

    def reset_forgets(self) -> None:
        x, start, T = self.x(), self.state(used=False), self.T
        opens = torch.zeros(self.B, T, dtype=torch.bool, device=self.device)
        opens[:, 0] = True
        pasts = [self.run(self.x(T=5, seed=s), start)[1] for s in (11, 12)]   # two pasts, the same counters
        (want, want_state), (got, got_state) = (self.run(x, past, opens) for past in pasts)
        self.same(got, want, "y after a reset at the first step, for two different states before it")
        self.same_state(got_state, want_state, "after a reset at the first step")
        late = torch.roll(opens, 3, dims=1)
        inside = [self.run(torch.cat((self.x(T=3, seed=s), x[:, 3:]), dim=1), start, late)[0][:, 3:] for s in (11, 12)]
        self.same(inside[1], inside[0], "y after a reset at step 3, for two different inputs before it")
        fresh, fresh_state = self.run(x, start)
        got, got_state = self.run(x, start, opens)
        counters = [(a, b) for a, b in zip(got_state, fresh_state, strict=True) if not is_real(a)]
        if all(torch.equal(a, b) for a, b in counters):   # else the reset has drawn anew, and outputs may differ
            self.same(got, fresh, "y after a reset, against y from initial_state()")

    def reset_recovers(self) -> None:
        x, start = self.x(), self.state()
        for at in (0, self.T // 2):
            reset = torch.zeros(self.B, self.T, dtype=torch.bool, device=self.device)
            reset[:, at] = True
            want, want_state = self.run(x, start, reset)
            for bad in (float("inf"), float("nan")):
                broken = type(start)(*(torch.full_like(s, bad) if is_real(s) else s for s in start))
                leaf = x.clone().requires_grad_()
                got, got_state = self.run(leaf, broken, reset)
                self.same(got[:, at:], want[:, at:], f"y from a reset at step {at} on, after a state of {bad}")
                self.same_state(got_state, want_state, f"after a state of {bad} and a reset at step {at}")
                if at == 0:
                    what = f"a state of {bad} that a reset at step 0 has dropped"
                    self.finite(got, [("x", leaf), *self.module.named_parameters()], what)

    def poison(self) -> None:
        x, state, T = self.x(), self.state(), self.T
        reset = torch.zeros(self.B, T, dtype=torch.bool, device=self.device)
        reset[1, T // 2 + 1] = True
        with torch.no_grad():
            want, want_state = self.run(x, state, reset)
            for bad in (float("nan"), float("inf")):
                sick = x.clone()
                sick[1, 3] = bad
                got, got_state = self.run(sick, state, reset)
                others = [b for b in range(self.B) if b != 1]
                self.same(got[others], want[others], f"y of the other rows, with an input of {bad} in row 1")
                self.same(got[1, :3], want[1, :3], f"y before an input of {bad}")
                after = slice(T // 2 + 1, None)
                self.same(got[1, after], want[1, after], f"y after the reset that follows an input of {bad}")
                self.same_state(got_state, want_state, f"after a reset that follows an input of {bad}")

    def causality(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        for t in (1, self.T // 2, self.T - 1):
            other, late = x.clone(), reset.clone()
            other[:, t:] = self.x(seed=3)[:, t:]
            late[:, t:] = ~late[:, t:]
            want = self.run(x, state, reset)[0][:, :t]
            self.same(self.run(other, state, reset)[0][:, :t], want, f"y before step {t}, with other x from {t} on")
            self.same(self.run(x, state, late)[0][:, :t], want, f"y before step {t}, with other resets from {t} on")

    # --- rows

    def batch_rows(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        want, want_state = self.run(x, state, reset)
        for b in range(self.B):
            row = slice(b, b + 1)
            got, got_state = self.run(x[row], states.index(state, row), reset[row])
            self.same(got, want[row], f"y of row {b} run alone")
            self.same_state(got_state, states.index(want_state, row), f"row {b} run alone")
        order = torch.arange(self.B - 1, -1, -1, device=self.device)
        got, got_state = self.run(x[order], states.index(state, order), reset[order])
        self.same(got, want[order], "y with the batch in reverse order")
        self.same_state(got_state, states.index(want_state, order), "the batch in reverse order")

    # --- gradients

    def split_gradients(self) -> None:
        reset, cotangent = self.resets(), torch.randn_like(self.run(self.x())[0])
        results = []
        for cuts in ([], [self.T // 3, self.T - 2]):
            x = self.x().requires_grad_()
            state, leaves = self.leaves(self.state())
            y, _ = self.pieces(x, state, reset, cuts)
            results.append(self.gradients(y, [("x", x), *leaves, *self.module.named_parameters()], cotangent))
        for name, want in results[0].items():
            what = f"gradient of {name} through three parts with the state carried, against the whole"
            self.same(results[1][name], want, what)

    def reset_gradients(self) -> None:
        t = self.T // 2
        reset = torch.zeros(self.B, self.T, dtype=torch.bool, device=self.device)
        reset[:, t] = True
        x = self.x().requires_grad_()
        state, leaves = self.leaves(self.state())
        y, _ = self.run(x, state, reset)
        for name, g in self.gradients(y[:, t:], [("x", x), *leaves], torch.ones_like(y[:, t:])).items():
            before = g[:, :t] if name == "x" else g
            if bool((before != 0).any()):
                raise Broken(f"y from step {t} on has a gradient of up to {before.abs().max().item():.2g} in {name} "
                             f"before the reset at step {t}")

    def long_gradients(self) -> None:
        x = self.x(B=2, T=self.long_T).requires_grad_()
        state, leaves = self.leaves(self.state(B=2, used=False))
        y, _ = self.run(x, state)
        if not bool(torch.isfinite(y).all()):
            raise Broken(f"y has {int((~torch.isfinite(y)).sum())} entries that are inf or nan")
        self.finite(y, [("x", x), *leaves, *self.module.named_parameters()], f"{self.long_T} steps")

    # --- memory

    def remembers(self) -> None:
        x, state = self.x(), self.state(used=False)
        other = x.clone()
        other[:, 0] = self.x(seed=3)[:, 0]
        with torch.no_grad():
            (a, _), (b, _) = self.run(x, state), self.run(other, state)
            pasts = [self.run(self.x(T=5, seed=s), state)[1] for s in (101, 12)]
            carried = [self.run(x, past)[0] for past in pasts]
        if not self.expect_memory:
            self.same(b[:, 1:], a[:, 1:], "y after the first step, for two different inputs at it")
            self.same(carried[1], carried[0], "y for two different states before it")
            return
        near = (a[:, 1:] - b[:, 1:]).abs().amax()
        if not float(near) > 1e-7 * float(a.abs().max()):
            raise Broken("two sequences that differ in their first input only give the same y afterwards "
                         f"(largest difference {float(near):.2g})")
        if all(torch.equal(a, b) for a, b in zip(*pasts, strict=True)):
            raise Broken("forward() returns the same state after two different sequences")
        if torch.equal(carried[0], carried[1]):
            raise Broken("y does not depend on the state handed in")
        self.learns_to_remember()

    def learns_to_remember(self) -> None:
        """Gradients reach earlier inputs and the state: without them all other checks of gradients compare 0 with 0."""
        x, t, used = self.x().requires_grad_(), self.T // 2, self.state()   # used: a fresh one may have no gradient yet
        y, _ = self.run(x, used)
        cotangent = torch.randn_like(y)      # not ones: the sum of a normalised y is constant
        if not bool(self.gradients(y[:, t:], [("x", x)], cotangent[:, t:])["x"][:, :t].any()):
            raise Broken(f"y from step {t} on depends on x before it, but has no gradient there, so nothing learns what to store")
        state, leaves = self.leaves(used)
        y, _ = self.run(x, state)            # all of y: a memory of the last few steps uses the state at the first ones only
        if leaves and not any(bool(g.any()) for g in self.gradients(y, leaves, cotangent).values()):
            raise Broken("y depends on the state handed in, but has no gradient there")

    # --- life of a module

    def state_dict(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        want, _ = self.run(x, state, reset)
        file = io.BytesIO()
        torch.save(self.module.state_dict(), file)
        file.seek(0)
        other = copy.deepcopy(self.module)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.5).add_(0.25)
        other.load_state_dict(torch.load(file, weights_only=True))
        self.same(self.run(x, state, reset, other)[0], want, "y of a copy with the saved state_dict")

    def deepcopy(self) -> None:
        x, state, reset = self.x(), self.state(), self.resets()
        want, _ = self.run(x, state, reset)
        other = copy.deepcopy(self.module)
        self.same(self.run(x, state, reset, other)[0], want, "y of a copy")
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.5).add_(0.25)
        self.same(self.run(x, state, reset)[0], want, "y of the original after its copy was changed")

    def vector(self) -> None:
        state = self.state()
        vector = states.to_vector(state)
        if vector.dtype != torch.float32 or vector.ndim != 2 or vector.shape[0] != self.B:
            raise Broken(f"hadamem.states.to_vector must give float32 [B, n], got {vector.dtype} {list(vector.shape)}")
        back = states.from_vector(self.module, vector)
        for name, a, b in zip(state._fields, back, state, strict=True):
            if a.dtype != b.dtype or not torch.equal(a, b):
                raise Broken(f"state.{name} is not the same after hadamem.states.to_vector and from_vector")
        self.same(self.run(self.x(), back)[0], self.run(self.x(), state)[0], "y from the restored state")

    def float64(self) -> None:
        self.moved(copy.deepcopy(self.module).to(torch.float64), torch.float64, self.device)

    def cuda(self) -> None:
        self.moved(copy.deepcopy(self.module).to("cuda"), self.dtype, torch.device("cuda", torch.cuda.current_device()))

    def moved(self, module: Any, dtype: torch.dtype, device: torch.device) -> None:
        """A moved copy gives the same values (to the narrower dtype's accuracy), in its own dtype and place."""
        x, state, reset = self.x(), self.state(used=False), self.resets()
        wide = torch.promote_types(dtype, torch.float32)
        kinds = [wide.to_complex() if s.is_complex() else wide if s.is_floating_point() else s.dtype for s in state]
        there = type(state)(*(s.to(device, kind) for s, kind in zip(state, kinds, strict=True)))
        y, after = self.run(x.to(device, dtype), there, reset.to(device), module)
        if y.dtype != dtype or y.device != device:
            raise Broken(f"y must be {dtype} on {device}, got {y.dtype} on {y.device}")
        want, _ = self.run(x, state, reset)
        rtol, atol = self.tolerances.get(self.dtype, TOLERANCES[torch.float32])
        error, limit = (y.to(want) - want).abs().max().item(), 10 * (atol + rtol * want.abs().max().item())
        if not error <= limit:
            raise Broken(f"y differs by {error:.2g} from y in {self.dtype} on {self.device} (allowed {limit:.1g})")
        fresh = module.initial_state(self.B)
        for name, a, b, kind in zip(fresh._fields, fresh, after, kinds, strict=True):
            if {a.device, b.device} != {device} or {a.dtype, b.dtype} != {kind}:
                raise Broken(f"state.{name} must be {kind} on {device}, got {a.dtype} on {a.device} from "
                             f"initial_state() and {b.dtype} on {b.device} from forward()")
