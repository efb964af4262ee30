"""The threads of the CPU backend: one pool of our own, since numba's layers break on fork or on two callers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from fsachain.errors import ConfigError

_lock = Lock()
_pool: ThreadPoolExecutor | None = None
_num_threads: int | None = None


def get_num_threads() -> int:
    """Threads that the CPU backend uses: what was set, else FSACHAIN_NUM_THREADS, else the cores of this process."""
    if _num_threads is not None:
        return _num_threads
    text = os.environ.get("FSACHAIN_NUM_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"FSACHAIN_NUM_THREADS = {text!r}; expected an integer >= 1")
    return int(text)


def set_num_threads(count: int) -> None:
    """Use `count` threads from now on; no result depends on the number, to the bit."""
    global _num_threads
    if count < 1:
        raise ConfigError(f"count = {count}; expected at least 1")
    with _lock:
        _num_threads = int(count)
    _forget_pool()


def run_all(jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs, several at a time where they release the GIL; the calling thread works too.

    An error of a job is raised once all threads have stopped.
    """
    if len(jobs) == 1:
        jobs[0]()
        return
    # Each thread takes the next job when it is free; next() of one iterator is safe under the GIL.
    waiting = iter(jobs)

    def work() -> None:
        for job in waiting:
            job()

    others = [_get_pool().submit(work) for _ in range(min(get_num_threads(), len(jobs)) - 1)]
    try:
        work()
    finally:
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error


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
    global _lock, _pool
    _lock, _pool = Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
