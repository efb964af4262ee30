"""AT&T text of an acceptor: `src dst label [label] [cost]` for an arc, `state [cost]` for a final state.

The OpenFst convention holds here too: label = pdf + 1 (0 is epsilon, refused) and cost = -log_prob. Numbers are written
so that reading them back gives the same float64.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from fsachain.errors import GraphError
from fsachain.files import text_lines
from fsachain.fsa import Fsa, frozen
from fsachain.named_states import NamedStates

_LONGEST_LINE = 1 << 14  # bytes
_MAX_DIGITS = 10  # of a number of 32 bits; int() of thousands of digits is an error of its own


def parse_file(path: str | PathLike[str]) -> Fsa:
    """Read the text file at `path`.

    Raises:
        GraphError: the file cannot be read as text, or a line is malformed; the message names the file and line.
    """
    read = partial(text_lines, path, GraphError, longest=_LONGEST_LINE)
    if Path(path).is_file():
        return _parse(read, str(path))
    once = list(read())  # a pipe
    return _parse(lambda: once, str(path))


def parse(text: str, *, source: str) -> Fsa:
    """Parse AT&T text; the state on the first line is the start. `source` names it in errors."""
    numbered = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    return _parse(lambda: ((number, fields) for number, fields in numbered if fields), source)


def _parse(lines: Callable[[], Iterable[tuple[int, list[str]]]], source: str) -> Fsa:
    """The acceptor of (number, fields) of lines.

    They are gone through three times: for their form, to check and count them, and to fill arrays, which have their size
    from the beginning.
    """
    label_columns = _label_columns(fields for _, fields in lines())

    def values() -> Iterator[tuple[tuple[int, ...], float]]:
        """Of each line src, dst and pdf, or the state that is final, and the log-probability."""
        for number, fields in lines():
            where = f"{source}, line {number}"
            if len(fields) > 2:
                yield _arc(fields, label_columns, where)
            else:
                state = (_integer(fields[0], where, "state"),)
                yield state, -_cost(fields[1], where) if len(fields) == 2 else 0.0

    states, num_arcs = NamedStates(), 0
    for numbers, _ in values():
        states.add(numbers[:2])
        num_arcs += len(numbers) == 3
    if states.start < 0:
        raise GraphError(f"{source}: no states; expected at least one line")
    if not states.are_possible:
        raise GraphError(
            f"{source}: state {states.highest} among {num_arcs} arcs: expected states numbered densely from 0"
        )
    return _filled(values(), states, num_arcs)


def _filled(values: Iterable[tuple[tuple[int, ...], float]], states: NamedStates, num_arcs: int) -> Fsa:
    columns = tuple(array("i", [0]) * num_arcs for _ in range(3))  # src, dst, pdf
    log_prob, final = array("d", [0.0]) * num_arcs, array("d", [-math.inf]) * (states.highest + 1)
    arc = 0
    for numbers, weight in values:
        if len(numbers) == 1:
            final[numbers[0]] = weight
            continue
        for column, number in zip(columns, numbers, strict=True):
            column[arc] = number
        log_prob[arc] = weight
        arc += 1
    src, dst, pdf = (frozen(column) for column in columns)
    return Fsa(len(final), src, dst, pdf, frozen(log_prob), frozen(final), states.start)


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


def _arc(fields: list[str], label_columns: int, where: str) -> tuple[tuple[int, int, int], float]:
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
    return (src, dst, labels[0] - 1), -_cost(fields[-1], where) if len(fields) == allowed[1] else 0.0


def _integer(field: str, where: str, kind: str) -> int:
    if not field.isascii() or not field.isdigit():
        raise GraphError(f"{where}: {kind} {field[:40]!r}; expected an integer >= 0")
    digits = field.lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS or int(digits) > np.iinfo(np.int32).max - 1:
        raise GraphError(f"{where}: {kind} {digits[:40]}; expected at most {np.iinfo(np.int32).max - 1}")
    return int(digits)


def _cost(field: str, where: str) -> float:
    try:
        cost = float(field)
    except ValueError:
        raise GraphError(f"{where}: cost {field[:40]!r}; expected a number") from None
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
