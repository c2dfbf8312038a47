"""CUDA graphs of calls that keep everything they touch in place: captured once, then replayed. On other devices: the call itself.

PyTorch does not recover from a capture that fails (seen with torch 2.11): ending the capture raises before PyTorch's own clean-up runs.
Then the allocator returns no memory to the device any more, the current stream stays the capturing one, and the default generator still
believes that it is captured, so every later draw raises. A user's env or memory may well do something that a graph cannot hold, and
training must then continue without one. So `record` undoes all this in `_tidy`, with two private functions of torch; nothing else in the
package has to deal with it.

A capture also fails if an older graph is destroyed meanwhile, which Python's garbage collector does at any time to the graphs of a trainer
that is no longer used. Since torch 2.9 nothing prevents that (pytorch/pytorch#161037), so `record` pauses the collector.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

_planned = False
_broken: list[torch.cuda.CUDAGraph] = []    # kept for ever: torch's allocator of pinned memory still asks them which streams they capture


def planned() -> bool:
    """Whether the present call is one that `capture` makes a graph of, in which launches cost little. True while it warms up, too."""
    return _planned


def capture(call: Callable[[], None], device: torch.device, warm_up: int = 2) -> Callable[[], None]:
    """The call as a CUDA graph. It first runs `warm_up` times: the caller restores what that changes.

    A call that cannot be captured is returned as it is, with one warning that says why.
    """
    if device.type != "cuda":
        return call
    with torch.cuda.device(device), _plan():
        return _capture(call, device, warm_up)


@contextlib.contextmanager
def _plan() -> Iterator[None]:
    global _planned
    before, _planned = _planned, True
    try:
        yield
    finally:
        _planned = before


def _capture(call: Callable[[], None], device: torch.device, warm_up: int) -> Callable[[], None]:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with record(graph):
            call()
    except Exception as error:   # whatever a user's env or memory does that a graph does not allow
        warnings.warn(f"hadamem: no CUDA graph, operations are launched one by one (slower). Cause: {error}"[:500],
                      RuntimeWarning, stacklevel=3)
        return call
    return graph.replay


class Branch:
    """What runs in `with branch:` runs beside the caller's work on a GPU, until `branch.join()`. In a CUDA graph, it is a branch of it.

    Its backward pass runs on the same stream; autograd inserts the waits. Keep what the branch reads or makes until after all of that:
    PyTorch's allocator does not know that another stream uses it. On other devices everything runs in order.
    """

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.inner: Any = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            self.inner = torch.cuda.stream(self.stream)
            self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*error)

    def join(self) -> None:
        """Wait for the branch, as far as it was started."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    """The stream that captures on a device. (torch has a single one, on the device of its first capture.)"""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now, and none inside."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def record(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """`torch.cuda.graph`, except that a failed capture is cleaned up and raises its first error, not the one from ending the capture."""
    pool, stream, side = torch.cuda.graph_pool_handle(), torch.cuda.current_stream(), _stream(torch.cuda.current_device())
    cause: Exception | None = None
    try:
        with _no_collection(), torch.cuda.graph(graph, pool=pool, stream=side):
            try:
                yield
            except Exception as error:
                cause = error
                raise
        stream.wait_stream(side)    # a capture starts by writing the generator's seed there: no replay may come before that
        return
    except Exception as error:
        cause = cause or error
    try:
        _tidy(graph, pool, stream, side)
    except Exception as error:
        warnings.warn(f"hadamem: no more CUDA graphs in this process; a failed one could not be cleaned up: {error}",
                      RuntimeWarning, stacklevel=3)
    try:
        raise cause
    finally:
        del cause    # else the error holds this frame, the frame the error, and both the tensors of the call


def _tidy(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream, side: torch.cuda.Stream) -> None:
    """Undo what torch leaves behind when ending a capture raises."""
    with contextlib.suppress(RuntimeError, AttributeError):   # the capture ended well and only the call raised; or an older torch
        # While a capture seems to be under way, the allocator returns no memory to the device, not even when it runs out.
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    graph.reset()
    _broken.append(graph)
    torch.cuda.set_stream(stream)
    # The default generator still believes that it is captured: each draw, and each replay of an older graph that draws, would raise.
    # The end of any good capture corrects that, and no capture changes the generator's seed and offset.
    some = torch.zeros(1, device=stream.device)
    with _no_collection(), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
        some.zero_()
    stream.wait_stream(side)
