"""CUDA graphs of calls that keep all they touch in place: captured once, then replayed; on other devices the call itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


def capture(call: Callable[[], None], device: torch.device, warm_up: int = 2) -> Callable[[], None]:
    """The call as a CUDA graph. It runs `warm_up` times on the way: the caller restores what that changed.

    If it cannot be captured, one warning says why, and the call itself comes back.
    """
    if device.type != "cuda":
        return call
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:   # whatever a user's env or memory does that a graph does not allow
        torch.cuda.synchronize(device)
        warnings.warn(f"hadamem: no CUDA graph, every operation is launched by itself (slower). Cause: {error}"[:500],
                      RuntimeWarning, stacklevel=2)
        return call
    return graph.replay
