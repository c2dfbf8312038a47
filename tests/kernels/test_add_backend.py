"""A backend is a function and a line in the table of each operation that has it. Here `toy`, for `hadamard`."""

import pytest
import torch

import hadamem as hm
from hadamem.kernels import _backends
from hadamem.kernels.hadamard import BACKENDS, hadamard_reference

calls = []


def hadamard_toy(C, U, M0, reset):
    """The contract of `hadamard_reference`: C, U [B, T, V, K], M0 [B, V, K], reset [B, T] -> every M_t [B, T, V, K]."""
    calls.append(tuple(U.shape))
    M, states = torch.zeros_like(U[:, 0]) if M0 is None else M0, []
    for t in range(U.shape[1]):
        if reset is not None:
            M = M.masked_fill(reset[:, t, None, None], 0.0)
        M = torch.addcmul(U[:, t], M, C[:, t])
        states.append(M)
    return torch.stack(states, 1)


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", hadamard_toy)      # the line: "toy": hadamard_toy
    monkeypatch.setattr(_backends, "_failed", {})
    monkeypatch.setattr(_backends, "_working", set())
    calls.clear()


def inputs():
    return torch.rand(2, 5, 3, 4), torch.rand(2, 5, 3, 4), torch.rand(2, 5, 4), torch.rand(2, 3, 4), torch.rand(2, 5) < 0.3


def test_it_is_listed():
    assert "toy" in hm.kernels.backends("hadamard")
    assert "toy" not in hm.kernels.backends("shm")
    with pytest.raises(ValueError, match="unknown backend 'toi' for hadamard; choose from auto, reference, scan, cpu, triton, toy"):
        hm.kernels.hadamard(*inputs(), backend="toi")


def test_it_runs_when_it_is_named():
    args = inputs()
    for got, want in zip(hm.kernels.hadamard(*args, backend="toy"), hm.kernels.hadamard(*args, backend="reference"), strict=True):
        torch.testing.assert_close(got, want)
    assert calls == [(2, 5, 3, 4)]
    hm.kernels.hadamard(*args)
    assert len(calls) == 1, "auto must not choose it"


def test_auto_takes_it_by_one_more_line_after_a_probe(monkeypatch):
    monkeypatch.setitem(_backends.PREFERRED, "cpu", ("toy", *_backends.PREFERRED["cpu"]))
    args = inputs()
    h, _ = hm.kernels.hadamard(*args)
    torch.testing.assert_close(h, hm.kernels.hadamard(*args, backend="reference")[0])
    assert len(calls) == 2      # the probe, and the call


def test_auto_leaves_it_alone_if_its_numbers_are_wrong(monkeypatch):
    monkeypatch.setitem(_backends.PREFERRED, "cpu", ("toy", *_backends.PREFERRED["cpu"]))
    monkeypatch.setitem(BACKENDS, "toy", lambda *args: 2 * hadamard_reference(*args))
    args = inputs()
    with pytest.warns(RuntimeWarning, match="backend 'toy' of hadamard failed on cpu"):
        h, _ = hm.kernels.hadamard(*args)
    torch.testing.assert_close(h, hm.kernels.hadamard(*args, backend="reference")[0])
