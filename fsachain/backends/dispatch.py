"""The public recursions: checks the arguments and chooses the backend by name, or by where the scores live.

Backends are chosen here and nowhere else; neither torch nor cupy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends import Backend, LogProbs, Paths, arrays
from fsachain.backends.arrays import check_budget, check_dtype, check_leak, check_lengths, check_scores
from fsachain.backends.cpu.threads import run_all
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.grid_call import DeviceGrid, Grid, HostGrid
from fsachain.backends.reference import ctc as reference_ctc
from fsachain.backends.reference import grid as reference_grid
from fsachain.backends.reference import mbr as reference_mbr
from fsachain.backends.reference import paths as reference_paths
from fsachain.backends.reference import sums as reference
from fsachain.batch import Graphs, TableBatch, pack_graphs
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError, brief, integer
from fsachain.fsa import Ints
from fsachain.table import TransitionTable

BackendName = Literal["auto", "reference", "cpu", "cuda"]

_REFERENCE = Backend(
    *(reference, reference, reference_paths, reference_mbr, reference_ctc, reference_grid, reference_grid),
    penalties=reference,
)
_ON_HOST = ("cpu", "reference")


@cache
def _cpu() -> Backend | str:
    """The CPU backend, or why it is absent: numba takes some versions of numpy only, and a GPU needs neither."""
    try:
        from fsachain.backends.cpu import backend, ctc, grid, grid_rows, log, paths
    except ImportError as error:
        return f"numba cannot be imported ({str(error).splitlines()[0]})"
    return Backend(backend, log, paths, backend, ctc, grid, grid_rows, backend)


def has_kernels_of_host() -> bool:
    """Return whether the compiled kernels of the CPU can be used: False without numba."""
    return not isinstance(_cpu(), str)


def scale_rows(values: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """Write values [N, K] times factors [N] to `out`, by a compiled kernel of the CPU.

    Args:
        values: float32 or float64 [N, K], contiguous.
        factors: float64 [N].
        out: like `values`, which it may be.

    Raises:
        BackendUnavailable: see `has_kernels_of_host`.
    """
    kernels: Any = _backend("cpu").recursion
    kernels.scale_rows(values, factors, out)


def _backend(name: str) -> Backend:
    """The backend of this name; "cuda" has what no device computes from the host's."""
    cpu = _cpu()
    if name == "cuda":
        return (_REFERENCE if isinstance(cpu, str) else cpu)._replace(recursion=cuda.OnDevice())
    if name == "reference":
        return _REFERENCE
    if isinstance(cpu, str):
        raise BackendUnavailable(f"backend 'cpu': {cpu}; available: reference")
    return cpu


@dataclass(frozen=True)
class Call:
    """A backend bound to the checked scores [N, T, P] and lengths [N] of one call.

    Arrays come and go in the kind of the caller's scores, where these live; `scores` is what the backend reads. Where
    the backend works in another memory, the host waits for the copies.

    there, back: copy or view arrays of the caller's for the backend, and its results for the caller. place: makes an
    array for the caller of one of the host that nobody writes to. shares_memory: what the backend writes into
    `there(array)` is in `array`.
    """

    backend: Backend
    scores: Any
    lengths: npt.NDArray[np.int64]
    memory_budget: float | None
    there: Callable[[Any], Any]
    back: Callable[[Any], Any]
    place: Callable[[npt.NDArray[Any]], Any]
    shares_memory: bool

    def log_probs(self, batch: TableBatch, leaky: float) -> LogProbs:
        found = self.backend.recursion.log_probs(batch, self.scores, self.lengths, leaky)
        return LogProbs(self.back(found.log_prob), self.back(found.ok))

    def add_occupancy(self, batch: TableBatch, leaky: float, weights: Any, out: Any) -> LogProbs:
        """log Z [N] and ok [N]; weights (float64 [N], None: ones) times occupancy is added to out [N, T, P].

        No beta runs where `out` is empty.
        """
        if not len(out):
            return self.log_probs(batch, leaky)
        factors = self.there(self.place(np.ones(batch.size)) if weights is None else weights)
        own = self.there(out) if self.shares_memory else arrays.new_like(self.scores)
        inputs = batch, self.scores, self.lengths, leaky, factors, own, self.memory_budget
        found = self.backend.recursion.add_occupancy(*inputs)
        if not self.shares_memory:
            out += self.back(own)
        return LogProbs(self.back(found.log_prob), self.back(found.ok))

    def occupancy(
        self, batch: TableBatch, leaky: float, weights: Any, like: Any, lists: Any = None
    ) -> tuple[LogProbs, Any]:
        """As `add_occupancy`, to an array of its own; like: the caller's scores. A device writes all of it, zeros too.

        lists: where `is_on_device`, see `cuda.backend.add_occupancy`.
        """
        if not (self.shares_memory and isinstance(self.backend.recursion, cuda.OnDevice)):
            out = arrays.new_like(like)
            return self.add_occupancy(batch, leaky, weights, out), out
        out = arrays.new_like(like, "empty")
        inputs = batch, self.scores, self.lengths, leaky, weights, out, self.memory_budget
        return self.backend.recursion.add_occupancy(*inputs, True, lists), out

    def add_penalties(self, weights: Any, factors: tuple[float, float, float], out: Any) -> Any:
        """See `reference.sums.add_penalties`; of the host only, where the backend shares the caller's memory."""
        inputs = self.scores, self.lengths, self.there(weights), factors, self.there(out)
        return self.back(self.backend.penalties.add_penalties(*inputs))

    def best_paths(self, batch: TableBatch) -> Paths:
        found = self.backend.recursion.best_paths(batch, self.scores, self.lengths, self.memory_budget)
        return Paths(self.back(found.score), found.arcs)

    def part(self, sequences: npt.NDArray[np.int64]) -> Call:
        at = self.there(self.place(sequences))
        return replace(self, scores=self.scores[at], lengths=self.lengths[sequences])


def bind(
    batch: TableBatch,
    scores: Any,
    lengths: Any,
    backend: str = "auto",
    memory_budget: float | None = None,
    *,
    on_host: bool = False,
    argument: str = "scores",
) -> Call:
    """Check the arguments that every recursion shares, and choose the backend.

    on_host: for what no device computes: "auto" and "cuda" then stand for "cpu". argument: what the caller calls the scores.
    """
    check_budget(memory_budget)
    home = arrays.home_of(scores)
    name = home if backend == "auto" else backend
    if on_host:
        if backend == "cuda":
            cuda_device.check_any()
        name = "cpu" if name == "cuda" else name
    if name not in (*_ON_HOST, "cuda"):
        _refuse(name, "")
    array: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    check_dtype(arrays.dtype_name(array), argument)
    check_scores(batch, tuple(array.shape), argument)
    frames = check_lengths(lengths, batch, array.shape[1], argument)
    chosen, like = _backend(name), arrays.back_to(scores)
    if name != "cuda":
        there = arrays.as_numpy if home == "cpu" else lambda copied: arrays.as_numpy(arrays.on_host(copied))
        own = arrays.scores_as_numpy(array)
        return Call(chosen, own, frames, memory_budget, there, like, like, home == "cpu")
    if home == "cuda":
        cuda.find_device(array)
        own = array.detach() if arrays.kind_of(array) == "torch" else array
        place = partial(cuda.place, own)
        return Call(chosen, own, frames, memory_budget, _itself, _itself, place, True)
    copy, back = cuda.copies()
    own = copy(arrays.scores_as_numpy(array))
    return Call(chosen, own, frames, memory_budget, copy, lambda found: like(back(found)), like, False)


def _itself(array: Any) -> Any:
    return array


def available_backends() -> dict[str, str]:
    """Every backend with "available", or with the reason why it is absent."""
    return {
        "reference": "available",
        "cpu": cpu if isinstance(cpu := _cpu(), str) else "available",
        "cuda": cuda_device.reason_unavailable() or "available",
    }


def forward_backward(
    batch: Graphs,
    scores: Any,
    lengths: Any = None,
    *,
    leaky_hmm_coefficient: float = 0.0,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> ForwardBackward:
    """log Z and occupancies of every sequence: equations (1)-(7) of `fsachain.recursion`.

    Args:
        batch: the acceptors of N sequences: a `TableBatch`, or a list of N `Fsa`, `Numerator` or `TransitionTable`.
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
    batch = pack_graphs(batch, "batch")
    call = bind(batch, scores, lengths, backend, memory_budget)
    check_leak(batch, leaky_hmm_coefficient)
    log_prob, ok = call.log_probs(batch, leaky_hmm_coefficient)

    def occupancy() -> Any:
        return call.occupancy(batch, leaky_hmm_coefficient, None, scores)[1]

    def of_one(name: str, n: int) -> Any:  # by a function of `fsachain.backends.ArcRecursion`
        if not -batch.size <= n < batch.size:
            raise IndexError(f"n = {n}; expected a sequence of the batch, 0 to {batch.size - 1}")
        k = range(batch.size)[n]
        alone, frames = TableBatch.pack([batch.table(k)]), None if lengths is None else [int(lengths[k])]
        one = bind(alone, scores[k : k + 1], frames, backend, on_host=True)
        compute = getattr(one.backend.arcs, name)
        return one.back(compute(batch.table(k), one.scores[0, : one.lengths[0]], leaky_hmm_coefficient))

    return ForwardBackward(log_prob, ok, occupancy, of_one)


def best_path(batch: Graphs, scores: Any, lengths: Any = None, *, backend: BackendName = "auto") -> BestPath:
    """The best path of every sequence, equations (8) and (9); arguments and errors as for `forward_backward`.

    Paths come as numpy arrays: where the scores live on a device, the call waits for it.
    """
    batch = pack_graphs(batch, "batch")
    score, arcs = bind(batch, scores, lengths, backend).best_paths(batch)
    found = np.isfinite(arrays.as_numpy(arrays.on_host(score)))
    pdfs, states = _follow_each(batch, arcs)
    return BestPath(score, pdfs, [states[n] if found[n] else path for n, path in enumerate(arcs)], arcs)


def is_on_device(scores: Any, backend: str) -> bool:
    """Whether a recursion runs where these scores live, on a device."""
    return backend in ("auto", "cuda") and arrays.home_of(scores) == "cuda"


def ctc_backend(name: str, scores: Any) -> Any:
    """The module of the host that computes CTC, see `backends.cpu.ctc`; scores of a device raise."""
    if arrays.home_of(scores) != "cpu":
        raise _elsewhere(name, scores, "CTC")
    return _on_host(name, "CTC").ctc


def grid(like: Any, name: str) -> Grid:
    """The backend by this name, "auto" the one where `like` lives; a backend of another place raises."""
    if arrays.home_of(like) == "cpu":
        return _host_grid(name)
    if name in ("auto", "cuda"):
        return DeviceGrid(like)
    raise _elsewhere(name, like, "transducer")


@cache
def _host_grid(name: str) -> Grid:
    chosen = _on_host(name, "transducer grid")
    return HostGrid(chosen.grid, chosen.grid_rows)


def _elsewhere(name: str, scores: Any, kind: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {name!r} takes {kind} scores of the host, these are on {scores.device}; expected backend 'auto'"
    )


def _on_host(name: str, what: str) -> Backend:
    name = "cpu" if name == "auto" else name
    if name not in _ON_HOST:
        _refuse(name, f"{what} for scores of the host")
    return _backend(name)


def _refuse(name: str, what: str) -> NoReturn:
    states = available_backends()
    if name in states:
        raise BackendUnavailable(f"backend {name!r} has no {what}; available: {', '.join(_ON_HOST)}")
    usable = ", ".join(key for key, state in states.items() if state == "available")
    raise BackendUnavailable(f"backend {name!r}: no backend has this name; available: {usable}")


def n_best(
    batch: Graphs, scores: Any, n: int, lengths: Any = None, *, backend: BackendName = "auto"
) -> NBest:
    """The n best pdf sequences of every sequence, all different, by exact search: equation (15) of `fsachain.recursion`.

    The score of a pdf sequence is that of its best path, so that n = 1 is `best_path`. Among equal scores the sequence with
    the lower pdf at the first frame where two differ comes first; scores that differ by rounding alone may come in either
    order. There are fewer than n where the acceptor has fewer sequences of that many frames.

    For T frames, S states, A arcs, K active pdfs and B arcs that leave the states of one pdf prefix: time O(T A) and then
    O(n T (B + K)), memory O(T S + n T), in float64.

    Args:
        batch: the acceptors of N sequences: a `TableBatch`, or a list of N `Fsa`, `Numerator` or `TransitionTable`.
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
    batch = pack_graphs(batch, "batch")
    call = bind(batch, scores, lengths, backend, on_host=True)
    score = np.full((batch.size, count), -np.inf)
    arcs: list[Ints] = [np.empty((0, 0), dtype=np.int32)] * batch.size

    def job(k: int) -> None:
        found, arcs[k] = call.backend.paths.n_best(batch.table(k), call.scores[k, : call.lengths[k]], count)
        if np.isnan(found).any():
            score[k] = np.nan
        else:
            score[k, : len(found)] = found

    run_all([partial(job, k) for k in range(batch.size)])
    return NBest(call.back(score), *_follow_each(batch, arcs), arcs)


def sample_paths(
    batch: Graphs,
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
        batch: the acceptors of N sequences: a `TableBatch`, or a list of N `Fsa`, `Numerator` or `TransitionTable`.
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
    batch = pack_graphs(batch, "batch")
    call = bind(batch, scores, lengths, backend, on_host=True)
    check_leak(batch, leaky_hmm_coefficient)
    seeds = _seeds(seed, batch.size)
    drawn: list[tuple[Any, ...]] = [()] * batch.size

    def job(k: int) -> None:
        frames = call.scores[k, : call.lengths[k]]
        # One row for each path: its numbers do not depend on how many are drawn.
        uniforms = np.random.Generator(np.random.Philox(seeds[k])).random((size, 2 * len(frames) + 2))
        drawn[k] = call.backend.paths.sample_paths(batch.table(k), frames, leaky_hmm_coefficient, uniforms)

    run_all([partial(job, k) for k in range(batch.size)])
    arcs, states, jumps = (list(part) for part in zip(*drawn, strict=True))
    ok = np.array([len(paths) > 0 for paths in arcs])
    pdfs = [_arcs_by_number(batch.table(k))[2].take(paths) for k, paths in enumerate(arcs)]
    return SampledPaths(call.back(ok), pdfs, states, arcs, jumps)


def _at_least(least: int, name: str, value: Any) -> int:
    expected = f"an integer >= {least}"
    number = integer(name, value, expected=expected)
    if number < least:
        raise ConfigError(f"{name} = {value!r}; expected {expected}")
    return number


def _seeds(seed: int | Sequence[int], size: int) -> list[int]:
    given = np.asarray(seed, dtype=object)
    if given.ndim and given.shape != (size,):
        raise ShapeError(f"seed has shape {list(given.shape)}; expected one integer or {size} of them")
    return [_at_least(0, "seed", value) for value in np.broadcast_to(given, size)]


# What the recursions return.


@dataclass(frozen=True)
class ForwardBackward:
    """Result of `forward_backward`; arrays are of the scores' kind (numpy, torch) and live where the scores live.

    Attributes:
        log_prob: float64 [N], log Z of equation (4); -inf where no path of exactly T_n frames exists, NaN where a score
            of an active pdf is NaN or +inf.
        ok: bool [N], log_prob is finite.
    """

    log_prob: Any
    ok: Any
    _occupancy: Callable[[], Any] = field(repr=False)
    _of_one: Callable[[str, int], Any] = field(repr=False)

    __repr__ = brief

    @cached_property
    def occupancy(self) -> Any:
        """float32 or (for float64 scores) float64 [N, T, P], equation (7), computed on first access.

        Rows t < lengths[n] of an ok sequence sum to one; all other rows are exactly 0. Until then, as for the occupancies
        of arcs and states, the scores must not be written over.
        """
        return self._occupancy()

    def arc_occupancy(self, n: int) -> Any:
        """float64 [T_n, A]: gamma of equation (6) for sequence n, arcs numbered as in its Fsa; 0 if it is not ok."""
        return self._of_one("arc_occupancy", n)

    def state_occupancy(self, n: int) -> Any:
        """float64 [T_n + 1, S]: the share of sequence n's paths that are in each state at time t; 0 if it is not ok.

        Equation (14). Row t is the state before frame t, after a leak at t if there was one; the last row the one at the
        end. Rows sum to one.
        """
        return self._of_one("state_occupancy", n)


@dataclass(frozen=True)
class BestPath:
    """The path of the highest score through each sequence's acceptor, equations (8) and (9).

    Attributes:
        score: float64 [N]; -inf where there is no path, NaN for an illegal score.
        pdfs: N arrays int32 [T_n]: the pdf of each frame; empty where there is no path.
        states: N arrays int32 [T_n + 1]: the states passed, the first one initial; empty where there is no path.
        arcs: N arrays int32 [T_n]: arc numbers as in the caller's Fsa.
    """

    score: Any
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]

    __repr__ = brief


@dataclass(frozen=True)
class NBest:
    """The best pdf sequences through each sequence's acceptor, all different; M_n of them, at most the n asked for.

    Attributes:
        score: float64 [N, n]: of each pdf sequence its best path's, equations (8) and (9), not increasing; -inf from entry
            M_n on, NaN throughout for an illegal score.
        pdfs: N arrays int32 [M_n, T_n]: the pdf of each frame.
        states: N arrays int32 [M_n, T_n + 1]: the states of a best path of each pdf sequence.
        arcs: N arrays int32 [M_n, T_n]: its arcs, numbered as in the caller's Fsa.
    """

    score: Any
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]

    __repr__ = brief


@dataclass(frozen=True)
class SampledPaths:
    """Paths drawn from each sequence's posterior; M of them, or none (arrays of 0 rows) where no path exists.

    Attributes:
        ok: bool [N], there are paths.
        pdfs: N arrays int32 [M, T_n]: the pdf of each frame.
        states: N arrays int32 [M, T_n + 1]: the state before each frame and at the end, after the jump if there is one.
        arcs: N arrays int32 [M, T_n]: arc numbers as in the caller's Fsa.
        jumps: N arrays bool [M, T_n + 1]: a leak of equation (3) led to this state; it may lead to where the path was.
    """

    ok: Any
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]
    jumps: list[npt.NDArray[np.bool_]]

    __repr__ = brief


_by_number: WeakKeyDictionary[TransitionTable, Ints] = WeakKeyDictionary()


def _arcs_by_number(table: TransitionTable) -> Ints:
    """Sources, destinations and pdfs int32 [3, A] as in the caller's Fsa; made once and kept while the table lives."""
    made = _by_number.get(table)
    if made is None:
        view = table.by_src
        made = src, dst, pdf = np.zeros((3, table.num_arcs), dtype=np.int32)
        at = view.arc.astype(np.intp)
        src[at], dst[at], pdf[at] = view.src, view.dst, table.active_pdfs.take(view.column)
        _by_number[table] = made
    return made


def _follow_each(batch: TableBatch, arcs: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """The pdfs and the states along each sequence's paths."""
    pdfs, states = zip(*[_follow(batch.table(n), paths) for n, paths in enumerate(arcs)], strict=True)
    return list(pdfs), list(states)


def _follow(table: TransitionTable, arcs: Ints) -> tuple[Ints, Ints]:
    """The pdfs int32 [..., T] and states int32 [..., T + 1] of best paths with arcs [..., T].

    Without frames the state is the one that is best to be in.
    """
    src, dst, pdf = _arcs_by_number(table)
    at = arcs.astype(np.intp)  # which numpy would do at each `take`
    if at.shape[-1]:
        return pdf.take(at), np.concatenate([src.take(at[..., :1]), dst.take(at)], axis=-1)
    best = np.argmax(table.initial_log_prob + table.final_log_prob)
    return pdf.take(at), np.full((*at.shape[:-1], 1), best, dtype=np.int32)
