"""Utterances shared out over processes: what a decoder finds in each, in the order they came."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Found = TypeVar("Found")
Search = Callable[[Float32Array, str], Found]  # of the scores [T, P] of one utterance and its id
Progress = Callable[[int, int], None]


@contextmanager
def process_pool(num_workers: int) -> Iterator[Executor]:
    """Processes for a search.

    Forked where the system can: the workers touch neither torch nor numba, so the threads of these libraries,
    which do not survive a fork, are not missed, and workers start in milliseconds.
    """
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield pool


def search_all(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    make_search: Callable[[], Search[Found]],
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> dict[str, Found]:
    """What a search finds in every utterance; the result does not depend on the number of workers.

    Args:
        nnet_outputs: [T, P] network outputs by utterance id.
        make_search: makes the search where it will run. It crosses to other processes, so it is a function of a module
            or a partial of one.
        num_workers: processes; all processors by default, 1 searches in this process.
        executor: runs the work instead of processes of our own, for instance a cluster's.
        progress: called with (utterances done, utterances in all) as results come in.
    """
    scores = {name: np.asarray(output, dtype=np.float32) for name, output in nnet_outputs.items()}
    workers = min(num_workers or os.cpu_count() or 1, len(scores))
    if executor is None and workers <= 1:
        return _search_here(make_search, scores, progress)
    with process_pool(workers) if executor is None else _borrowed(executor) as pool:
        futures = [pool.submit(_search_here, make_search, chunk) for chunk in _chunks(scores, workers)]
        found: dict[str, Found] = {}
        for future in as_completed(futures):
            found.update(future.result())
            if progress is not None:
                progress(len(found), len(scores))
    return {name: found[name] for name in scores}


@contextmanager
def _borrowed(executor: Executor) -> Iterator[Executor]:
    yield executor


def _chunks(scores: Mapping[str, Float32Array], workers: int) -> list[dict[str, Float32Array]]:
    """Four chunks a worker, dealt out by falling length, so that no worker is left with the long ones."""
    count = min(len(scores), 4 * workers)
    longest_first = sorted(scores, key=lambda name: (-len(scores[name]), name))
    return [{name: scores[name] for name in longest_first[part::count]} for part in range(count)]


def _search_here(
    make_search: Callable[[], Search[Found]],
    scores: Mapping[str, Float32Array],
    progress: Progress | None = None,
) -> dict[str, Found]:
    search = make_search()
    found = {}
    for done, (name, output) in enumerate(scores.items(), start=1):
        found[name] = search(output, name)
        if progress is not None:
            progress(done, len(scores))
    return found
