"""The threads of the CPU backend: one pool of our own, since numba's layers break on fork or on two callers."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from threading import Lock

from fsachain.errors import ConfigError, integer

LEAST_WORK = 5e5  # nanoseconds; with less, threads take longer to meet than they save

_lock = Lock()
_pool: ThreadPoolExecutor | None = None
_num_threads: int | None = None
_is_forked = False


def get_num_threads() -> int:
    """Threads that the CPU backend uses: what was set, else FSACHAIN_NUM_THREADS, else the cores of this process.

    The system is asked once.
    """
    global _num_threads
    if _num_threads is None:
        _num_threads = _ask_num_threads()
    return _num_threads


def _ask_num_threads() -> int:
    text = os.environ.get("FSACHAIN_NUM_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"FSACHAIN_NUM_THREADS = {text!r}; expected an integer >= 1")
    return int(text)


def set_num_threads(count: int) -> None:
    """Use `count` threads from now on; no result depends on the number, to the bit."""
    global _num_threads
    count = integer("count", count)
    if count < 1:
        raise ConfigError(f"count = {count}; expected at least 1")
    with _lock:
        _num_threads = count
    _forget_pool()


def threads_for(work: float) -> int:
    """How many threads are worth their while for so many nanoseconds of one thread, by a rough estimate."""
    return get_num_threads() if work >= LEAST_WORK else 1


def run_all(jobs: Sequence[Callable[[], None]], work: float = math.inf) -> None:
    """Run the jobs, several at a time where they release the GIL; the calling thread works too.

    work: see `threads_for`. An error of a job is raised once all threads have stopped.
    """
    if len(jobs) <= 1 or threads_for(work) == 1:
        for job in jobs:
            job()
        return
    count = min(get_num_threads(), len(jobs))
    # Each thread takes the next job when it is free; next() of one iterator is safe under the GIL.
    waiting = iter(jobs)

    def take() -> None:
        for job in waiting:
            job()

    _end_idle_threads()
    others = [_get_pool().submit(take) for _ in range(count - 1)]
    try:
        take()
    finally:
        # A thread that has not begun by now finds nothing to do; where the machine is busy, that it ends may take long.
        errors = [other.exception() for other in others if not other.cancel()]
    for error in errors:
        if error is not None:
            raise error


def _end_idle_threads() -> None:
    """End the threads of torch's OpenMP that wait for this thread: they spin for milliseconds on cores that ours need.

    That takes some 40 microseconds, and torch's next parallel operation as long to start others. A forked child has none of
    the threads that OpenMP believes it has, and would wait for them.
    """
    if "torch" in sys.modules and not _is_forked:
        _pause_openmp()(1)  # omp_pause_soft


@cache
def _pause_openmp() -> Callable[[int], int]:
    """OpenMP's function of this kind; one that does nothing where the runtime is older or elsewhere."""
    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).omp_pause_resource_all
    return lambda kind: 0


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(get_num_threads(), thread_name_prefix="fsachain")
        return _pool


def _forget_pool() -> None:
    global _pool
    with _lock:
        _pool = None


def _after_fork() -> None:
    # The parent's threads do not exist in a forked child, and its lock may be held by one of them.
    global _lock, _pool, _is_forked
    _lock, _pool, _is_forked = Lock(), None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
