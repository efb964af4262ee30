"""AT&T text of an acceptor: `src dst label [label] [cost]` for an arc, `state [cost]` for a final state.

The OpenFst convention holds here too: label = pdf + 1 (0 is epsilon, refused) and cost = -log_prob. Numbers are written
so that reading them back gives the same float64.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from fsachain.errors import GraphError
from fsachain.files import text_lines
from fsachain.fsa import Fsa

_SPARE_STATES = 1000  # that a short text may leave out
_MAX_DIGITS = 10  # of a number of 32 bits; int() of thousands of digits is an error of its own


def parse_file(path: str | PathLike[str]) -> Fsa:
    """Read the text file at `path`.

    Raises:
        GraphError: the file cannot be read as text, or a line is malformed; the message names the file and line.
    """
    if Path(path).is_file():
        return _parse(lambda: text_lines(path, GraphError), str(path))
    once = list(text_lines(path, GraphError))  # a pipe
    return _parse(lambda: once, str(path))


def parse(text: str, *, source: str) -> Fsa:
    """Parse AT&T text; the state on the first line is the start. `source` names it in errors."""
    numbered = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    return _parse(lambda: ((number, fields) for number, fields in numbered if fields), source)


def _parse(lines: Callable[[], Iterable[tuple[int, list[str]]]], source: str) -> Fsa:
    """The acceptor of (number, fields) of lines, which are gone through twice."""
    label_columns = _label_columns(fields for _, fields in lines())
    columns = array("i"), array("i"), array("i")  # src, dst, pdf
    weights = array("d")
    finals: dict[int, float] = {}
    start = None
    for number, fields in lines():
        where = f"{source}, line {number}"
        if len(fields) <= 2:
            finals[_integer(fields[0], where, "state")] = (
                -_cost(fields[1], where) if len(fields) == 2 else 0.0
            )
        else:
            *arc, log_prob = _arc(fields, label_columns, where)
            for column, value in zip(columns, arc, strict=True):
                column.append(value)
            weights.append(log_prob)
        start = int(fields[0]) if start is None else start
    if start is None:
        raise GraphError(f"{source}: no states; expected at least one line")
    src, dst, pdf = (np.frombuffer(column, dtype=np.int32) for column in columns)
    num_states = int(max(src.max(initial=-1), dst.max(initial=-1), max(finals, default=-1))) + 1
    if num_states > max(_SPARE_STATES, 2 * (len(src) + len(finals))):
        raise GraphError(
            f"{source}: state {num_states - 1} among {len(src)} arcs: expected states numbered densely from 0"
        )
    final = np.full(num_states, -math.inf)
    final[list(finals.keys())] = list(finals.values())
    return Fsa(num_states, src, dst, pdf, np.frombuffer(weights), final, start)


def _label_columns(lines: Iterable[list[str]]) -> int:
    """How many label columns the text has: 2 (`src dst in out [cost]`) or 1 (`src dst label [cost]`).

    A line of five fields settles it, so does one of three. Where all arcs have four, the fourth field is a second label
    only if it equals the first on every line.
    """
    sizes, alike = set(), True
    for fields in lines:
        sizes.add(len(fields))
        alike &= len(fields) != 4 or fields[2] == fields[3]
    if 5 in sizes or 3 in sizes:
        return 2 if 5 in sizes else 1
    return 2 if alike else 1


def _arc(fields: list[str], label_columns: int, where: str) -> tuple[int, int, int, float]:
    allowed = (2 + label_columns, 3 + label_columns)
    if len(fields) not in allowed:
        raise GraphError(
            f"{where}: {len(fields)} fields; expected {allowed[0]} or {allowed[1]} as on the other arc lines"
        )
    src, dst = _integer(fields[0], where, "state"), _integer(fields[1], where, "state")
    labels = [_integer(field, where, "label") for field in fields[2 : 2 + label_columns]]
    if labels[0] != labels[-1]:
        raise GraphError(
            f"{where}: input label {labels[0]}, output label {labels[1]}; expected an acceptor (equal labels)"
        )
    if labels[0] == 0:
        raise GraphError(
            f"{where}: label 0 (epsilon) on the arc {src} -> {dst}; expected labels >= 1 (pdf + 1)"
        )
    return src, dst, labels[0] - 1, -_cost(fields[-1], where) if len(fields) == allowed[1] else 0.0


def _integer(field: str, where: str, kind: str) -> int:
    if not field.isascii() or not field.isdigit():
        raise GraphError(f"{where}: {kind} {field!r}; expected an integer >= 0")
    digits = field.lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS or int(digits) > np.iinfo(np.int32).max - 1:
        raise GraphError(f"{where}: {kind} {digits[:40]}; expected at most {np.iinfo(np.int32).max - 1}")
    return int(digits)


def _cost(field: str, where: str) -> float:
    try:
        cost = float(field)
    except ValueError:
        raise GraphError(f"{where}: cost {field!r}; expected a number") from None
    if math.isnan(cost) or cost == -math.inf:
        raise GraphError(f"{where}: cost {field}; expected a finite number or Infinity")
    return cost


def format_fsa(fsa: Fsa) -> str:
    """AT&T text of `fsa`: the start state's lines first, then arcs in order, then final states."""
    arcs = [
        (int(src), f"{src}\t{dst}\t{pdf + 1}\t{pdf + 1}\t{_number(-weight)}")
        for src, dst, pdf, weight in zip(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, strict=True)
    ]
    finals = {
        int(state): _number(-fsa.final_log_prob[state])
        for state in np.flatnonzero(fsa.final_log_prob > -math.inf)
    }
    mentioned = {int(state) for state in (*fsa.src, *fsa.dst, *finals)}
    # States that no line would mention get a line that says "not final": the start (its line comes first), the last.
    for state in {fsa.start, fsa.num_states - 1} - mentioned:
        finals[state] = "Infinity"
    lines = [line for src, line in arcs if src == fsa.start]
    if not lines:
        lines = [f"{fsa.start}\t{finals.pop(fsa.start, 'Infinity')}"]
    lines += [line for src, line in arcs if src != fsa.start]
    lines += [f"{state}\t{cost}" for state, cost in sorted(finals.items())]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "Infinity" if value == math.inf else repr(float(value) + 0.0)
