"""One function for many utterances, by several processes, with a bar; what cannot be done is named and left out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from fsachain.cli.options import track
from fsachain.data.workers import Workers
from fsachain.errors import ConfigError, DataError, FsachainError, require

Item = TypeVar("Item")
Result = TypeVar("Result")
_CHUNKS_PER_JOB = 20
_MOST_IN_CHUNK = 200
_PIECE = 50  # items that travel together to a worker elsewhere
_PIECES_AHEAD = 200  # that are there at a time


class _Refused(str):
    """Why an item has no result."""


_work: list[Callable[[Any], Any]] = []


def collect(
    make: Callable[[Item], Result],
    items: Sequence[tuple[str, Item]],
    what: str,
    jobs: int = 1,
    executor: Executor | None = None,
) -> tuple[dict[str, Result], dict[str, str]]:
    """make(item) for each named item, in order; and for those that raise an `FsachainError` its message.

    Args:
        make: can be pickled, if `jobs` is above 1.
        items: pairs (name, item).
        what: what the bar says.
        jobs: processes; 1 works in this one.
        executor: used in place of processes of our own, such as that of a Dask client.

    Raises:
        DataError: a process was killed.
    """
    found: dict[str, Result] = {}
    excluded: dict[str, str] = {}
    names = [name for name, _ in items]
    for name, result in zip(
        track(names, what), _results(make, [item for _, item in items], jobs, executor), strict=True
    ):
        if isinstance(result, _Refused):
            excluded[name] = str(result)
        else:
            found[name] = result
    return found, excluded


def _results(
    make: Callable[[Any], Any], items: Sequence[Any], jobs: int, executor: Executor | None
) -> Iterator[Any]:
    if executor is not None:
        pieces = ([items[begin : begin + _PIECE]] for begin in range(0, len(items), _PIECE))
        for (results,) in Workers(_Attempts(make), executor=executor).ahead(pieces, _PIECES_AHEAD):
            yield from results
        return
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


class _Attempts:
    """`_attempt` for a list of items."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        return [_attempt(self._make, item) for item in items]


def _attempt(make: Callable[[Any], Any], item: Any) -> Any:
    try:
        return make(item)
    except FsachainError as error:
        return _Refused(error)


# An executor of machines elsewhere.

CONNECT_SECONDS = 30


@contextmanager
def executor_at(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask cluster whose scheduler has this address; None for None.

    The workers need fsachain, in the same version, and the files under the same paths.

    Args:
        address: such as `tcp://host:8786`.

    Raises:
        ConfigError: nobody answers there.
    """
    if address is None:
        yield None
        return
    distributed = require("distributed", extra="cluster")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
        raise ConfigError(f"scheduler {address!r}: cannot be reached ({error})") from error
    with client:
        executor: Executor = client.get_executor()
        yield executor
