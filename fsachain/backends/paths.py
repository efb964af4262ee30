"""Public functions that return several paths of each sequence: the n best pdf sequences, samples of the posterior."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fsachain.backends.arguments import check_leak
from fsachain.backends.dispatch import BackendName, prepare
from fsachain.backends.results import NBest, SampledPaths, pdfs_along, states_along
from fsachain.backends.threads import run_all
from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, ShapeError
from fsachain.fsa import Ints


def n_best(
    batch: TableBatch, scores: Any, n: int, lengths: Any = None, *, backend: BackendName = "auto"
) -> NBest:
    """The n best pdf sequences of every sequence, all different, by exact search: equation (15) of `fsachain.recursion`.

    The score of a pdf sequence is that of its best path, so that n = 1 is `best_path`. Among equal scores the sequence with
    the lower pdf at the first frame where two differ comes first; scores that differ by rounding alone may come in either
    order. There are fewer than n where the acceptor has fewer sequences of that many frames.

    For T frames, S states, A arcs, K active pdfs and B arcs that leave the states of one pdf prefix: time O(T A) and then
    O(n T (B + K)), memory O(T S + n T), in float64.

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] as for `forward_backward`.
        n: how many, at least 1.
        lengths: [N] integers on the host; None takes all T frames.
        backend: "auto" or "cpu"; "reference" for the oracle. Scores of a device are copied to the host.

    Returns:
        `NBest`; a sequence with no path of exactly lengths[n] frames has none.

    Raises:
        ShapeError, BackendUnavailable: as `forward_backward`.
        ConfigError: n is not an integer of at least 1.
    """
    count = _at_least(1, "n", n)
    ready = prepare(batch, scores, lengths, backend)
    score = np.full((batch.size, count), -np.inf)
    arcs: list[Ints] = [np.empty((0, 0), dtype=np.int32)] * batch.size

    def job(k: int) -> None:
        found, arcs[k] = ready.paths.n_best(batch.table(k), ready.scores[k, : ready.lengths[k]], count)
        if np.isnan(found).any():
            score[k] = np.nan
        else:
            score[k, : len(found)] = found

    run_all([partial(job, k) for k in range(batch.size)])
    tables = [batch.table(k) for k in range(batch.size)]
    return NBest(
        ready.like(score),
        [pdfs_along(table, paths) for table, paths in zip(tables, arcs, strict=True)],
        [states_along(table, paths) for table, paths in zip(tables, arcs, strict=True)],
        arcs,
    )


def sample_paths(
    batch: TableBatch,
    scores: Any,
    num_samples: int,
    lengths: Any = None,
    *,
    seed: int | Sequence[int],
    leaky_hmm_coefficient: float = 0.0,
    backend: BackendName = "auto",
) -> SampledPaths:
    """Paths drawn from the posterior of every sequence, equations (16)-(18) of `fsachain.recursion`.

    A path is drawn with probability exp(its score) / Z, leaks included: the share of samples that take an arc in a frame
    tends to `ForwardBackward.arc_occupancy`, that of samples in a state to `state_occupancy`.

    A sequence's paths depend on its own table, scores, length and seed: not on the others of the batch nor on the number
    of threads; and the first M of more samples are the M samples. One seed for all means that all sequences use the same
    random numbers: each one's samples are independent of one another, but equal sequences get equal paths. For independent
    sequences give N seeds.

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] as for `forward_backward`.
        num_samples: M, at least 1.
        lengths: [N] integers on the host; None takes all T frames.
        seed: an integer >= 0, or N of them.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`.
        backend: "auto" or "cpu"; "reference" for the oracle. Scores of a device are copied to the host.

    Returns:
        `SampledPaths`; a sequence with no path of exactly lengths[n] frames has none and ok False.

    Raises:
        ShapeError, BackendUnavailable: as `forward_backward`; ShapeError also for a wrong number of seeds.
        ConfigError: num_samples, a seed or leaky_hmm_coefficient out of range, or tables without init.
    """
    size = _at_least(1, "num_samples", num_samples)
    ready = prepare(batch, scores, lengths, backend)
    check_leak(batch, leaky_hmm_coefficient)
    seeds = _seeds(seed, batch.size)
    drawn: list[tuple[Any, ...]] = [()] * batch.size

    def job(k: int) -> None:
        frames = ready.scores[k, : ready.lengths[k]]
        # One row for each path: its numbers do not depend on how many are drawn.
        uniforms = np.random.Generator(np.random.Philox(seeds[k])).random((size, 2 * len(frames) + 2))
        drawn[k] = ready.paths.sample_paths(batch.table(k), frames, leaky_hmm_coefficient, uniforms)

    run_all([partial(job, k) for k in range(batch.size)])
    arcs, states, jumps = (list(part) for part in zip(*drawn, strict=True))
    ok = np.array([len(paths) > 0 for paths in arcs])
    pdfs = [pdfs_along(batch.table(k), paths) for k, paths in enumerate(arcs)]
    return SampledPaths(ready.like(ok), pdfs, states, arcs, jumps)


def _at_least(least: int, name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name} = {value!r}; expected an integer >= {least}")
    return number


def _seeds(seed: int | Sequence[int], size: int) -> list[int]:
    given = np.asarray(seed, dtype=object)
    if given.ndim and given.shape != (size,):
        raise ShapeError(f"seed has shape {list(given.shape)}; expected one integer or {size} of them")
    return [_at_least(0, "seed", value) for value in np.broadcast_to(given, size)]
