"""The public recursions: checks the arguments and chooses the backend by name, or by where the scores live.

Backends are chosen here and nowhere else. What the host's compute is called through `host_call`, kernels of a device through
`cuda_call`; arrays of numpy, torch and cupy are told apart in `kinds`, and neither torch nor cupy is imported here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fsachain.backends import arrays as kinds
from fsachain.backends.arrays import check_budget, check_dtype, check_leak, check_lengths, check_scores
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.cpu import ctc as cpu_ctc
from fsachain.backends.cpu import grid as grid_cpu
from fsachain.backends.cpu import grid_rows as grid_cpu_rows
from fsachain.backends.cpu import paths as cpu_paths
from fsachain.backends.cpu import rows as cpu_arcs
from fsachain.backends.cpu.threads import run_all
from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda import cupy_device as cuda_cupy
from fsachain.backends.grid_call import DeviceGrid, Grid, HostGrid
from fsachain.backends.host_call import HostCall, Prepared, from_device
from fsachain.backends.reference import ctc as reference_ctc
from fsachain.backends.reference import grid as reference_grid
from fsachain.backends.reference import paths as reference_paths
from fsachain.backends.reference import sums as reference
from fsachain.backends.results import BestPath, ForwardBackward, NBest, SampledPaths, pdfs_along, states_along
from fsachain.batch import TableBatch
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError
from fsachain.fsa import Ints

BackendName = Literal["auto", "reference", "cpu", "cuda"]
Lanes = npt.NDArray[np.int64]


class _Host(NamedTuple):
    """The modules of a backend of the host: sums over paths; occupancies of arcs and states; paths; CTC; grids and rows."""

    sums: Any
    arcs: Any
    paths: Any
    ctc: Any
    grid: Any
    grid_rows: Any


_ON_HOST = {
    "cpu": _Host(cpu, cpu_arcs, cpu_paths, cpu_ctc, grid_cpu, grid_cpu_rows),
    "reference": _Host(reference, reference, reference_paths, reference_ctc, reference_grid, reference_grid),
}


class Sums(Protocol):
    """The recursions of a backend on the scores of one call; `sums` makes it.

    Arrays are of the kind of the caller's scores and live where these live; `out` is float32 or, for float64 scores,
    float64.
    """

    def log_probs(self, batch: TableBatch, leaky: float) -> tuple[Any, Any]:
        """log Z, float64 [N], and ok, bool [N]; see `reference.log_probs`."""

    def add_occupancy(self, batch: TableBatch, leaky: float, weights: Any, out: Any) -> tuple[Any, Any]:
        """Add weights (float64 [N], None: ones) times occupancy to out [N, T, P]; log Z and ok."""

    def best_paths(self, batch: TableBatch) -> tuple[Any, list[Ints]]:
        """Scores of the best paths, float64 [N], and their arcs on the host."""

    def zeros(self) -> Any:
        """Zeros [N, T, P] for `out`."""


class Recursions(Sums, Protocol):
    """The same where the scores live, and what else losses need there; `recursions` makes it."""

    @property
    def lengths(self) -> Lanes:
        """[N], on the host."""

    def add_penalties(self, weights: Any, factors: tuple[float, float, float], out: Any) -> Any:
        """The two penalties, float64 [2], and their derivatives, unless `out` is empty; see `reference.add_penalties`."""

    def constant(self, values: npt.NDArray[Any]) -> Any:
        """Values of the host as an array of the caller's kind, not to be written to."""

    def clear(self, buffer: Any, ok: Any) -> None:
        """Put rows of a torch buffer [N, T, P] to 0 where ok [N] is False."""

    def part(self, lanes: Lanes) -> Recursions:
        """The same for some of the sequences."""

    def with_scores(self, scores: Any) -> Recursions:
        """The same for other scores of the same shape."""


def available_backends() -> dict[str, str]:
    """Every backend with "available", or with the reason why it is absent."""
    return {
        "reference": "available",
        "cpu": "available",
        "cuda": cuda_cupy.reason_unavailable() or "available",
    }


def forward_backward(
    batch: TableBatch,
    scores: Any,
    lengths: Any = None,
    *,
    leaky_hmm_coefficient: float = 0.0,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> ForwardBackward:
    """log Z and occupancies of every sequence: equations (1)-(7) of `fsachain.recursion`.

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] float16, bfloat16, float32 or float64; numpy, torch or cupy, on the host or on a CUDA device,
            contiguous or not; natural-log network outputs, any real numbers or -inf.
        lengths: [N] integers on the host, 0 <= lengths[n] <= T; None takes all T frames. What lies beyond is ignored.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`, as a `DenominatorGraph`'s do.
        backend: "auto" follows the scores' device, and then nothing waits for it; with another one the scores travel there
            and the results back. `arc_occupancy` and `state_occupancy` are always computed on the host.
        memory_budget: bytes, beside scores and occupancy, for the alphas of all frames while `occupancy` is made; None: a
            share of the free memory, infinity: no limit. Where they need more, about 2 sqrt(T) of T are kept and the others
            computed again: no bit of the result changes, and it takes at most 1.6 times as long. `log_prob` alone keeps
            none, `arc_occupancy` and `state_occupancy` all of one sequence, the "reference" backend everything, whatever
            this is (docs/numerics.md, Memory).

    Returns:
        `ForwardBackward`; a sequence with no path of exactly lengths[n] frames has log_prob -inf and ok False.

    Raises:
        ShapeError: an argument of the wrong shape or dtype.
        ConfigError: leaky_hmm_coefficient out of range, tables without init, or a memory_budget below 0.
        BackendUnavailable: the backend cannot run here.
    """
    call = sums(batch, scores, lengths, backend, memory_budget)
    check_leak(batch, leaky_hmm_coefficient)
    log_prob, ok = call.log_probs(batch, leaky_hmm_coefficient)

    def occupancy() -> Any:
        out = call.zeros()
        call.add_occupancy(batch, leaky_hmm_coefficient, None, out)
        return out

    def of_one(name: str, n: int) -> Any:
        k = range(batch.size)[n]
        alone, frames = TableBatch.pack([batch.table(k)]), None if lengths is None else [int(lengths[k])]
        ready = prepare(alone, scores[k : k + 1], frames, backend)
        only = ready.scores[0, : ready.lengths[0]]
        return ready.like(getattr(ready.arcs, name)(batch.table(k), only, leaky_hmm_coefficient))

    return ForwardBackward(
        log_prob, ok, occupancy, partial(of_one, "arc_occupancy"), partial(of_one, "state_occupancy")
    )


def best_path(
    batch: TableBatch, scores: Any, lengths: Any = None, *, backend: BackendName = "auto"
) -> BestPath:
    """The best path of every sequence, equations (8) and (9); arguments and errors as for `forward_backward`.

    Paths come as numpy arrays: where the scores live on a device, the call waits for it.
    """
    score, arcs = sums(batch, scores, lengths, backend).best_paths(batch)
    found = np.isfinite(kinds.as_numpy(kinds.on_host(score)))
    return BestPath(
        score,
        [pdfs_along(batch.table(n), path) for n, path in enumerate(arcs)],
        [states_along(batch.table(n), path) if found[n] else path for n, path in enumerate(arcs)],
        arcs,
    )


def sums(
    batch: TableBatch, scores: Any, lengths: Any, backend: str, memory_budget: float | None = None
) -> Sums:
    """Check the arguments that every recursion shares, and choose the backend.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: see `forward_backward`.
    """
    home = kinds.home_of(scores)
    name = home if backend == "auto" else backend
    if name == home:
        return recursions(batch, scores, lengths, memory_budget)
    if name != "cuda":
        return from_device(prepare(batch, scores, lengths, name, memory_budget), scores)
    return cuda_call.from_host(*_checked(batch, scores, lengths, memory_budget), memory_budget)


def recursions(
    batch: TableBatch, scores: Any, lengths: Any, memory_budget: float | None = None
) -> Recursions:
    """The same for the backend of the place where the scores live."""
    if kinds.home_of(scores) == "cpu":
        return HostCall(prepare(batch, scores, lengths, "cpu", memory_budget))
    return cuda_call.CudaCall(*_checked(batch, scores, lengths, memory_budget), memory_budget)


def _checked(batch: TableBatch, scores: Any, lengths: Any, memory_budget: float | None) -> tuple[Any, Lanes]:
    """The scores as an array of their library, and the lengths."""
    check_budget(memory_budget)
    array = scores if hasattr(scores, "dtype") else np.asarray(scores)
    check_dtype(kinds.dtype_name(array))
    check_scores(batch, tuple(array.shape))
    return array, check_lengths(lengths, batch, array.shape[1])


def prepare(
    batch: TableBatch, scores: Any, lengths: Any, backend: str, memory_budget: float | None = None
) -> Prepared:
    """The checked arguments of a recursion that runs on the host, wherever the scores live.

    What only the host computes is computed there also for scores of a device, and for backend "cuda": they are copied, for
    which the host waits.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: see `forward_backward`; "cuda" where there is no such device.
    """
    check_budget(memory_budget)
    array = kinds.scores_as_numpy(scores)
    check_scores(batch, array.shape)
    frames = check_lengths(lengths, batch, array.shape[1])
    if backend == "cuda":
        cuda_cupy.check_any()
    modules = _ON_HOST["cpu"] if backend == "cuda" else _on_host(backend)
    return Prepared(
        modules.sums, modules.arcs, modules.paths, array, frames, kinds.back_to(scores), memory_budget
    )


def computes_ctc_on_device(scores: Any, backend: str) -> bool:
    """Whether CTC runs where these scores live, on a device; else it is for `ctc_backend`."""
    return kinds.home_of(scores) == "cuda" and backend in ("auto", "cuda")


def ctc_backend(name: str, scores: Any) -> Any:
    """The module of the host with `log_probs` and `gradient` for scores of the host: see `cpu_ctc`.

    Raises:
        BackendUnavailable: there is none, or the scores are on a device.
    """
    if kinds.home_of(scores) != "cpu":
        raise BackendUnavailable(
            f"backend {name!r} takes CTC scores of the host, these are on {scores.device}; expected backend 'auto'"
        )
    return _on_host(name, "CTC for scores of the host").ctc


def grid(like: Any, name: str) -> Grid:
    """What computes transducer grids of the torch tensor `like` and others beside it: "auto" is where it lives.

    Raises:
        BackendUnavailable: there is none, or it is elsewhere.
    """
    if kinds.home_of(like) == "cpu":
        modules = _on_host(name, "transducer grid for scores of the host")
        return HostGrid(modules.grid, modules.grid_rows, like)
    if name in ("auto", "cuda"):
        return DeviceGrid(like)
    raise BackendUnavailable(
        f"backend {name!r} takes transducer scores of the host, these are on {like.device}; expected backend 'auto'"
    )


def _on_host(name: str, what: str = "recursion of the host") -> _Host:
    if name == "auto":
        return _ON_HOST["cpu"]
    if name in _ON_HOST:
        return _ON_HOST[name]
    states = available_backends()
    if name in states:
        raise BackendUnavailable(f"backend {name!r} has no {what}; available: {', '.join(_ON_HOST)}")
    usable = ", ".join(key for key, state in states.items() if state == "available")
    raise BackendUnavailable(f"backend {name!r}: no backend has this name; available: {usable}")


# Public functions that return several paths of each sequence: the n best pdf sequences, samples of the
# posterior.


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
