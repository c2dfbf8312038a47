"""Probes test the backend, independent of the caller's settings: TF32, autocast, default dtype and device."""

import importlib
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hadamem import kernels
from hadamem.kernels import _backends

OPS = ("shm", "hadamard", "diagonal", "selective", "gru", "lstm", "gates", "readout")
CASES = [(op, backend) for op in OPS for backend in kernels.backends(op) if backend in ("cpu", "triton")]
DEVICE = {"cpu": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}


class LowPrecision(TorchDispatchMode):
    """Rounds what enters float32 matrix products to ten bits, as TF32 does on a GPU."""

    PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.PRODUCTS:
            args = [self.rounded(x) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.ndim > 1 else x for x in args]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x):
        return ((x.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def probe(op, backend):
    importlib.import_module(f"hadamem.kernels.{op}")._probe(backend, DEVICE[backend])


@pytest.mark.parametrize(("op", "backend"), CASES)
def test_low_precision_products_do_not_fail_a_probe(op, backend):
    x = torch.full((2, 2), 1 / 3)
    with LowPrecision():
        assert not torch.equal(x @ x, torch.full((2, 2), 2 / 9)), "the products are not rounded"
        probe(op, backend)


@pytest.fixture
def _settings():
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    yield
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize(("op", "backend"), CASES)
@pytest.mark.usefixtures("_settings")
def test_settings_of_the_caller_do_not_reach_a_probe(op, backend, monkeypatch):
    seen = []
    module = importlib.import_module(f"hadamem.kernels.{op}")
    plain = module.BACKENDS[backend]
    monkeypatch.setitem(module.BACKENDS, backend, lambda *args: seen.extend(x for x in args if torch.is_tensor(x)) or plain(*args))
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        assert _backends._failure(lambda: probe(op, backend)) is None
    assert seen
    assert {x.device.type for x in seen} == {DEVICE[backend]}
    assert {x.dtype for x in seen} <= {torch.float32, torch.complex64}


@pytest.mark.parametrize(("op", "backend"), CASES)
def test_wrong_numbers_fail_a_probe(op, backend, monkeypatch):
    module = importlib.import_module(f"hadamem.kernels.{op}")
    plain = module.BACKENDS[backend]

    def wrong(*args):
        found = plain(*args)
        return found * 1.01 if torch.is_tensor(found) else tuple(x if x is None else x * 1.01 for x in found)

    monkeypatch.setitem(module.BACKENDS, backend, wrong)
    with pytest.raises(AssertionError, match="not close"):
        probe(op, backend)


@pytest.mark.gpu
@pytest.mark.usefixtures("_settings")
def test_tf32_does_not_switch_off_the_readout(monkeypatch):
    monkeypatch.setattr(_backends, "_failed", {})
    monkeypatch.setattr(_backends, "_working", set())
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    h, weight = torch.randn(4, 1, 24, device="cuda"), torch.randn(8, 24, device="cuda")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kernels.readout(h, h, None, weight, None, 1e-5)
    assert ("readout", "triton", "cuda") in _backends._working
    want = kernels.readout(h.cpu().double(), h.cpu().double(), None, weight.cpu().double(), None, 1e-5, backend="reference")
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5)
