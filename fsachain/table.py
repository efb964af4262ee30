"""The form of an acceptor that the recursions read: arcs sorted three ways, pdfs remapped to the active ones.

Alpha gathers arcs by destination, beta by source, occupancy by pdf: each sum then has one fixed order, and no two
workers write to one place. The arcs of each view are one CSR matrix; `offsets[k]:offsets[k + 1]` are the arcs of row k.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.brief import brief
from fsachain.errors import DataError, GraphError, ShapeError
from fsachain.files import read_npz, replacing
from fsachain.fsa import Floats, Fsa, Ints


@dataclass(frozen=True, eq=False)
class ArcView:
    """Arcs grouped by one of their ends or by pdf; within a row in the caller's order.

    Attributes:
        offsets: int64 [rows + 1], row k holds arcs offsets[k] to offsets[k + 1] - 1; the last entry is the arc count.
        src, dst: int32 [arcs], states.
        column: int32 [arcs], index into `TransitionTable.active_pdfs`, not a pdf.
        log_prob: float64 [arcs].
        arc: int32 [arcs], the arc's number in the caller's Fsa.
    """

    offsets: npt.NDArray[np.int64]
    src: Ints
    dst: Ints
    column: Ints
    log_prob: Floats
    arc: Ints

    __repr__ = brief


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """An acceptor compiled for the recursions; make it with `compile_table`.

    Attributes:
        num_states, num_arcs: S and A of the caller's Fsa; its state and arc numbers are kept.
        num_pdfs: the least width of the network output that the table fits.
        active_pdfs: int32 [K], ascending, the pdfs that some arc carries.
        by_dst, by_src, by_column: the same arcs (weight > -inf) as three `ArcView`s with S, S and K rows.
        initial_log_prob: float64 [S], alpha(0, i) of equation (1).
        final_log_prob: float64 [S], equation (4).
        leaky_log_prob: float64 [S], log init of equation (3), or None where no leak is possible.
    """

    num_states: int
    num_arcs: int
    num_pdfs: int
    active_pdfs: Ints
    by_dst: ArcView
    by_src: ArcView
    by_column: ArcView
    initial_log_prob: Floats
    final_log_prob: Floats
    leaky_log_prob: Floats | None = None

    def __repr__(self) -> str:
        return f"TransitionTable({self.num_states} states, {self.num_arcs} arcs, {len(self.active_pdfs)} active pdfs)"

    @property
    def leak_target(self) -> Floats:
        """Log init [S], where a leak lands; -inf everywhere for a table without one, which is never run with a leak."""
        return np.full(self.num_states, -np.inf) if self.leaky_log_prob is None else self.leaky_log_prob

    def with_arc_log_probs(self, log_prob: Floats) -> TransitionTable:
        """The same arcs with other weights, `log_prob` [A] in the caller's arc order; -inf, NaN and +inf as in `Fsa`.

        An arc that was compiled away because its weight was -inf stays away.
        """
        log_prob = np.asarray(log_prob, dtype=np.float64)
        if log_prob.shape != (self.num_arcs,):
            raise ShapeError(
                f"arc log-probabilities have shape {list(log_prob.shape)}; expected [{self.num_arcs}]"
            )
        bad = np.flatnonzero(np.isnan(log_prob) | (log_prob == np.inf))
        if bad.size:
            raise GraphError(
                f"arc log-probability {bad[0]} = {log_prob[bad[0]]}; expected a finite number or -inf"
            )
        return replace(
            self,
            by_dst=replace(self.by_dst, log_prob=log_prob[self.by_dst.arc]),
            by_src=replace(self.by_src, log_prob=log_prob[self.by_src.arc]),
            by_column=replace(self.by_column, log_prob=log_prob[self.by_column.arc]),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write an npz file that `load` reads back to an equal table."""
        arrays: dict[str, Any] = {"format": np.array("fsachain.TransitionTable/1")}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, ArcView):
                arrays |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(ArcView)}
            elif value is not None:
                arrays[field.name] = value
        with replacing(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> TransitionTable:
        """Read what `save` wrote.

        Raises:
            DataError: the file is not such a table.
        """
        try:
            arrays = read_npz(path)
            if str(arrays["format"]) != "fsachain.TransitionTable/1":
                raise ValueError(f"format {arrays['format']}")
            values: dict[str, Any] = {}
            for name in (field.name for field in fields(cls)):
                if name.startswith("by_"):
                    parts = {part.name: arrays[f"{name}.{part.name}"] for part in fields(ArcView)}
                    values[name] = ArcView(**parts)
                elif name in arrays or name != "leaky_log_prob":
                    values[name] = int(arrays[name]) if name.startswith("num_") else arrays[name]
            table = cls(**values)
            check_indices(table)
            return table
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a saved TransitionTable ({error})") from error


def check_indices(table: TransitionTable) -> None:
    """A ValueError unless arrays have their types and lengths and every index points into the table.

    For tables that come from files: a wrong index could send a kernel out of its arrays.
    """
    rows = {"by_dst": table.num_states, "by_src": table.num_states, "by_column": len(table.active_pdfs)}
    _inside(table.active_pdfs, table.num_pdfs, "active_pdfs")
    count = len(table.by_dst.arc)
    for name, num_rows in rows.items():
        view: ArcView = getattr(table, name)
        ends = {
            "src": table.num_states,
            "dst": table.num_states,
            "column": len(table.active_pdfs),
            "arc": table.num_arcs,
        }
        for part, end in ends.items():
            _inside(getattr(view, part), end, f"{name}.{part}", count)
        offsets = view.offsets
        _of_type(offsets, "i8", num_rows + 1, f"{name}.offsets")
        _of_type(view.log_prob, "f8", count, f"{name}.log_prob")
        if offsets[0] != 0 or offsets[-1] != count or np.any(offsets[1:] < offsets[:-1]):
            raise ValueError(f"{name}.offsets do not share out the arcs")
    for name in ("initial_log_prob", "final_log_prob", "leaky_log_prob"):
        vector = getattr(table, name)
        if vector is not None:
            _of_type(vector, "f8", table.num_states, name)


def _inside(values: Ints, end: int, name: str, length: int | None = None) -> None:
    _of_type(values, "i4", length, name)
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise ValueError(f"{name} reaches from {values.min()} to {values.max()}; expected [0, {end})")


def _of_type(values: npt.NDArray[Any], kind: str, length: int | None, name: str) -> None:
    expected = len(values) if length is None and values.ndim else length
    if values.ndim != 1 or values.dtype != np.dtype(kind) or len(values) != expected:
        raise ValueError(
            f"{name} is {values.dtype} {list(values.shape)}; expected {np.dtype(kind)} [{expected}]"
        )


def compile_table(fsa: Fsa, num_pdfs: int | None = None, *, name: str | None = None) -> TransitionTable:
    """Sort the arcs of `fsa` three ways and remap its pdfs to the active ones.

    Arcs of weight -inf are dropped; states and arcs keep their numbers. The start state alone is initial.

    Args:
        fsa: the acceptor.
        num_pdfs: P, the width of the network output; None takes the largest pdf + 1.
        name: utterance or file, for errors.

    Raises:
        GraphError: a pdf is not below `num_pdfs`.
    """
    if num_pdfs is not None and num_pdfs < 0:
        raise GraphError(f"num_pdfs = {num_pdfs}; expected the width of the network output")
    least = int(fsa.pdf.max(initial=-1)) + 1
    if num_pdfs is not None and least > num_pdfs:
        arc = int(np.argmax(fsa.pdf))
        where = "" if name is None else f"{name}: "
        raise GraphError(
            f"{where}pdf {fsa.pdf[arc]} on arc {arc} out of state {fsa.src[arc]}; expected pdfs in [0, {num_pdfs})"
        )
    arcs = np.flatnonzero(fsa.log_prob > -np.inf)
    active, column = np.unique(fsa.pdf[arcs], return_inverse=True)
    initial = np.full(fsa.num_states, -np.inf)
    initial[fsa.start] = 0.0
    return TransitionTable(
        num_states=fsa.num_states,
        num_arcs=fsa.num_arcs,
        num_pdfs=least if num_pdfs is None else num_pdfs,
        active_pdfs=active.astype(np.int32),
        by_dst=_view(fsa, arcs, column, fsa.dst[arcs], fsa.num_states),
        by_src=_view(fsa, arcs, column, fsa.src[arcs], fsa.num_states),
        by_column=_view(fsa, arcs, column, column, len(active)),
        initial_log_prob=initial,
        final_log_prob=fsa.final_log_prob,
    )


def _view(
    fsa: Fsa, arcs: npt.NDArray[np.int64], column: npt.NDArray[Any], key: npt.NDArray[Any], rows: int
) -> ArcView:
    order = np.argsort(key, kind="stable")
    arcs = arcs[order]
    return ArcView(
        offsets=np.searchsorted(key[order], np.arange(rows + 1)).astype(np.int64),
        src=fsa.src[arcs],
        dst=fsa.dst[arcs],
        column=column[order].astype(np.int32),
        log_prob=fsa.log_prob[arcs],
        arc=arcs.astype(np.int32),
    )
