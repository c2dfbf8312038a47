"""What is particular to the cpu backend: threads, forks, non-finite rows, chunk edges, long sequences, opcheck."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

pytest.importorskip("numba")

from hadamem import kernels
from hadamem.kernels.hadamard.reference import hadamard_reference
from hadamem.kernels.shm import fused_cpu
from hadamem.kernels.shm.cpu_kernels import BAND, W
from hadamem.kernels.shm.forms import find_form
from hadamem.kernels.shm.fused_cpu import WHOLE_ROWS, interval, shm_cpu
from hadamem.kernels.shm.reference import shm_reference

from .. import warm

S = interval(256)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}   # of a tensor's largest entry


def shm_inputs(B, T, V, K, *, dtype=torch.float32, calibration="tanh", state=True, resets=0.1, seed=0):
    """theta, vc, v, k, q, M0 (leaves) and reset."""
    rng = torch.Generator().manual_seed(seed)

    def leaf(*shape, scale=1.0):
        return (torch.randn(*shape, generator=rng, dtype=torch.float64) * scale).to(dtype).requires_grad_()

    rows = 2 * V if find_form(calibration).drift else V
    theta, vc = (None, None) if calibration == "none" else (leaf(B, T, rows, scale=0.5), leaf(B, T, K))
    reset = torch.rand(B, T, generator=rng) < resets if resets else None
    return [theta, vc, leaf(B, T, V), leaf(B, T, K), leaf(B, T, K), leaf(B, V, K) if state else None], reset


def with_grads(run, inputs, *rest, seed=1):
    """All outputs of run(*inputs, *rest) and the gradients of a random weighting of them."""
    outputs = run(*inputs, *rest)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    rng = torch.Generator().manual_seed(seed)
    loss = sum((x * torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x.dtype)).sum() for x in outputs)
    return [*(x.detach() for x in outputs), *torch.autograd.grad(loss, [x for x in inputs if x is not None])]


def hadamard_cpu(C, U, M0, reset):
    return kernels.hadamard(C, U, None, M0, reset, "cpu")


def hadamard_inputs(B, T, V, K, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    reset = torch.rand(B, T) < 0.2
    shapes = [(B, T, V, K), (B, T, V, K), (B, V, K)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes], reset


def assert_near(got, want):
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.shape == w.shape
        off = (g - w).abs().max()
        assert off <= TOLERANCE[w.dtype] * w.abs().max(), f"tensor {n}: off by {off:.3g}"


def identical(xs, ys):
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("B", "T", "V", "K"), [
    (1, 1, 1, 1), (2, S - 1, 5, 3), (2, S, 4, 16), (2, S + 1, 3, 17), (2, 3 * S - 2, BAND + 1, W + 2),
    (WHOLE_ROWS, 9, BAND + 3, 24),
])
@pytest.mark.parametrize(("calibration", "clip", "state", "resets"), [
    ("tanh", None, False, 0), ("tanh", 1.5, True, 0.2), ("sigmoid", None, True, 0.2), ("none", None, True, 0.2),
    ("none", 1.5, False, 0),
    ("exp", None, True, 0.2), ("exp:2.7", 1.5, True, 0.2), ("drift", None, False, 0), ("drift:2.5", 1.5, True, 0.2),
])
def test_edges_match_reference(B, T, V, K, dtype, calibration, clip, state, resets):
    inputs, reset = shm_inputs(B, T, V, K, dtype=dtype, calibration=calibration, state=state, resets=resets)
    rest = (reset, clip, calibration)
    assert_near(with_grads(shm_cpu, inputs, *rest), with_grads(shm_reference, inputs, *rest))


@pytest.mark.parametrize("B", [1, 3, WHOLE_ROWS])
def test_threads_and_batch_do_not_change_a_bit(B):
    inputs, reset = shm_inputs(B, 40, 3 * BAND + 5, 129)
    cells, cell_reset = hadamard_inputs(B, 9, 40, 60)
    before = torch.get_num_threads()
    try:
        results, cell_results = [], []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_grads(shm_cpu, inputs, reset, 2.0, "tanh"))
            cell_results.append(with_grads(hadamard_cpu, cells, cell_reset))
    finally:
        torch.set_num_threads(before)
    assert all(identical(results[0], other) for other in results[1:])
    assert all(identical(cell_results[0], other) for other in cell_results[1:])

    many = [torch.cat([x.detach(), torch.randn(WHOLE_ROWS, *x.shape[1:])]).requires_grad_() for x in inputs]
    many_reset = torch.cat([reset, torch.rand(WHOLE_ROWS, 40) < 0.5])
    h, M = shm_cpu(*many, many_reset, 2.0, "tanh")
    h0, M0 = shm_cpu(*inputs, reset, 2.0, "tanh")
    assert identical([h[:B], M[:B]], [h0, M0])
    grads = torch.autograd.grad(h[:B].square().sum() + M[:B].sum(), many)
    assert identical([g[:B] for g in grads], torch.autograd.grad(h0.square().sum() + M0.sum(), inputs))


def test_split_sequence_is_the_same_to_the_bit():
    (theta, vc, v, k, q, M0), reset = shm_inputs(2, 3 * S + 5, 24, 24)
    h, M = shm_cpu(theta, vc, v, k, q, M0, reset, None, "tanh")
    parts, state = [], M0
    for a, b in [(0, 1), (1, S - 2), (S - 2, 2 * S + 3), (2 * S + 3, 3 * S + 5)]:
        part, state = shm_cpu(*(x[:, a:b] for x in (theta, vc, v, k, q)), state, reset[:, a:b], None, "tanh")
        parts.append(part)
    assert identical([torch.cat(parts, 1), state], [h, M])


def test_calls_from_many_python_threads():
    inputs, reset = shm_inputs(4, 64, 64, 64)
    cells, cell_reset = hadamard_inputs(4, 16, 64, 64)
    want, cell_want = with_grads(shm_cpu, inputs, reset, None, "tanh"), with_grads(hadamard_cpu, cells, cell_reset)
    wrong = []

    def work():
        for _ in range(5):
            wrong.append(not identical(with_grads(shm_cpu, inputs, reset, None, "tanh"), want))
            wrong.append(not identical(with_grads(hadamard_cpu, cells, cell_reset), cell_want))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(wrong) == 60
    assert not any(wrong)


FORK = """
import os, torch
from hadamem.kernels.shm.fused_cpu import shm_cpu
torch.set_num_threads(2)
torch.manual_seed(0)
x = [torch.randn(8, 64, 64) for _ in range(5)]
def run():
    return shm_cpu(*x, None, None, None, "tanh")[0]
want = run()                       # the parent's pool is up
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        ok = torch.equal(run(), want) and torch.equal(run(), want)
        os._exit(0 if ok else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
assert torch.equal(run(), want)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_children_compute():
    status, said = warm.run(FORK)
    assert status == 0, said


UNWRITABLE = """
import numba.core.caching as caching
for locator in vars(caching).values():
    if isinstance(locator, type) and hasattr(locator, "from_function"):
        locator.from_function = classmethod(lambda cls, *args: None)
import torch
from hadamem.kernels.shm.cpu_kernels import run_forward
from hadamem.kernels.shm.fused_cpu import shm_cpu
x = torch.ones(1, 2, 4)
shm_cpu(x, x, x, x, x, None, None, None, "tanh")
assert type(run_forward._cache).__name__ == "NullCache"
"""


def test_works_where_no_cache_can_be_written():
    status, said = warm.run(UNWRITABLE)
    assert status == 0, said


def test_import_does_not_load_numba():
    code = "import sys, hadamem, hadamem.kernels; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", ["k", "v", "q", "M0"])
@pytest.mark.parametrize("K", [1, 3, 16])
def test_inf_is_read_as_the_reference_reads_it(name, K):
    """Columns and states that fill up a vector do not make nan of inf."""
    B, T, V = 2, 5, 3
    inputs, _ = shm_inputs(B, T, V, K, resets=0)
    place = ["theta", "vc", "v", "k", "q", "M0"].index(name)
    with torch.no_grad():
        inputs[place][(0, 0, 0) if name == "M0" else (0, 2, 0)] = float("inf")
        want, got = (kernels.shm(*inputs, backend=backend) for backend in ("reference", "cpu"))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)
        theta, _, v, k, q, S0 = inputs
        rates = -torch.ones(V, K)
        want, got = (kernels.selective(theta.abs(), rates, v, k, q, S0, backend=backend) for backend in ("reference", "cpu"))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize("clip", [None, 1e3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["theta", "vc", "v", "k", "q", "M0"])
def test_non_finite_stays_in_its_episode(name, bad, clip):
    """Row 1 of three goes bad in its second episode (M0: its first); the rest is as if it had not."""
    B, T, V, K = 3, 2 * S + 7, 5, 20
    inputs, _ = shm_inputs(B, T, V, K, resets=0)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[1, [6, S + 3]] = True
    clean = with_grads(shm_cpu, inputs, reset, clip, "tanh")
    place = ["theta", "vc", "v", "k", "q", "M0"].index(name)
    with torch.no_grad():
        if name == "M0":
            inputs[place][1, 2, 3] = bad
        else:
            inputs[place][1, 8, 3] = bad
    episode = slice(0, 6) if name == "M0" else slice(6, S + 3)
    hurt = torch.zeros(B, T, dtype=torch.bool)
    hurt[1, episode] = True

    got = with_grads(shm_cpu, inputs, reset, clip, "tanh")
    for clean_x, x in zip(clean, got, strict=True):
        if x.shape[1] == T:
            torch.testing.assert_close(x[~hurt], clean_x[~hurt], rtol=0, atol=0)
        else:   # M_T and dM0: only dM0 sees the first episode
            mine = torch.tensor([True, name != "M0" or x is got[1], True])
            torch.testing.assert_close(x[mine], clean_x[mine], rtol=0, atol=0)
    h = got[0][1]
    if bad != bad:   # nan: h is nan from there to the end of the episode, in the rows that the entry touches
        rows = slice(None) if name in ("vc", "k") else 2 if name == "M0" else 3
        end = 9 if name == "q" else episode.stop
        rows = slice(None) if name == "q" else rows
        assert h[0 if name == "M0" else 8:end, rows].isnan().all()


def test_non_finite_gradient_stays_in_its_episode():
    inputs, _ = shm_inputs(2, 2 * S, 4, 4, resets=0)
    reset = torch.zeros(2, 2 * S, dtype=torch.bool)
    reset[1, [5, S]] = True
    grads = []
    for bad in (0.0, float("nan")):
        h, M = shm_cpu(*inputs, reset, None, "tanh")
        weight = torch.ones_like(h)
        weight[1, 7] += bad
        grads.append(torch.autograd.grad((h * weight).sum() + M.sum(), inputs))
    for clean, got in zip(*grads, strict=True):
        torch.testing.assert_close(got[0], clean[0], rtol=0, atol=0)
        if clean.shape[1] == 2 * S:
            torch.testing.assert_close(got[1, :5], clean[1, :5], rtol=0, atol=0)
            torch.testing.assert_close(got[1, S:], clean[1, S:], rtol=0, atol=0)
        else:
            torch.testing.assert_close(got, clean, rtol=0, atol=0)   # dM0


def test_hadamard_matches_reference_and_isolates_inf():
    for dtype in TOLERANCE:
        inputs, reset = hadamard_inputs(3, 11, 40, 33, dtype)
        assert_near(with_grads(hadamard_cpu, inputs, reset), with_grads(hadamard_reference, inputs, reset))
    C, U = torch.full((1, 3, 2, 2), 2.0), torch.ones(1, 3, 2, 2)
    U[0, 0] = float("inf")
    M0 = torch.full((1, 2, 2), float("nan"), requires_grad=True)
    M = hadamard_cpu(C, U, M0, torch.tensor([[True, True, False]]))
    assert M[0, 0].isinf().all()
    assert M[0, 1:].tolist() == [[[1.0] * 2] * 2, [[3.0] * 2] * 2]
    assert torch.autograd.grad(M[:, 1:].sum(), M0)[0].eq(0).all()


def test_clip_bound_is_inclusive():
    one = torch.ones(1, 1, 1)
    for v, slope in [(2.0, 1.0), (2.0000002, 0.0), (-2.0, 1.0)]:
        x = torch.full((1, 1, 1), v, requires_grad=True)
        h, _ = shm_cpu(None, None, x, one, one, None, None, 2.0, "none")
        assert torch.autograd.grad(h.sum(), x)[0].item() == slope


def test_a_limit_reached_by_some_rows_in_some_steps():
    """Two rows go beyond it in the second chunk, at a reset, and one in the last; the others must not notice, to the bit."""
    T, limit = 3 * S + 4, 1e3
    inputs, reset = shm_inputs(3, T, 6, W + 5, calibration="sigmoid", resets=0.05)
    with torch.no_grad():
        inputs[2][0, S + 7, 2:4] *= 1e4
        inputs[2][1, -1, 5] = 1e4
    reset[0, [S + 7, S + 9]] = True
    got = with_grads(shm_cpu, inputs, reset, limit, "sigmoid")
    assert got[1][1, 5].abs().max() == limit
    assert_near(got, with_grads(shm_reference, inputs, reset, limit, "sigmoid"))
    free = with_grads(shm_cpu, inputs, reset, None, "sigmoid")
    untouched = [0, 1, 4]   # of the rows: their h, M, dtheta, dv and dM0; and everything of batch row 2
    assert identical([got[n][2] for n in range(8)], [free[n][2] for n in range(8)])
    assert identical([got[n][..., untouched] for n in (0, 2, 4)], [free[n][..., untouched] for n in (0, 2, 4)])
    assert identical([got[n][:, untouched] for n in (1, 7)], [free[n][:, untouched] for n in (1, 7)])


@pytest.mark.parametrize("calibration", ["tanh", "none", "exp"])
def test_a_limit_just_not_reached_does_not_change_a_bit(calibration):
    inputs, reset = shm_inputs(2, 2 * S + 5, 5, 40, calibration=calibration, resets=0.1)
    free = with_grads(shm_cpu, inputs, reset, None, calibration)
    for limit in (1e4, 2e3, 300.0):   # bounded far away, now and then, never; the memory stays below 300
        assert identical(with_grads(shm_cpu, inputs, reset, limit, calibration), free)


def test_a_cell_that_is_nan_counts_as_limited():
    inputs, _ = shm_inputs(1, 14, 4, 20, resets=0)   # so short that the norm is measured once only, before the nan
    theta, vc = inputs[:2]
    with torch.no_grad():
        theta[0, 9, 1], vc[0, 9, 3] = float("inf"), 0.0   # C is nan in this cell of this step, and in no other
    M = shm_cpu(*inputs, None, 1e9, "tanh")[1]
    assert M.isnan().sum() == M[0, 1].isnan().sum() == 1
    dk, = torch.autograd.grad(M[0, :, 3].sum(), inputs[3])
    others, = torch.autograd.grad(shm_cpu(*inputs, None, 1e9, "tanh")[1][0, [0, 2, 3], 3].sum(), inputs[3])
    assert identical([dk[0, 9:]], [others[0, 9:]])


def test_state_above_the_limit_is_used_as_it_came():
    inputs, _ = shm_inputs(1, 3, 4, 4, resets=0)
    with torch.no_grad():
        inputs[5] *= 10
    assert_near(with_grads(shm_cpu, inputs, None, 0.5, "tanh"), with_grads(shm_reference, inputs, None, 0.5, "tanh"))


@pytest.mark.parametrize(("calibration", "clip"), [
    ("tanh", None), ("tanh", 1.0), ("sigmoid", None), ("none", None), ("exp", 1.0), ("drift", None), ("drift:1.4", 1.0),
])
def test_gradcheck(calibration, clip):
    inputs, reset = shm_inputs(2, S + 2, 2, 3, dtype=torch.float64, calibration=calibration)
    assert torch.autograd.gradcheck(lambda *x: shm_cpu(*x, reset, clip, calibration), inputs)
    cells, cell_reset = hadamard_inputs(2, 4, 2, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: hadamard_cpu(*x, cell_reset), cells)


@pytest.mark.parametrize("calibration", ["tanh", "none", "drift"])
def test_opcheck(calibration):
    inputs, reset = shm_inputs(2, S + 1, 3, 5, calibration=calibration)
    torch.library.opcheck(torch.ops.hadamem.shm_cpu, (*inputs, reset, None, calibration, True))
    torch.library.opcheck(torch.ops.hadamem.shm_cpu, (*inputs[:-1], None, None, 1.0, calibration, False),
                          test_utils=("test_schema", "test_faketensor"))


def test_compiles_without_a_graph_break():
    inputs, reset = shm_inputs(2, S + 3, 6, 5)

    def loss(*x):
        h, M = kernels.shm(*x, reset, backend="cpu")
        return h.square().mean() + M.sum() * 0.1

    want = torch.autograd.grad(loss(*inputs), inputs)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs), inputs)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w)


def test_vmap():
    stacks = [shm_inputs(2, 5, 3, 4, seed=s)[0] for s in range(3)]
    stacked = [torch.stack(x).detach().requires_grad_() for x in zip(*stacks, strict=True)]

    def run(*x):
        return kernels.shm(*x, backend="cpu")

    h, M = torch.func.vmap(run)(*stacked)
    grads = torch.autograd.grad(h.square().sum() + M.sum(), stacked)
    for n, inputs in enumerate(stacks):
        h_n, M_n = run(*inputs)
        want = torch.autograd.grad(h_n.square().sum() + M_n.sum(), inputs)
        for w, g in zip([h_n, M_n, *want], [h[n], M[n], *(g[n] for g in grads)], strict=True):
            torch.testing.assert_close(g, w)


def test_nothing_is_kept_without_gradients():
    (theta, vc, v, k, q, M0), reset = shm_inputs(2, 3 * S, 8, 8)
    assert fused_cpu.forward(theta, vc, v, k, q, M0, reset, None, "tanh", False)[2].numel() == 0
    assert fused_cpu.forward(theta, vc, v, k, q, M0, reset, None, "tanh", True)[2].shape == (2, 3, 8, 8)


LONG = """
import re, torch
from hadamem.kernels.shm.fused_cpu import shm_cpu
torch.set_num_threads(2)
T, H = 100_000, 24
torch.manual_seed(0)
def peak():                                                           # KiB; getrusage's would count the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
def run(T):
    x = [(torch.randn(1, T, H) * 0.1).requires_grad_() for _ in range(5)]
    h, _ = shm_cpu(*x, None, torch.rand(1, T) < 1e-3, None, "tanh")
    return torch.autograd.grad(h.square().sum(), x)
run(100)                                                              # compiled and warm
before = peak()
grads = run(T)
assert all(g.isfinite().all() for g in grads)
print((peak() - before) * 1024 / (T * H * 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_long_sequence_fits_in_memory():
    """Peak memory in units of one [B, T, H] input, in a separate process; a single [B, T, H, H] would be 24."""
    status, said = warm.run(LONG)
    assert status == 0, said
    assert 5 < float(said.split()[-1]) < 22   # inputs, h, gradients, checkpoints
