"""What memories show of a step: the right tensors, and the equations hold between them."""

from typing import NamedTuple

import pytest
import torch

from hadamem import memory as memories
from hadamem.memory.inspection import KINDS, ROLES, Shown, show_state

B, D = 2, 6
OPTIONS = {"gpt2": {"window": 4}, "dnc": {"controller_size": 8}}
CASES = [*((name, {}) for name in memories.MEMORIES), ("fwp", {"variant": "additive"}), ("gpt2", {"window": 4, "past_window": "recompute"}),
         ("gpt2", {"window": 9, "past_window": "recompute", "layers": 2}), ("gpt2", {"window": 3, "layers": 2}),
         ("dnc", {"allocation": False, "links": False}),
         *(("shm", {"calibration": kind}) for kind in ("neural_theta", "fixed", "random", "none")),
         *(("shm", {"calibration": kind, "theta_init": 1.0}) for kind in ("exp", "drift")),
         ("shm", {"rotary": True}), ("shm", {"rotary": True, "rotary_keys": True, "rotary_gain": 0.1})]


def build(name, options):
    torch.manual_seed(0)
    return memories.make_memory(name, D, 5, memory_size=8, **{**OPTIONS.get(name, {}), **options}).eval()


def walk(memory, T=7):
    """x, reset, the state before, what is shown, y and the state after, step by step; row 1 starts a new episode at step 4."""
    state = memory.initial_state(B, generator=torch.Generator().manual_seed(1))
    for t, x in enumerate(torch.randn(T, B, D, generator=torch.Generator().manual_seed(2))):
        reset = torch.tensor([t == 0, t in (0, 4)])
        with torch.no_grad():
            y, after = memory.step(x, state, reset)
        yield x, reset, state, memory.inspect(x, state, reset), y, after
        state = after


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_tensors_have_the_batch_first_and_are_the_same_at_every_step(name, options):
    seen = []
    for *_, shown, _, _ in walk(build(name, options)):
        for part in shown.values():
            assert part.role in ROLES
            assert part.kind in (*KINDS.values(), "attention")
            assert part.values.shape[0] == B
            assert part.values.isfinite().all()
            assert not part.values.requires_grad
        seen.append({key: (part.kind, part.role, part.values.shape) for key, part in shown.items()})
    assert all(step == seen[0] for step in seen)
    assert seen[0] or name == "none"


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] not in ("gpt2", "none", "ffm", "s6", "gru", "lstm")],
                         ids=str)
def test_the_old_state_times_the_factor_plus_the_update_is_the_new_state(name, options):
    memory = build(name, options)
    for _, reset, before, shown, _, after in walk(memory):
        before = memory.reopened(before, reset)
        M = before.M if hasattr(before, "M") else before.C
        if name == "mlstm":
            M = M * torch.exp(before.m - after.m)[:, None, None]     # to the units after the step
        factor = shown.get("C", shown.get("f"))
        C = 1.0 if factor is None else factor.values if factor.kind == "matrix" else factor.values[:, None, None]
        torch.testing.assert_close(shown["M"].values, M * C + shown["U"].values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "state"), [("gru", "h"), ("lstm", "c"), ("s6", "S"), ("ffm", "S")])
def test_a_factor_of_one_keeps_a_unit(name, state):
    """The state after the step depends on the state before by exactly the factor shown, unit by unit."""
    memory = build(name, {})
    *_, (x, reset, before, shown, _, _) = walk(memory)
    moved = before._replace(**{state: getattr(before, state) + 1e-3})
    field = getattr(memory.step(x, moved, reset)[1], state) - getattr(memory.step(x, before, reset)[1], state)
    factor = next(part for part in shown.values() if part.role == "factor").values
    if name == "gru":     # the gates see h as well: compare with the cell written out
        h, z = before.h, factor
        W_ih, W_hh, b_ih, b_hh = memory._weights()
        new = torch.tanh((x @ W_ih.T + b_ih)[:, 16:] + shown["r"].values * (h @ W_hh.T + b_hh)[:, 16:])
        torch.testing.assert_close(shown["h"].values, z * h + (1 - z) * new)
    else:
        torch.testing.assert_close(field.abs().flatten(1), 1e-3 * factor, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("options", [{"window": 4}, {"window": 9}, {"window": 4, "past_window": "recompute"},
                                     {"window": 9, "past_window": "recompute"}], ids=str)
def test_attention_sums_to_one_over_the_steps_of_the_episode(options):
    for t, (*_, shown, _, _) in enumerate(walk(build("gpt2", options))):
        weights = shown["attention 1"].values
        assert weights.shape == (B, 4, options["window"])
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, 4))
        for row, age in enumerate((t, t if t < 4 else t - 4)):
            seen = (weights[row, 0] > 0).nonzero()[:, 0].tolist()
            assert seen == list(range(max(0, options["window"] - 1 - age), options["window"]))


def test_both_ways_past_the_window_agree_while_it_lasts():
    slide, recompute = (build("gpt2", {"window": 9, "layers": 2, "past_window": way}) for way in ("slide", "recompute"))
    recompute.load_state_dict(slide.state_dict())
    for (*_, one, _, _), (*_, other, _, _) in zip(walk(slide), walk(recompute), strict=True):
        for name in one:
            torch.testing.assert_close(one[name].values, other[name].values)


def test_attention_is_what_the_output_is_made_of():
    """The values weighted by it, through the rest of the network, are the output."""
    memory = build("gpt2", {"window": 3})
    *_, (x, _, before, shown, y, _) = walk(memory)
    block = memory.blocks[0]
    z = memory.map(x) + memory._sines(before.position)
    values = torch.cat((before.past[:, 0].chunk(2, -1)[1], block.attention(block.norm1(z)).chunk(3, -1)[2][:, None]), 1)
    heads = values.unflatten(-1, (4, 2)).transpose(1, 2)                       # [B, heads, 3, 2]
    read = (shown["attention 1"].values[..., None, :] @ heads).flatten(1)
    want = memory.out(memory.norm(block._finish(z[:, None], read[:, None])))[:, 0]
    torch.testing.assert_close(y, want)


def test_a_state_of_a_user_is_shown_as_it_is():
    class Own(NamedTuple):
        count: torch.Tensor
        big: torch.Tensor
        spin: torch.Tensor
        nothing: torch.Tensor

    state = Own(torch.zeros(2, dtype=torch.int64), torch.ones(2, 3, 4, 5), torch.full((2, 3), 3 + 4j), torch.zeros(2, 0))
    shown = show_state(state)
    assert set(shown) == {"big", "spin"}
    assert (shown["big"].kind, shown["big"].values.shape) == ("vector", (2, 60))
    assert shown["spin"].values.tolist() == [[5.0] * 3] * 2
    assert Shown(torch.zeros(1)).kind == "scalar"
