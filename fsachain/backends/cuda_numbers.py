"""Log weights written as the numbers of `numbers.cuh`, and which kind of number a table and a length allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_layout import SIZES, Layout
from fsachain.backends.cuda_place import LOG, PLAIN, WIDE
from fsachain.table import TransitionTable

Floats = npt.NDArray[np.float64]

# As in `numbers.cuh`: the exponent of a wide zero, and what plain alphas are scaled by.
ZERO_EXPONENT = -(1 << 29)
PLAIN_SHIFT = 60
# The powers of two that a wide number may gain or lose over a sequence; `most_reach` of `frames.cu` has the same.
WIDE_BUDGET = 1 << 27
# Wide weights whose logs to base 2 are smaller than this need no exponents: what is lost is below 2^-46 of a sum.
COMPACT_REACH = 40.0
_LOG_2 = math.log(2.0)
_ENTRY_TYPES = (
    [("index", "<i4"), ("weight", "<f4")],
    [("index", "<i4"), ("weight", "<f4"), ("exponent", "<i4"), ("unused", "<i4")],
    [("index", "<i4"), ("unused", "<i4"), ("weight", "<f8")],
)


class Range(NamedTuple):
    """Logs to base 2 of what one table multiplies by: all finite; 0 where there is nothing.

    Attributes:
        least_weight, largest_weight: of arcs.
        least_final, largest_final: of finals.
        initial: the largest |log initial|.
        least_init: of leaks; -inf if some state is not reached by them.
    """

    least_weight: float
    largest_weight: float
    least_final: float
    largest_final: float
    initial: float
    least_init: float


def range_of(table: TransitionTable) -> Range:
    """What `table` multiplies by."""
    weights = _extremes(table.by_dst.log_prob)
    finals, initial = _extremes(table.final_log_prob), _extremes(table.initial_log_prob)
    least_init = float(table.leak_target.min(initial=0.0)) / _LOG_2
    return Range(*weights, *finals, max(-initial[0], initial[1]), least_init)


class Reach(NamedTuple):
    """What follows from the weights of a table and the leak.

    Attributes:
        powers: by how many powers of two one frame, the start or the end may change a number beside the scores.
        is_compact: the weights of arcs need no exponents in wide numbers.
    """

    powers: int
    is_compact: bool


def reach_of(table: TransitionTable, leaky: float) -> Reach:
    """The reach of `table`."""
    r = range_of(table)
    logs = [r.least_weight, r.largest_weight, r.least_final, r.largest_final, r.initial]
    powers = max(abs(x) for x in logs) + math.log2(table.num_arcs + table.num_states + 1) + 2.0
    if leaky > 0.0:
        init = table.leak_target
        powers += -math.log2(leaky) - float(init[init > -np.inf].min(initial=0.0)) / _LOG_2
    is_compact = max(-r.least_weight, r.largest_weight) < COMPACT_REACH
    return Reach(int(min(math.ceil(powers), 2**40)), is_compact)


def least_plain_total(table: TransitionTable, leaky: float) -> float | None:
    """What the sum of scaled plain alphas must not fall below, by (13); None if plain numbers do not suit the table.

    In a frame, products of plain numbers below 2^-126 are lost, and a frame begins with alphas that sum to 2^60 n, n at
    least the result. All arcs together lose A W 2^-126 of probabilities and A W 2^-186 / n of alphas, W the largest weight;
    the beta of any state is at least c min init of the largest, so that losses below 2^-24 of n c min init do not count.
    """
    r = range_of(table)
    if leaky <= 0.0 or r.least_init == -math.inf:
        return None
    lost = math.log2(table.num_arcs + 1) + max(r.largest_weight, 0.0) + 24.0
    room = math.log2(leaky) + r.least_init
    least = max(lost - 126.0 - room, (lost - 186.0 - room) / 2.0)
    in_range = r.least_weight > -100.0 and max(-r.least_final, r.largest_final) < 20.0
    if not in_range or least > -20.0 or lost - r.least_init > 74.0:
        return None
    return 2.0 ** (PLAIN_SHIFT + least)


def kinds_of(float64: bool, least_total: float | None) -> tuple[int, ...]:
    """The kinds of number that sequences may need, in this order."""
    if float64:
        return (LOG,)
    return (WIDE, LOG) if least_total is None else (PLAIN, WIDE, LOG)


def first_kinds(kinds: tuple[int, ...], lengths: npt.NDArray[np.int64], reach: npt.NDArray[Any]) -> Any:
    """int32 [N]: in which kind each sequence is tried first; logs where the table alone may exceed wide numbers."""
    return np.where(reach * (lengths + 2) < WIDE_BUDGET, kinds[0], LOG).astype(np.int32)


def entries(kind: int, index: npt.NDArray[np.int32], log: Floats) -> npt.NDArray[Any]:
    """The struct Entry of `numbers.cuh` for each index and log weight."""
    result = np.zeros(len(index), dtype=_ENTRY_TYPES[kind])
    result["index"] = index
    if kind == WIDE:
        result["weight"], result["exponent"] = _wide(log)
    else:
        result["weight"] = np.exp(log) if kind == PLAIN else log
    return result


def arcs(kind: int, exponents: bool, index: npt.NDArray[np.int32], log: Floats) -> npt.NDArray[Any]:
    """The struct Arc: an entry, of wide numbers without its exponent where weights allow that."""
    return entries(PLAIN if kind == WIDE and not exponents else kind, index, log)


def values(kind: int, log: Floats, plain_shift: Any = 0) -> npt.NDArray[Any]:
    """The type Value: exp(log), plain ones times 2^plain_shift."""
    if kind == LOG:
        return log
    if kind == PLAIN:
        return np.exp(log + plain_shift * _LOG_2).astype(np.float32)
    result = np.zeros(len(log), dtype=[("m", "<f4"), ("e", "<i4")])
    result["m"], result["e"] = _wide(log)
    return result


def vectors(kind: int, layouts: Sequence[Layout]) -> npt.NDArray[Any]:
    """`Layout.vectors` of several tables as numbers: initial ones scaled as plain alphas are."""
    log = np.concatenate([layout.vectors for layout in layouts])
    if kind != PLAIN:
        return values(kind, log)
    shift = []
    for layout in layouts:
        states = int(layout.sizes[SIZES["states"]])
        shift += [PLAIN_SHIFT] * states + [0] * states + [PLAIN_SHIFT, 0]
    return values(kind, log, np.array(shift))


def encode(kind: int, exponents: bool, layouts: Sequence[Layout]) -> list[list[npt.NDArray[np.uint8]]]:
    """Of each table the bytes of its arcs and entries, forward and backward, and vectors."""
    made, counts = [], []
    for name in ("forward", "backward"):
        directions = [getattr(layout, name) for layout in layouts]
        index, log, entry_index, entry_log = (
            [getattr(direction, array) for direction in directions]
            for array in ("arc_index", "arc_log", "entry_index", "entry_log")
        )
        made.append(arcs(kind, exponents, np.concatenate(index), np.concatenate(log)))
        made.append(entries(kind, np.concatenate(entry_index), np.concatenate(entry_log)))
        counts += [[len(array) for array in log], [len(array) for array in entry_log]]
    made.append(vectors(kind, layouts))
    counts.append([len(layout.vectors) for layout in layouts])
    pieces = []
    for array, numbers in zip(made, counts, strict=True):
        flat = array.view(np.uint8)
        ends = (np.cumsum(numbers) * array.itemsize).tolist()
        pieces.append([flat[b:e].copy() for b, e in zip([0, *ends], ends, strict=False)])
    return [list(of_table) for of_table in zip(*pieces, strict=True)]


def _wide(log: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    finite = log > -np.inf
    usable = np.where(finite, log, 0.0)
    # Beyond the limits are only tables that run in logs.
    whole = np.clip(np.floor(usable / _LOG_2), -(2.0**28), 2.0**28)
    with np.errstate(over="ignore"):
        rest = np.exp(np.clip(usable - whole * _LOG_2, 0.0, _LOG_2)).astype(np.float32)
    mantissa, up = np.where(rest >= 2.0, rest / 2.0, rest), rest >= 2.0
    exponent = np.where(finite, whole + up, ZERO_EXPONENT).astype(np.int32)
    return np.where(finite, mantissa, 0.0).astype(np.float32), exponent


def _extremes(log: Floats) -> tuple[float, float]:
    finite = log[log > -np.inf]
    if not finite.size:
        return 0.0, 0.0
    return float(finite.min()) / _LOG_2, float(finite.max()) / _LOG_2
