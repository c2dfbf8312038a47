"""Captured calls, and those that cannot be captured: they are returned as they are, and the failed capture has no effect on later work."""

import gc

import pytest
import torch

import hadamem as hm
from hadamem.cuda_graphs import capture, planned

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")


def waits(x):
    x.add_(1).sum().item()


def draws_and_waits(x):
    x.uniform_().sum().item()


def raises(x):
    x.uniform_()
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not in here")


def fail(call):
    """What the one warning says."""
    with pytest.warns(RuntimeWarning, match="no CUDA graph") as caught:
        assert capture(call, DEVICE) is call
    (warning,) = (w for w in caught if w.category is RuntimeWarning)
    return str(warning.message)


@pytest.mark.parametrize(("body", "cause"), [(waits, "captur"), (draws_and_waits, "captur"), (raises, "not in here")])
def test_a_failed_capture_leaves_no_trace(body, cause):
    x, stream = torch.zeros(3, device=DEVICE), torch.cuda.current_stream()

    def call():
        body(x)

    torch.manual_seed(5)
    call()
    call()                                               # as often as it is warmed up
    want = torch.rand(3, device=DEVICE)
    torch.manual_seed(5)
    message = fail(call)
    assert cause in message
    assert "previous error" not in message               # the first error, not what the end of the capture says of it
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.rand(3, device=DEVICE), want)
    call()


def test_graphs_captured_before_and_after_a_failure_draw_what_plain_calls_draw():
    a, b = torch.zeros(5, device=DEVICE), torch.zeros(5, device=DEVICE)
    older = capture(a.uniform_, DEVICE)
    fail(lambda: draws_and_waits(b))
    newer = capture(b.uniform_, DEVICE)
    assert older != a.uniform_                           # they are graphs
    assert newer != b.uniform_
    found = []
    for draw in ((older, newer), (a.uniform_, b.uniform_)):
        torch.manual_seed(7)
        numbers = []
        for _ in range(3):
            for one, x in zip(draw, (a, b), strict=True):
                one()
                numbers.append(x.clone())
        numbers.append(torch.rand(5, device=DEVICE))
        found.append(torch.stack(numbers))
    assert torch.equal(*found)
    assert len(found[0].unique(dim=0)) == 7


def test_memory_goes_back_to_the_device_after_a_failure():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    fail(lambda: torch.ones(1 << 26, device=DEVICE).sum().item())      # 256 MiB
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 1 << 26


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_layer_takes_its_kernel_in_a_graph(kind):
    """Whole sequences, which cuDNN runs elsewhere: the same outputs and gradients."""
    memory = hm.make_memory(kind, 12, memory_size=160).to(DEVICE)
    x, out, grad = (torch.randn(5, 33, size, device=DEVICE) for size in (12, 160, 12))
    x.requires_grad_()
    seen = []

    def call():
        seen.append(memory._has_kernel(x, whole=True))
        y, _ = memory(x)
        out.copy_(y.detach())
        grad.copy_(torch.autograd.grad(y.cos().sum(), x)[0])

    assert not planned()
    call()
    want = out.clone(), grad.clone()
    replay = capture(call, DEVICE)
    assert not planned()
    assert seen == [False, True, True, True]
    out.zero_(), grad.zero_()
    replay()
    torch.testing.assert_close((out, grad), want, rtol=1e-3, atol=1e-3)      # cuDNN may use TF32


def test_garbage_with_a_graph_in_it_does_not_end_a_capture():
    x = torch.zeros(3, device=DEVICE)
    older = [capture(x.uniform_, DEVICE)]
    older.append(older)                                  # a cycle: only the garbage collector finds it
    thresholds = gc.get_threshold()

    def call():
        nonlocal older
        x.add_(1)
        if torch.cuda.is_current_stream_capturing():
            older = None
            gc.set_threshold(1)                          # else a collection would have to happen by chance
            [[] for _ in range(100)]

    try:
        graph = capture(call, DEVICE)
    finally:
        gc.set_threshold(*thresholds)
    assert graph is not call
    before = x.clone()
    graph()
    assert torch.equal(x, before + 1)
    assert gc.isenabled()
