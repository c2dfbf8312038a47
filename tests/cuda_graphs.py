"""The one way in which tests capture CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from hadamem.cuda_graphs import record


def captured(run: Callable[[], Any], warm_up: int = 3) -> tuple[Any, Any, torch.cuda.CUDAGraph]:
    """What `run` returned in its last warm-up, the tensors that a replay fills, and the graph, not yet replayed.

    Whatever `run` changes in place was changed by each warm-up. A capture that fails raises and spoils no other test.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            want = tree_map(_copy, run())
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with record(graph):
        got = run()
    return want, got, graph


def _copy(x: Any) -> Any:
    """Without its autograd graph, whose leaves would bring the stream they were made on into the capture."""
    return x.detach().clone() if isinstance(x, torch.Tensor) else x
