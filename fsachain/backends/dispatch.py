"""The public recursions: checks the arguments, recognises arrays of numpy, torch and cupy, and chooses the backend.

This is the only file that knows about devices and about array libraries; neither torch nor cupy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import cpu, cpu_arcs, cpu_paths, reference, reference_paths
from fsachain.backends.results import BestPath, ForwardBackward, pdfs_along, states_along
from fsachain.backends.threads import run_all
from fsachain.batch import TableBatch
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError
from fsachain.fsa import Ints

BackendName = Literal["auto", "reference", "cpu", "cuda"]
# The modules of each backend: sums over paths; occupancies of arcs and states; single paths.
_BACKENDS: dict[str, tuple[Any, Any, Any]] = {
    "reference": (reference, reference, reference_paths),
    "cpu": (cpu, cpu_arcs, cpu_paths),
}
_CUDA_REASON = "this version has no CUDA kernels"


class Prepared(NamedTuple):
    """Checked arguments.

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


def available_backends() -> dict[str, str]:
    """Every backend with "available", or with the reason why it is absent."""
    reason = _CUDA_REASON if find_spec("cupy") else f"{_CUDA_REASON}, and cupy is not installed"
    return {"reference": "available", "cpu": "available", "cuda": reason}


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
        scores: [N, T, P] float16, bfloat16, float32 or float64; numpy, torch or cupy, contiguous or not; natural-log
            network outputs, any real numbers or -inf.
        lengths: [N] integers on the host, 0 <= lengths[n] <= T; None takes all T frames. What lies beyond is ignored.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`, as a `DenominatorGraph`'s do.
        backend: "auto" follows the scores' device.
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
    ready = prepare(batch, scores, lengths, backend, memory_budget)
    check_leak(batch, leaky_hmm_coefficient)
    log_prob, ok = ready.backend.log_probs(batch, ready.scores, ready.lengths, leaky_hmm_coefficient)

    def occupancy() -> Any:
        out = np.zeros(ready.scores.shape, dtype=ready.scores.dtype)
        ones = np.ones(batch.size)
        ready.backend.add_occupancy(
            batch, ready.scores, ready.lengths, leaky_hmm_coefficient, ones, out, memory_budget
        )
        return ready.like(out)

    def of_one(function: Callable[..., Any], n: int) -> Any:
        frames = ready.scores[n, : ready.lengths[n]]
        return ready.like(function(batch.table(n), frames, leaky_hmm_coefficient))

    return ForwardBackward(
        ready.like(log_prob),
        ready.like(ok),
        occupancy,
        partial(of_one, ready.arcs.arc_occupancy),
        partial(of_one, ready.arcs.state_occupancy),
    )


def best_path(
    batch: TableBatch, scores: Any, lengths: Any = None, *, backend: BackendName = "auto"
) -> BestPath:
    """The best path of every sequence, equations (8) and (9); arguments and errors as for `forward_backward`."""
    ready = prepare(batch, scores, lengths, backend)
    score = np.empty(batch.size)
    arcs: list[Ints] = [np.empty(0, dtype=np.int32)] * batch.size

    def job(n: int) -> None:
        score[n], arcs[n] = ready.backend.best_path(batch.table(n), ready.scores[n, : ready.lengths[n]])

    run_all([partial(job, n) for n in range(batch.size)])
    found = np.isfinite(score)
    return BestPath(
        ready.like(score),
        [pdfs_along(batch.table(n), path) for n, path in enumerate(arcs)],
        [states_along(batch.table(n), path) if found[n] else path for n, path in enumerate(arcs)],
        arcs,
    )


def prepare(
    batch: TableBatch, scores: Any, lengths: Any, backend: str, memory_budget: float | None = None
) -> Prepared:
    """Check and convert the arguments that every recursion shares."""
    check_budget(memory_budget)
    if not isinstance(batch, TableBatch):
        raise ShapeError(
            f"batch is a {type(batch).__name__}; expected a TableBatch (see TableBatch.pack and TableBatch.share)"
        )
    array, like = _to_numpy(scores)
    if array.ndim != 3:
        raise ShapeError(f"scores has shape {list(array.shape)}; expected [N, T, P]")
    if len(array) != batch.size:
        raise ShapeError(
            f"scores has {len(array)} sequences (shape {list(array.shape)}); expected {batch.size} as in the batch"
        )
    for n, table in enumerate(batch.tables):
        if table.num_pdfs > array.shape[2]:
            raise ShapeError(
                f"scores has {array.shape[2]} pdfs (shape {list(array.shape)}); "
                f"expected at least {table.num_pdfs} for {batch.names[n]}"
            )
    frames = check_lengths(lengths, batch, array.shape[1])
    return Prepared(*_choose(backend), array, frames, like, memory_budget)


def check_lengths(lengths: Any, batch: TableBatch, num_frames: int) -> npt.NDArray[np.int64]:
    """int64 [N] on the host, each in [0, num_frames]; None stands for num_frames everywhere."""
    if lengths is None:
        return np.full(batch.size, num_frames, dtype=np.int64)
    array = np.asarray(lengths)
    if array.shape != (batch.size,) or array.dtype.kind not in "iu":
        raise ShapeError(
            f"lengths has shape {list(array.shape)} and dtype {array.dtype}; expected {batch.size} integers"
        )
    bad = np.flatnonzero((array < 0) | (array > num_frames))
    if bad.size:
        n = int(bad[0])
        raise ShapeError(
            f"lengths[{n}] = {array[n]} ({batch.names[n]}); expected 0 to {num_frames}, the frames of scores"
        )
    return array.astype(np.int64)


def check_budget(memory_budget: float | None) -> None:
    """Raise unless it is a number of bytes, infinity, or None."""
    if memory_budget is not None and not memory_budget >= 0.0:
        raise ConfigError(
            f"memory_budget = {memory_budget}; expected bytes, a number >= 0, or None for a share of the free memory"
        )


def check_leak(batch: TableBatch, coefficient: float) -> None:
    """Raise unless every table can leak with this coefficient."""
    if not 0.0 <= coefficient <= 1.0:
        raise ConfigError(f"leaky_hmm_coefficient = {coefficient}; expected a number in [0, 1]")
    for n, table in enumerate(batch.tables):
        if coefficient > 0.0 and table.leaky_log_prob is None:
            raise ConfigError(
                f"leaky_hmm_coefficient = {coefficient}, but the table of {batch.names[n]} has no leaky_log_prob; "
                "expected tables of a DenominatorGraph, or coefficient 0"
            )


def _choose(name: str) -> tuple[Any, Any, Any]:
    if name == "auto":
        return _BACKENDS["cpu"]
    if name not in _BACKENDS:
        states = available_backends()
        reason = states.get(name, "no backend has this name")
        usable = ", ".join(key for key, state in states.items() if state == "available")
        raise BackendUnavailable(f"backend {name!r}: {reason}; available: {usable}")
    return _BACKENDS[name]


def _to_numpy(scores: Any) -> tuple[npt.NDArray[Any], Callable[[npt.NDArray[Any]], Any]]:
    """The scores as float32 or float64 numpy, and a function that makes a result of the caller's kind from numpy."""
    module = type(scores).__module__.split(".")[0]
    if module == "torch":
        if scores.device.type != "cpu":
            raise BackendUnavailable(f"scores are on {scores.device}: {_CUDA_REASON}; expected a CPU tensor")
        tensor = scores.detach()
        if not tensor.is_floating_point():
            raise ShapeError(
                f"scores has dtype {scores.dtype}; expected float16, bfloat16, float32 or float64"
            )
        wide = tensor if tensor.element_size() == 8 else tensor.float()
        return _contiguous(wide.numpy()), _torch_from
    if module == "cupy":
        raise BackendUnavailable(f"scores are a cupy array: {_CUDA_REASON}; expected numpy or a CPU tensor")
    array = np.asarray(scores)
    if array.dtype.kind != "f" or array.itemsize > 8:
        raise ShapeError(f"scores has dtype {array.dtype}; expected float16, float32 or float64")
    return _contiguous(array), lambda result: result


def _torch_from(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)


def _contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """In the order and at addresses that compiled code reads; writable too, since read-only is another type for it."""
    dtype = np.float64 if array.itemsize == 8 else np.float32
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])
