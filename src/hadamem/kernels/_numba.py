"""What the numba kernels share: compiling with a cache that may be absent, and spreading work over threads.

Threads are Python's, around kernels that release the GIL; handing out the pieces costs 5 us. numba's own threads (`prange`) abort the
process when two Python threads call at once (layer workqueue) or after a fork (layer omp with GNU OpenMP).

`jit(counts_references=False)` uses a private option of numba, `_nrt=False`: no code that counts references to arrays is generated. numba
generates it also in kernels that neither create nor keep an array; in those of `shm` it ran for every two rows and took up to a tenth of
the time. A kernel compiled so must not create arrays. Tried with numba 0.68.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numba
import torch
from torch import Tensor

SERIAL_BELOW = 2 ** 18   # cell updates, some 60 us of work: less is not worth waking a thread
COARSE_BELOW = 2 ** 22   # one piece per thread: starting a piece needs the GIL, for which the threads would queue
PIECES_PER_THREAD = 4    # of larger work: a thread that is held up leaves its later pieces to the others


def jit(counts_references: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit with a cache on disk, or without one where no folder can be written."""
    if not counts_references:
        options["_nrt"] = False

    def compile_lazily(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
        except RuntimeError:   # "cannot cache function ...: no locator available"
            return numba.njit(nogil=True, error_model="numpy", **options)(function)

    return compile_lazily


def array(x: Tensor) -> Any:
    """The tensor's values as a contiguous numpy array, without a copy if they already are."""
    return x.detach().contiguous().numpy()


def arrays(*tensors: Tensor | None, like: Tensor) -> list[Any]:
    """`array` of each; None becomes an empty array [0, 0, 0] of the dtype of `like`."""
    return [array(like.new_empty(0, 0, 0) if x is None else x) for x in tensors]


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    """A forked child has none of its parent's threads; it starts its own when it needs them."""
    global _pool, _pool_lock, _calls
    _pool, _pool_lock, _calls = None, threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="hadamem")
        return _pool


def split(units: int, cells: int) -> tuple[int, int]:
    """(threads, pieces) for `units` independent units of work that update `cells` cells in all."""
    threads = min(torch.get_num_threads(), units) if cells >= SERIAL_BELOW else 1
    return threads, threads if cells < COARSE_BELOW else min(units, PIECES_PER_THREAD * threads)


def parallel(work: Callable[[int, int, int], None], units: int, cells: int) -> None:
    """Call work(piece, first, last) on ranges that cover 0..units, on up to torch.get_num_threads() threads.

    `cells` measures the whole work, divided as `split` says. Units must be independent: any thread may run any of them, in any order.
    """
    threads, pieces = split(units, cells)
    if threads == 1:
        for piece in range(pieces):
            work(piece, units * piece // pieces, units * (piece + 1) // pieces)
        return
    counter = itertools.count()

    def take() -> None:
        while (piece := next(counter)) < pieces:
            work(piece, units * piece // pieces, units * (piece + 1) // pieces)

    helpers: list[Future[None]] = []
    try:
        for _ in range(threads - 1):
            helpers.append(_get_pool().submit(take))
    except RuntimeError:   # the interpreter is shutting down: no new threads
        pass
    try:
        take()
    finally:
        started = [helper for helper in helpers if not helper.cancel()]   # the others have nothing left to do
        for helper in started:
            helper.exception()   # waits
    for helper in started:
        helper.result()


_calls: queue.SimpleQueue[Callable[[], None]] | None = None
_helpers = 0


def _serve(calls: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()


def share(work: Callable[[], None], threads: int, done: Callable[[], bool]) -> None:
    """Call work() on up to `threads` threads. They divide the work among themselves without the GIL; `done` returns whether all is done.

    A helper that starts when nothing is left is not waited for; its call must notice that. `done` may wait a while, but must return.
    Quicker to start and to end than `parallel`: after its call, a helper holds the GIL for a microsecond, an executor's for thirty.
    """
    global _calls, _helpers
    if threads == 1:
        work()
        return
    errors: list[Exception] = []

    def call() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    with _pool_lock:
        if _calls is None:
            _calls, _helpers = queue.SimpleQueue(), 0
        try:
            while _helpers < threads - 1:
                threading.Thread(target=_serve, args=(_calls,), name="hadamem", daemon=True).start()
                _helpers += 1
        except RuntimeError:   # the interpreter is shutting down: no new threads
            pass
    for _ in range(min(_helpers, threads - 1)):
        _calls.put(call)
    work()
    while not done():
        if errors:
            raise errors[0]
