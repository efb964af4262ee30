"""Work done ahead of its use by threads, processes or a cluster, through a bounded queue."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from functools import partial
from typing import Any, Generic, TypeVar

from fsachain.errors import ConfigError, DataError, FsachainError
from fsachain.graph.shards import unpacked

Task = TypeVar("Task")
Result = TypeVar("Result")

_resident: list[Callable[[Any], Any]] = []  # in a process of ours: the function of its `Workers`


class Workers(Generic[Task, Result]):
    """Calls one function on many tasks, in order, a few of them ahead of their use.

    By default in threads of this process. With `num_processes` in processes of their own, which is worth it where the
    function, which is pickled then, holds the interpreter lock (graphs do, features do not); they are started anew, not
    forked, so a script that uses them needs `if __name__ == "__main__":`. With `executor`, such as that of a Dask client,
    wherever that works: the function travels with each task, and the executor is the caller's to close.
    """

    def __init__(
        self,
        function: Callable[[Task], Result],
        *,
        num_threads: int = 1,
        num_processes: int = 0,
        executor: Executor | None = None,
    ) -> None:
        if num_threads < 1 or num_processes < 0:
            raise ConfigError(
                f"num_threads = {num_threads}, num_processes = {num_processes}; expected at least 1 and 0"
            )
        self.count = num_processes or num_threads
        self._owned: Executor | None = None
        self._call: Callable[[Task], Result] = function
        if executor is not None:
            self._executor, self._call = executor, partial(_call_packed, pickle.dumps(function))
        elif num_processes:
            self._executor = self._owned = ProcessPoolExecutor(
                num_processes, multiprocessing.get_context("spawn"), _reside, (pickle.dumps(function),)
            )
            self._call = _call_resident
        else:
            self._executor = self._owned = ThreadPoolExecutor(num_threads, "fsachain-data")

    def ahead(self, groups: Iterable[Sequence[Task]], depth: int) -> Iterator[list[Result]]:
        """The results of each group of tasks, in order; up to `depth` groups beyond the one that is waited for are begun.

        A worker that died is a DataError; what the function raises goes on.
        """
        begun: deque[list[Future[Result]]] = deque()
        try:
            for group in groups:
                begun.append([self._executor.submit(self._call, task) for task in group])
                if len(begun) > depth:
                    yield [future.result() for future in begun.popleft()]
            while begun:
                yield [future.result() for future in begun.popleft()]
        except FsachainError:
            raise
        except Exception as error:
            of_dask = type(error).__module__.partition(".")[0] == "distributed"  # and not of the function
            if not of_dask and not isinstance(error, BrokenExecutor | CancelledError):
                raise
            raise DataError(
                f"a worker that prepares data was ended from outside ({type(error).__name__}); if memory is short, "
                "use fewer"
            ) from error
        finally:
            for future in (future for futures in begun for future in futures):
                future.cancel()

    def close(self) -> None:
        """End threads or processes of our own; tasks that have not begun are dropped."""
        if self._owned is not None:
            self._owned.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _call_packed(packed: bytes, task: Any) -> Any:
    return unpacked(packed)(task)


def _reside(packed: bytes) -> None:
    _resident[:] = [pickle.loads(packed)]


def _call_resident(task: Any) -> Any:
    return _resident[0](task)
