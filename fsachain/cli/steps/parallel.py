"""One function for many utterances, by several processes, with a bar; what cannot be done is named and left out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from fsachain.cli.progress import track
from fsachain.errors import DataError, FsachainError

Item = TypeVar("Item")
Result = TypeVar("Result")
_CHUNKS_PER_JOB = 20
_MOST_IN_CHUNK = 200


class _Refused(str):
    """Why an item has no result."""


_work: list[Callable[[Any], Any]] = []


def collect(
    make: Callable[[Item], Result], items: Sequence[tuple[str, Item]], what: str, jobs: int = 1
) -> tuple[dict[str, Result], dict[str, str]]:
    """make(item) for each named item, in order; and for those that raise an `FsachainError` its message.

    Args:
        make: can be pickled, if `jobs` is above 1.
        items: pairs (name, item).
        what: what the bar says.
        jobs: processes; 1 works in this one.

    Raises:
        DataError: a process was killed.
    """
    found: dict[str, Result] = {}
    excluded: dict[str, str] = {}
    names = [name for name, _ in items]
    for name, result in zip(
        track(names, what), _results(make, [item for _, item in items], jobs), strict=True
    ):
        if isinstance(result, _Refused):
            excluded[name] = str(result)
        else:
            found[name] = result
    return found, excluded


def _results(make: Callable[[Any], Any], items: Sequence[Any], jobs: int) -> Iterator[Any]:
    jobs = min(jobs, len(items))
    if jobs <= 1:
        for item in items:
            yield _attempt(make, item)
        return
    size = min(_MOST_IN_CHUNK, -(-len(items) // (_CHUNKS_PER_JOB * jobs)))
    with ProcessPoolExecutor(jobs, initializer=_start, initargs=(pickle.dumps(make),)) as pool:
        try:
            yield from pool.map(_do, items, chunksize=size)
        except BrokenProcessPool as error:
            raise DataError(
                f"one of {jobs} processes was ended from outside; if memory is short, use fewer"
            ) from error


def _start(packed: bytes) -> None:
    """In a worker: unpack the function once for all items."""
    _work[:] = [pickle.loads(packed)]


def _do(item: Any) -> Any:
    return _attempt(_work[0], item)


def _attempt(make: Callable[[Any], Any], item: Any) -> Any:
    try:
        return make(item)
    except FsachainError as error:
        return _Refused(error)
