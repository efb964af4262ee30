"""The acceptor that everything else works on: states, one start, arcs with a pdf and a log-probability, final weights.

No epsilon arcs exist here: each arc spends exactly one frame. Weights are natural logs, pdfs count from 0; the OpenFst
convention (label = pdf + 1, cost = -log_prob) lives in `fsachain.graph.openfst` and in the AT&T text of `fsachain.att`.
"""

from __future__ import annotations

import math
import os
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain import reachability
from fsachain.errors import GraphError

if TYPE_CHECKING:
    from os import PathLike

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fsa:
    """Epsilon-free weighted acceptor, immutable and validated.

    Arrays of the right type that nobody can write to are taken as they are, others copied.

    Self-loops, cycles (through the start state too), parallel arcs, several final states, weights of any size and sign
    are legal. So is a graph without arcs or without final states: no sequence is possible through it as a numerator.

    Attributes:
        num_states: number of states S, at least 1.
        src, dst: int32 [A], state that arc a leaves and enters.
        pdf: int32 [A], column of the network output that arc a consumes, counted from 0.
        log_prob: float64 [A], natural log weight; -inf means that the arc cannot be taken.
        final_log_prob: float64 [S], natural log final weight; -inf means not final.
        start: the start state.

    Raises:
        GraphError: no states, an index out of range, a negative pdf (label 0 in OpenFst is epsilon), NaN or +inf weight.
    """

    num_states: int
    src: Ints
    dst: Ints
    pdf: Ints
    log_prob: Floats
    final_log_prob: Floats
    start: int = 0

    def __post_init__(self) -> None:
        if self.num_states < 1:
            raise GraphError(f"num_states = {self.num_states}: an acceptor needs at least one state")
        if not 0 <= self.start < self.num_states:
            raise GraphError(f"start = {self.start}: expected a state in [0, {self.num_states})")
        num_arcs = len(np.atleast_1d(np.asarray(self.src)))
        for name in ("src", "dst", "pdf"):
            self._freeze(name, _integers(getattr(self, name), name, num_arcs))
        self._freeze("log_prob", _weights(self.log_prob, "log_prob", num_arcs, "arc"))
        self._freeze(
            "final_log_prob", _weights(self.final_log_prob, "final_log_prob", self.num_states, "state")
        )
        object.__setattr__(self, "num_states", int(self.num_states))
        object.__setattr__(self, "start", int(self.start))
        _check_range(self.src, "src", self.num_states)
        _check_range(self.dst, "dst", self.num_states)
        if self.pdf.min(initial=0) < 0:
            arc = int(np.argmax(self.pdf < 0))
            raise GraphError(
                f"pdf[{arc}] = {self.pdf[arc]} (arc {arc}, state {self.src[arc]} -> {self.dst[arc]}): expected a pdf >= 0; "
                "an epsilon (OpenFst label 0) spends no frame and must be removed first"
            )

    def _freeze(self, name: str, values: npt.NDArray[Any]) -> None:
        values.setflags(write=False)
        object.__setattr__(self, name, values)

    @property
    def num_arcs(self) -> int:
        """Number of arcs A, arcs of weight -inf included."""
        return len(self.src)

    @property
    def labels(self) -> Ints:
        """int32 [A]: the same array as `pdf`."""
        return self.pdf

    def __repr__(self) -> str:
        return f"Fsa({self.num_states} states, {self.num_arcs} arcs, start {self.start})"

    def _repr_svg_(self) -> str | None:
        """What a notebook shows, of a large graph a part; None without the `plot` extra: the text stands then."""
        from fsachain.plot.graph import graph_svg

        return graph_svg(self)

    def min_frames(self) -> float:
        """Arcs on the shortest path from the start to a final state; `math.inf` where there is none."""
        usable = self.log_prob > -math.inf
        distance = reachability.arcs_from(self.start, self.num_states, self.src[usable], self.dst[usable])
        final = self.final_log_prob > -math.inf
        return float(distance[final].min()) if final.any() else math.inf

    def trim(self) -> Fsa:
        """The acceptor without states that lie on no path from start to final; states renumbered in order.

        The start state always stays, so that an acceptor of the empty language has one state and no arcs.
        """
        usable = self.log_prob > -math.inf
        final = self.final_log_prob > -math.inf
        keep = reachability.on_a_path(self.start, final, self.src[usable], self.dst[usable])
        keep[self.start] = True
        new = np.cumsum(keep) - 1
        arcs = usable & keep[self.src] & keep[self.dst]
        return Fsa(
            int(keep.sum()),
            new[self.src[arcs]],
            new[self.dst[arcs]],
            self.pdf[arcs],
            self.log_prob[arcs],
            self.final_log_prob[keep],
            int(new[self.start]),
        )

    @classmethod
    def from_text(cls, text_or_path: str | PathLike[str]) -> Fsa:
        """Read AT&T text (label = pdf + 1, cost = -log_prob): the text itself, or the path of a file that holds it."""
        from fsachain import att

        if isinstance(text_or_path, os.PathLike):
            return att.parse_file(text_or_path)
        # os.path and not Path: text is no legal file name on some systems, which Path reports by an exception.
        looks_like_text = any(c.isspace() for c in text_or_path) or text_or_path.isdigit() or not text_or_path
        if looks_like_text and ("\n" in text_or_path or not os.path.isfile(text_or_path)):  # noqa: PTH113
            return att.parse(text_or_path, source="text")
        return att.parse_file(text_or_path)

    def to_text(self) -> str:
        """AT&T text with label = pdf + 1 and cost = -log_prob; the first line starts with the start state."""
        from fsachain import att

        return att.format_fsa(self)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Fsa:
        """Read an OpenFst binary file (needs the `graph` extra)."""
        from fsachain.graph import openfst

        return openfst.read(path)

    def write(self, path: str | PathLike[str]) -> None:
        """Write an OpenFst binary file (needs the `graph` extra)."""
        from fsachain.graph import openfst

        openfst.write(self, path)

    @classmethod
    def from_openfst(cls, fst: Any) -> Fsa:
        """Convert a pywrapfst acceptor whose labels are pdf + 1 (needs the `graph` extra)."""
        from fsachain.graph import openfst

        return openfst.from_openfst(fst)

    def to_openfst(self) -> Any:
        """The same acceptor as a pywrapfst `VectorFst` (needs the `graph` extra)."""
        from fsachain.graph import openfst

        return openfst.to_openfst(self)


def frozen(column: array[Any]) -> npt.NDArray[Any]:
    """The numbers of a column that has grown, without a copy and read-only: an `Fsa` takes them as they are."""
    return np.frombuffer(memoryview(column).toreadonly(), dtype=column.typecode)


def _integers(values: npt.ArrayLike, name: str, length: int) -> Ints:
    found = np.asarray(values)
    if found.ndim != 1 or len(found) != length:
        raise GraphError(
            f"{name} has shape {list(found.shape)}: expected [{length}], one entry for each arc of src"
        )
    if found.size and found.dtype.kind not in "iu":
        raise GraphError(f"{name} has dtype {found.dtype}: expected integers")
    if found.size and (found.max() > np.iinfo(np.int32).max or found.min() < np.iinfo(np.int32).min):
        raise GraphError(f"{name} holds {found.max()}: expected values that fit in 32 bits")
    return found.astype(np.int32, order="C", copy=found.flags.writeable)


def _weights(values: npt.ArrayLike, name: str, length: int, kind: str) -> Floats:
    given = np.asarray(values)
    found = given.astype(np.float64, order="C", copy=given.flags.writeable)
    if found.shape != (length,):
        raise GraphError(
            f"{name} has shape {list(found.shape)}: expected [{length}], one entry for each {kind}"
        )
    if not found.max(initial=-np.inf) < np.inf:  # NaN is the highest too
        bad = int(np.argmax(np.isnan(found) | (found == np.inf)))
        raise GraphError(
            f"{name}[{bad}] = {found[bad]} ({kind} {bad}): expected a finite log-probability or -inf"
        )
    return found


def _check_range(states: Ints, name: str, num_states: int) -> None:
    if states.min(initial=0) < 0 or states.max(initial=0) >= num_states:
        bad = int(np.argmax((states < 0) | (states >= num_states)))
        raise GraphError(f"{name}[{bad}] = {states[bad]} (arc {bad}): expected a state in [0, {num_states})")
