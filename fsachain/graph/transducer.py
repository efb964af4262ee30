"""A weighted transducer as plain arrays, and its fast way in and out of pywrapfst.

pywrapfst visits arcs one Python call at a time; a whole graph crosses in one piece through OpenFst's binary
form instead. Labels are OpenFst's (0 = epsilon), weights are natural log-probabilities: only the sign changes
at this crossing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, require
from fsachain.fsa import Fsa

_MAGIC = 2125659606
_EXPANDED_AND_MUTABLE = 3
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("cost", "<f4"), ("dst", "<i4")])


@dataclass(frozen=True, eq=False)
class Transducer:
    """States, one start, arcs with two labels and a log-probability. Arcs may have any order.

    Attributes:
        num_states, start: number of states S and the start state.
        src, dst, ilabel, olabel: int [A]; label 0 is epsilon.
        log_prob: float64 [A]; final_log_prob: float64 [S], -inf = not final.
    """

    num_states: int
    start: int
    src: npt.NDArray[np.integer]
    dst: npt.NDArray[np.integer]
    ilabel: npt.NDArray[np.integer]
    olabel: npt.NDArray[np.integer]
    log_prob: npt.NDArray[np.float64]
    final_log_prob: npt.NDArray[np.float64]

    def leaving(self, tags: Sequence[int] | None) -> list[list[tuple[int, int, int, float, int]]]:
        """The arcs that leave each state: dst, ilabel, olabel, log_prob, and the arc's tag, -1 where there are no tags."""
        result: list[list[tuple[int, int, int, float, int]]] = [[] for _ in range(self.num_states)]
        columns = (self.src, self.dst, self.ilabel, self.olabel, self.log_prob)
        own = [-1] * len(self.src) if tags is None else tags
        for src, *arc in zip(*(column.tolist() for column in columns), own, strict=True):
            result[src].append((arc[0], arc[1], arc[2], arc[3], arc[4]))
        return result

    @classmethod
    def from_openfst(cls, fst: Any) -> Transducer:
        """Arrays of a pywrapfst FST over the tropical semiring, arcs in its order.

        Raises:
            GraphError: another arc type, or no start state (the empty FST).
        """
        if fst.arc_type() != "standard":
            raise GraphError(f"arc type {fst.arc_type()!r}: expected 'standard' (tropical, 32 bits)")
        if fst.start() < 0:
            raise GraphError("the FST has no start state: it accepts nothing")
        vector = require("pywrapfst", extra="graph").convert(fst, "vector")
        vector.set_input_symbols(None)
        vector.set_output_symbols(None)
        data = vector.write_to_string()
        offset = 4
        for _ in range(2):
            offset += 4 + struct.unpack_from("<i", data, offset)[0]
        offset += 16
        start, num_states, _ = struct.unpack_from("<qqq", data, offset)
        offset += 24
        finals = np.empty(num_states)
        counts = np.empty(num_states, dtype=np.int64)
        pieces = []
        header = struct.Struct("<fq")
        for state in range(num_states):
            finals[state], count = header.unpack_from(data, offset)
            offset += header.size
            pieces.append(data[offset : offset + 16 * count])
            counts[state] = count
            offset += 16 * count
        arcs = np.frombuffer(b"".join(pieces), dtype=ARC)
        src = np.repeat(np.arange(num_states, dtype=np.int32), counts)
        log_prob = 0.0 - arcs["cost"].astype(np.float64)  # and not minus: a cost of 0 would become -0.0
        labels = arcs["ilabel"], arcs["olabel"]
        return cls(num_states, start, src, arcs["dst"], *labels, log_prob, 0.0 - finals)

    def input_fsa(self) -> Fsa:
        """The acceptor of the input labels, pdf = label - 1; arcs keep their order.

        Raises:
            GraphError: an input epsilon.
        """
        pdf = self.ilabel - 1
        pdf.setflags(write=False)
        return Fsa(
            self.num_states,
            self.src,
            self.dst,
            pdf,
            self.log_prob,
            self.final_log_prob,
            self.start,
        )

    def acceptor(self, where: str) -> Fsa:
        """The acceptor of a transducer whose labels are pdf + 1 on both sides; arcs keep their order.

        Raises:
            GraphError: an epsilon or negative label, different labels on the two sides of an arc, a weight of
                NaN or cost -Infinity, a destination or start that is no state. The message begins with `where`
                and names state and arc.
        """
        if not 0 <= self.start < self.num_states:
            raise GraphError(f"{where}: no states or no start state; expected at least a start state")
        _check_arcs(self, where)
        _check_finals(self.final_log_prob, where)
        return self.input_fsa()

    def to_openfst(self) -> Any:
        """The same transducer as a pywrapfst `VectorFst` (tropical); arcs of one state keep their order."""
        pywrapfst = require("pywrapfst", extra="graph")
        return pywrapfst.VectorFst.read_from_string(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The same transducer in OpenFst's binary form, as a vector FST (tropical); arcs of one state keep their order."""
        order = np.argsort(self.src, kind="stable")
        arcs = np.empty(len(order), dtype=ARC)
        arcs["ilabel"], arcs["olabel"] = self.ilabel[order], self.olabel[order]
        arcs["cost"], arcs["dst"] = -self.log_prob[order], self.dst[order]
        body = arcs.tobytes()
        ends = np.searchsorted(self.src[order], np.arange(self.num_states), side="right").tolist()
        pieces = [struct.pack("<ii6si8sii", _MAGIC, 6, b"vector", 8, b"standard", 2, 0)]
        pieces.append(struct.pack("<Qqqq", _EXPANDED_AND_MUTABLE, self.start, self.num_states, len(arcs)))
        first = 0
        for final, end in zip((-self.final_log_prob).tolist(), ends, strict=True):
            pieces.append(struct.pack("<fq", final, end - first))
            pieces.append(body[16 * first : 16 * end])
            first = end
        return b"".join(pieces)


def _check_arcs(arcs: Transducer, where: str) -> None:
    """Refuse the first arc that an `Fsa` cannot hold; arcs are numbered within their state, as in OpenFst."""
    cost = 0.0 - arcs.log_prob
    checks: tuple[tuple[npt.NDArray[np.bool_], str], ...] = (
        (arcs.ilabel != arcs.olabel, "expected an acceptor: equal input and output labels"),
        (arcs.ilabel <= 0, "expected labels >= 1 (pdf + 1); remove epsilons (label 0) first"),
        (np.isnan(cost) | (cost == -np.inf), "expected a finite cost or Infinity"),
        ((arcs.dst < 0) | (arcs.dst >= arcs.num_states), f"expected a destination in [0, {arcs.num_states})"),
    )
    for is_bad, expected in checks:
        if is_bad.any():
            arc = int(np.argmax(is_bad))
            src = int(arcs.src[arc])
            number = arc - int(np.searchsorted(arcs.src, src))
            came = (
                f"labels {arcs.ilabel[arc]}:{arcs.olabel[arc]}, cost {cost[arc]:g}, to state {arcs.dst[arc]}"
            )
            raise GraphError(f"{where}: state {src}, arc {number} has {came}; {expected}")


def _check_finals(final_log_prob: npt.NDArray[np.float64], where: str) -> None:
    bad = np.flatnonzero(np.isnan(final_log_prob) | (final_log_prob == np.inf))
    if bad.size:
        state = int(bad[0])
        cost = f"final cost {-final_log_prob[state]:g}"
        raise GraphError(f"{where}: state {state} has {cost}; expected a finite cost or Infinity")
