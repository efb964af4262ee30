"""The backends that run on the host, called with arrays of any kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import arrays as kinds
from fsachain.backends.arrays import as_numpy, scores_as_numpy
from fsachain.backends.cpu.threads import run_all
from fsachain.batch import TableBatch
from fsachain.fsa import Ints

Lanes = npt.NDArray[np.int64]


class Prepared(NamedTuple):
    """Checked arguments of a call that runs on the host.

    backend, arcs, paths: the modules that compute sums over paths, occupancies of arcs and states, and single paths.
    scores: float32 or float64 numpy [N, T, P]; lengths: int64 [N]; like: makes results of the caller's kind.
    memory_budget: bytes for alphas, None for the backend's own choice.
    """

    backend: Any
    arcs: Any
    paths: Any
    scores: npt.NDArray[np.floating]
    lengths: npt.NDArray[np.int64]
    like: Callable[[npt.NDArray[Any]], Any]
    memory_budget: float | None


class HostCall:
    """The recursions of a host backend on one batch of scores; see `dispatch.Recursions`.

    Arrays that come and go are numpy's or torch's, on the host.

    Attributes:
        ready: the arguments.
    """

    def __init__(self, ready: Prepared) -> None:
        self.ready = ready

    @property
    def lengths(self) -> Lanes:
        """See `dispatch.Recursions`."""
        return self.ready.lengths

    def log_probs(self, batch: TableBatch, leaky: float) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        ready = self.ready
        return self._like(ready.backend.log_probs(batch, ready.scores, ready.lengths, leaky))

    def add_occupancy(self, batch: TableBatch, leaky: float, weights: Any, out: Any) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        ready = self.ready
        factors = np.ones(batch.size) if weights is None else as_numpy(weights)
        inputs = batch, ready.scores, ready.lengths, leaky, factors, as_numpy(out)
        return self._like(ready.backend.add_occupancy(*inputs, ready.memory_budget))

    def add_penalties(self, weights: Any, factors: tuple[float, float, float], out: Any) -> Any:
        """See `dispatch.Recursions`."""
        ready = self.ready
        terms = ready.backend.add_penalties(
            ready.scores, ready.lengths, as_numpy(weights), factors, as_numpy(out)
        )
        return ready.like(np.array(terms))

    def best_paths(self, batch: TableBatch) -> tuple[Any, list[Ints]]:
        """See `dispatch.Recursions`."""
        ready, score = self.ready, np.empty(batch.size)
        arcs: list[Ints] = [np.empty(0, dtype=np.int32)] * batch.size

        def job(n: int) -> None:
            score[n], arcs[n] = ready.backend.best_path(batch.table(n), ready.scores[n, : ready.lengths[n]])

        run_all([partial(job, n) for n in range(batch.size)])
        return ready.like(score), arcs

    def zeros(self) -> Any:
        """See `dispatch.Recursions`."""
        return self.ready.like(np.zeros(self.ready.scores.shape, dtype=self.ready.scores.dtype))

    def constant(self, values: npt.NDArray[Any]) -> Any:
        """See `dispatch.Recursions`."""
        return self.ready.like(values)

    def clear(self, buffer: Any, ok: Any) -> None:
        """See `dispatch.Recursions`."""
        as_numpy(buffer)[~as_numpy(ok)] = 0.0

    def part(self, lanes: Lanes) -> HostCall:
        """See `dispatch.Recursions`."""
        ready = self.ready
        return HostCall(ready._replace(scores=ready.scores[lanes], lengths=ready.lengths[lanes]))

    def with_scores(self, scores: Any) -> HostCall:
        """See `dispatch.Recursions`."""
        return HostCall(self.ready._replace(scores=scores_as_numpy(scores)))

    def _like(self, results: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[Any, Any]:
        values, ok = results
        return self.ready.like(values), self.ready.like(ok)


class Ferry:
    """Recursions that run in another memory than where the caller's arrays live; see `dispatch.Sums`.

    Every array is copied there and back, for which the host waits.
    """

    def __init__(self, inner: Any, there: Callable[[Any], Any], back: Callable[[Any], Any]) -> None:
        """`inner`: the recursions; `there` and `back` copy arrays of the caller's kind to its memory, and results back."""
        self._inner, self._there, self._back = inner, there, back

    def log_probs(self, batch: TableBatch, leaky: float) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        values, ok = self._inner.log_probs(batch, leaky)
        return self._back(values), self._back(ok)

    def add_occupancy(self, batch: TableBatch, leaky: float, weights: Any, out: Any) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        own, factors = self._inner.zeros(), None if weights is None else self._there(weights)
        values, ok = self._inner.add_occupancy(batch, leaky, factors, own)
        out += self._back(own)
        return self._back(values), self._back(ok)

    def best_paths(self, batch: TableBatch) -> tuple[Any, list[Ints]]:
        """See `dispatch.Recursions`."""
        score, arcs = self._inner.best_paths(batch)
        return self._back(score), arcs

    def zeros(self) -> Any:
        """See `dispatch.Recursions`."""
        return self._back(self._inner.zeros())


def from_device(ready: Prepared, scores: Any) -> Ferry | HostCall:
    """The recursions of a host backend for a caller whose scores these are, wherever they live."""
    if kinds.home_of(scores) == "cpu":
        return HostCall(ready)
    inner = HostCall(ready._replace(like=lambda result: result))
    return Ferry(inner, kinds.on_host, kinds.back_to(scores))
