"""FSTs as text in Kaldi's archives: lines `src dst ilabel olabel [cost]` and `state [cost]` up to an empty line.

The lines are gone through twice: first each is checked and arcs are counted by state, then each goes to its place. So
arrays have their size from the beginning, and nothing is sorted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fsachain.fsa import frozen
from fsachain.graph.transducer import Transducer
from fsachain.kaldi.stream import Cursor
from fsachain.named_states import NamedStates


def read_text(cursor: Cursor) -> Transducer:
    """The FST, arcs sorted by source state; the first line names the start.

    Raises:
        DataError: a line that is none of both, or states far beyond those that lines name.
    """
    begin = cursor.position
    states, num_arcs, place = _survey(cursor)
    num_states = states.highest + 1
    columns = tuple(array("i", [0]) * num_arcs for _ in range(4))  # src, dst, ilabel, olabel
    log_prob, final = array("d", [0.0]) * num_arcs, array("d", [-math.inf]) * num_states
    cursor.position = begin
    for numbers, cost in _lines(cursor):
        if len(numbers) == 1:
            final[numbers[0]] = 0.0 - cost
            continue
        at = place[numbers[0]]
        place[numbers[0]] += 1
        log_prob[at] = 0.0 - cost
        for column, number in zip(columns, numbers, strict=True):
            column[at] = number
    arcs = [frozen(column) for column in columns]
    weights = frozen(log_prob), frozen(final)
    return Transducer(num_states, states.start, arcs[0], arcs[1], arcs[2], arcs[3], *weights)


def _survey(cursor: Cursor) -> tuple[NamedStates, int, array[int]]:
    """The states, the number of arcs, and where those of each state begin when they are sorted by state."""
    states, src = NamedStates(), array("i")
    for numbers, _ in _lines(cursor):
        states.add(numbers[:2])
        if len(numbers) == 4:
            src.append(numbers[0])
    if states.start < 0 or not states.are_possible:
        lowest = min(states.lowest, states.start)
        cursor.fail(f"an FST in text form with states {lowest} to {states.highest}, of {len(src)} arcs")
    return states, len(src), _first_places(src, states.highest + 1)


def _first_places(src: array[int], num_states: int) -> array[int]:
    counts = np.bincount(np.frombuffer(src, dtype=np.int32), minlength=num_states)
    ends: npt.NDArray[np.int64] = np.cumsum(counts, out=counts)
    found = array("I", [0])
    found.frombytes(ends[:-1].astype(np.uint32).view(np.uint8).data)
    return found


def _lines(cursor: Cursor) -> Iterator[tuple[array[int], float]]:
    """The four numbers of an arc, or the state that is final, and the cost, which OpenFst keeps in 32 bits."""
    if cursor.peek(1) == b"\n":
        cursor.position += 1
    while cursor.left:
        begin = cursor.position
        fields = cursor.line().split()
        if not fields:
            return
        try:
            if len(fields) not in (1, 2, 4, 5):
                raise ValueError(f"{len(fields)} fields")
            cost = array("f", [float(fields.pop())])[0] if len(fields) in (2, 5) else 0.0
            numbers = array("i", map(int, fields))
        except OverflowError:
            cursor.fail("an FST in text form with a state or label beyond 32 bits", begin)
        except ValueError as error:
            cursor.fail(
                f"expected `src dst ilabel olabel [cost]` or `state [cost]` ({str(error)[:80]})", begin
            )
        yield numbers, cost
