"""Calls in unusual contexts: they neither break the kernels nor put a working backend out of use."""

import pytest
import torch
from torch.autograd import forward_ad

import hadamem as hm
from hadamem.kernels import _backends, _recycle
from hadamem.kernels.hadamard import hadamard
from hadamem.kernels.shm import BACKENDS
from hadamem.kernels.shm.reference import shm_reference
from hadamem.kernels.shm.scan import shm_scan

from .. import warm

FIRST_CALLS = {
    "inference mode": "with torch.inference_mode(): memory(x)",
    "no grad": "with torch.no_grad(): memory(x)",
    "vmap": "torch.vmap(lambda y: memory(y[None])[0])(x)",
    "func.grad": "torch.func.grad(lambda y: memory(y)[0].sum())(x)",
    "fake tensors": "from torch._subclasses import FakeTensorMode\nwith FakeTensorMode(): hm.kernels.shm(*[torch.randn(2, 3, 4)] * 5)",
    "default device": "with torch.device('meta'): memory(x)",
    "autocast": "with torch.autocast('cpu', torch.bfloat16): memory(x)",
    "forward mode": "import torch.autograd.forward_ad as ad\nwith ad.dual_level(): memory(ad.make_dual(x, x))",
}


QUICK = ("inference mode", "vmap", "autocast")      # each starts a process


@pytest.mark.parametrize("context", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FIRST_CALLS])
def test_the_first_call_may_come_in_any_context(context):
    code = "import torch, warnings\nimport hadamem as hm\nwarnings.simplefilter('error', RuntimeWarning)\n"
    code += "memory, x = hm.SHM(5, 3, memory_size=4), torch.randn(2, 3, 5)\n" + FIRST_CALLS[context]
    code += "\nfrom hadamem.kernels import _backends\nassert not _backends._failed, _backends._failed\nmemory(x)[0].sum().backward()\n"
    code += "assert not _backends._failed, _backends._failed"
    code = "import sys\nassert 'hadamem.kernels.shm.fused_cpu' not in sys.modules\n" + code
    status, said = warm.run(code)
    assert status == 0, said[-2000:]


def test_a_failure_of_one_call_does_not_put_the_backend_out_of_use(monkeypatch):
    good, x = BACKENDS["cpu"], torch.randn(1, 3, 4)
    monkeypatch.setitem(BACKENDS, "cpu", lambda *args: good(*args) if args[2].shape[-1] != 4 or args[2].shape[1] == 2 else 1 / 0)
    monkeypatch.setattr(_backends, "_failed", {})
    with pytest.warns(RuntimeWarning, match="failed for this call"):
        h, _ = hm.kernels.shm(x, x, x, x, x)
    torch.testing.assert_close(h, shm_reference(x, x, x, x, x, None, None, None, "tanh")[0])
    assert not _backends._failed


def test_out_of_memory_and_inference_tensors_are_the_callers_to_see():
    x = torch.randn(1, 3, 4, requires_grad=True)
    with torch.inference_mode():
        M0 = torch.zeros(1, 4, 4)
    with pytest.raises(RuntimeError, match="nference tensor"):
        hm.kernels.shm(x, x, x, x, x, M0)[0].sum().backward()
    assert ("shm", "cpu", "cpu") not in _backends._failed


def failing(good, error):
    return lambda *args: good(*args) if args[2].shape[1] == 2 else (_ for _ in ()).throw(error)      # a probe has two steps


@pytest.mark.parametrize("error", [MemoryError("full"), torch.OutOfMemoryError("full"), ValueError("no"), TypeError("no")])
def test_errors_that_another_backend_would_have_too_are_raised(monkeypatch, recwarn, error):
    x = torch.randn(1, 3, 4)
    monkeypatch.setitem(BACKENDS, "cpu", failing(BACKENDS["cpu"], error))
    monkeypatch.setattr(_backends, "_failed", {})
    with pytest.raises(type(error), match=str(error)):
        hm.kernels.shm(x, x, x, x, x)
    assert not _backends._failed
    assert not recwarn


def test_words_in_an_error_do_not_decide(monkeypatch):
    """A kernel that needs more shared memory than the device has is one that another backend replaces."""
    x = torch.randn(1, 3, 4)
    monkeypatch.setitem(BACKENDS, "cpu", failing(BACKENDS["cpu"], RuntimeError("out of resource: shared memory, inference tensor")))
    monkeypatch.setattr(_backends, "_failed", {})
    with pytest.warns(RuntimeWarning, match="failed for this call"):
        hm.kernels.shm(x, x, x, x, x)
    with torch.inference_mode(), pytest.warns(RuntimeWarning, match="failed for this call"):
        hm.kernels.shm(*(y.clone() for y in (x, x, x, x, x)))


def test_no_warning_where_the_slower_backend_fails_as_well(monkeypatch, recwarn):
    x = torch.randn(1, 3, 4)
    for name in ("cpu", "scan"):
        monkeypatch.setitem(BACKENDS, name, failing(BACKENDS[name], RuntimeError(f"{name}: cannot allocate")))
    monkeypatch.setattr(_backends, "_failed", {})
    with pytest.raises(RuntimeError, match="scan: cannot allocate"):
        hm.kernels.shm(x, x, x, x, x)
    assert not recwarn


def test_too_little_memory_for_a_probe_is_not_the_backends_fault(monkeypatch):
    x = torch.randn(1, 3, 4)
    monkeypatch.setattr(_backends, "_working", set())
    monkeypatch.setattr(_backends, "_failed", {})
    with monkeypatch.context() as full:
        full.setitem(BACKENDS, "cpu", lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
        with pytest.raises(torch.OutOfMemoryError):
            hm.kernels.shm(x, x, x, x, x)
    assert not _backends._failed
    hm.kernels.shm(x, x, x, x, x)


def test_forward_mode_is_exact_or_refused():
    x, tangent = torch.randn(1, 3, 4, dtype=torch.float64), torch.randn(1, 3, 4, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        want = forward_ad.unpack_dual(hm.kernels.shm(x, x, dual, x, x, backend="reference")[0]).tangent
        got = forward_ad.unpack_dual(hm.kernels.shm(x, x, dual, x, x)[0]).tangent
        torch.testing.assert_close(got, want)
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            hm.kernels.shm(x, x, dual, x, x, backend="cpu")


@pytest.mark.parametrize("reset", [None, torch.tensor([[True], [False]])])
def test_forward_mode_passes_through_single_steps(reset):
    """Acting writes in place where nothing is differentiated, which would drop a tangent."""
    x, M0, tangent = torch.randn(2, 1, 3), torch.randn(2, 3, 3), torch.randn(2, 3, 3)
    calls = {"additive": lambda M, backend: hm.kernels.additive(x, x, x, M0=M, reset=reset, backend=backend)[:2],
             "delta": lambda M, backend: hm.kernels.delta(x, x, x, x[..., 0], M, reset, backend)}
    for call in calls.values():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(M0, tangent)
            want, got = ([forward_ad.unpack_dual(y).tangent for y in call(dual, backend)] for backend in ("reference", "scan"))
        torch.testing.assert_close(got, want)


def test_tracing_sees_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(1, 3, 4)
    graph = make_fx(lambda y: hm.kernels.shm(y, y, y, y, y, backend="cpu")[0])(x)
    y = torch.randn(1, 3, 4)
    torch.testing.assert_close(graph(y), shm_reference(y, y, y, y, y, None, None, None, "tanh")[0])


def test_scan_keeps_zeros_where_products_overflow():
    T = 300
    theta, vc = torch.full((1, T, 2), 20.0), torch.ones(1, T, 2)     # C = 2: the product overflows after 128 steps
    v, q = torch.ones(1, T, 2), torch.ones(1, T, 2)
    k = torch.zeros(1, T, 2)
    k[:, -3:] = 1.0
    for M0 in (None, torch.zeros(1, 2, 2)):
        want = shm_reference(theta, vc, v, k, q, M0, None, None, "tanh")
        got = shm_scan(theta, vc, v, k, q, M0, None, None, "tanh")
        torch.testing.assert_close(got, want)


def test_scan_with_a_clip_sees_small_memories_grow():
    T = 75
    theta, vc, zero = torch.full((1, T, 1), 20.0), torch.ones(1, T, 1), torch.zeros(1, T, 1)
    M0 = torch.full((1, 1, 1), 1e-20)
    want = shm_reference(theta, vc, zero, zero, vc, M0, None, 1.0, "tanh")
    torch.testing.assert_close(shm_scan(theta, vc, zero, zero, vc, M0, None, 1.0, "tanh"), want)


def test_hadamard_scan_gradients_where_products_overflow():
    C, U = torch.full((1, 300, 1, 1), 2.0), torch.zeros(1, 300, 1, 1)
    U[:, -2:] = 1.0
    U.requires_grad_()
    M = hadamard(C, U, backend="scan")
    assert isinstance(M, torch.Tensor)
    M[:, -1].sum().backward()
    assert U.grad is not None
    assert U.grad[0, -2:].flatten().tolist() == [2.0, 1.0]


def test_recycled_memory_is_never_shared():
    a = _recycle.empty(1 << 9, 1 << 9)
    view, address = a[3:5].numpy(), a.data_ptr()
    del a
    b = _recycle.empty(1 << 9, 1 << 9)
    assert b.data_ptr() != address      # the view still holds the first block
    del view
    assert _recycle.empty(1 << 9, 1 << 9).data_ptr() == address


@pytest.mark.parametrize("backend", ["reference", "scan"])
def test_a_limited_memory_under_every_transform(backend):
    """The limit of its gradients is a function of its own, which must not stand in the way."""
    torch.manual_seed(0)
    v, k = torch.randn(2, 2, 4, 3, dtype=torch.float64).unbind(0)

    def loss(v, k=k):
        return hm.kernels.shm(v, k, v, k, k, None, None, 1e8, "tanh", backend)[0].square().sum()

    x = v.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, x)
    want = torch.func.grad(loss)(v)
    got, = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(got, want)
    each = torch.func.vmap(torch.func.grad(lambda v, k: loss(v[None], k[None])))(v, k)
    torch.testing.assert_close(each, want)
