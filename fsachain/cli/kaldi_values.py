"""Kaldi's files as text: what copy-feats, copy-int-vector, copy-post, fstcopy and show-transitions print with `ark,t:-`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import ConfigError
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.examples import ChainExample, read_example
from fsachain.kaldi.lattice import CompactLattice, read_lattice
from fsachain.kaldi.transitions import read_topology, read_transition_model
from fsachain.kaldi.tree import read_tree
from fsachain.kaldi.values import Floats, read_alignment, read_matrix, read_posterior, read_vector
from fsachain.openfst import Transducer, read_fst
from fsachain.stream import Cursor

Lines = Iterator[str]


def describe_values(kind: str, source: str) -> Lines:
    """The lines of a table or of a file that is no table.

    Args:
        kind: one of `KINDS`.
        source: for tables as for `read_table`; for "fst-file", "model", "topo" and "tree" a path.

    Raises:
        ConfigError: another kind.
        DataError: the file cannot be read, or is of another kind.
    """
    if kind in _FILES:
        yield from _FILES[kind](source)
        return
    if kind not in _TABLES:
        raise ConfigError(f"kind = {kind!r}: expected one of {', '.join(KINDS)}")
    read, write = _TABLES[kind]
    for key, value in read_table(source, read):
        yield from write(key, value)


def _number(value: float) -> str:
    return f"{value:.7g}"


def _matrix(key: str, matrix: Floats) -> Lines:
    rows = ["  " + " ".join(map(_number, row)) for row in matrix.tolist()]
    yield f"{key}  ["
    yield from rows[:-1]
    yield f"{rows[-1] if rows else ''} ]"


def _vector(key: str, vector: Floats) -> Lines:
    yield f"{key}  [ {' '.join(map(_number, vector.tolist()))} ]"


def _alignment(key: str, alignment: np.ndarray) -> Lines:
    yield f"{key} {' '.join(map(str, alignment.tolist()))}"


def _posterior(key: str, posterior: list[list[tuple[int, float]]]) -> Lines:
    frames = (
        "[ " + "".join(f"{label} {_number(weight)} " for label, weight in frame) + "]" for frame in posterior
    )
    yield f"{key} {' '.join(frames)}"


def _fst(key: str, fst: Transducer) -> Lines:
    yield key
    yield from _fst_lines(fst)
    yield ""


def _fst_lines(fst: Transducer) -> Lines:
    """AT&T text, the start state's lines first, costs."""
    columns = (fst.src, fst.dst, fst.ilabel, fst.olabel, fst.log_prob)
    arcs: list[list[str]] = [[] for _ in range(fst.num_states)]
    for src, dst, ilabel, olabel, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        arcs[src].append(f"{src}\t{dst}\t{ilabel}\t{olabel}\t{_number(0.0 - log_prob)}")
    for state in [fst.start, *(state for state in range(fst.num_states) if state != fst.start)]:
        yield from arcs[state]
        if fst.final_log_prob[state] > -math.inf:
            yield f"{state}\t{_number(0.0 - fst.final_log_prob[state])}"


def _lattice(key: str, compact: CompactLattice) -> Lines:
    yield key
    lattice = compact.expanded()
    columns = (
        lattice.src,
        lattice.dst,
        lattice.transition,
        lattice.word,
        lattice.graph_cost,
        lattice.acoustic_cost,
    )
    for *fields, graph, acoustic in zip(*(column.tolist() for column in columns), strict=True):
        yield "\t".join([*map(str, fields), f"{_number(graph)},{_number(acoustic)}"])
    for state in np.flatnonzero(lattice.final_graph_cost < math.inf).tolist():
        costs = lattice.final_graph_cost[state], lattice.final_acoustic_cost[state]
        yield f"{state}\t{','.join(map(_number, costs))}"
    yield ""


def _example(key: str, example: ChainExample) -> Lines:
    for part in example.inputs:
        rows, columns = part.features.shape
        times = part.indexes.t
        yield f"{key} input {part.name}: {rows} rows of {columns}, times {times.min()} to {times.max()}"
    for output in example.outputs:
        arcs = sum(fsa.num_arcs for fsa in output.fsas)
        kind = "end-to-end" if output.end_to_end else "from alignments"
        yield (
            f"{key} output {output.name}: {output.num_sequences} sequences of {output.frames_per_sequence} frames, "
            f"{output.label_dim} pdfs, weight {_number(output.weight)}, {kind}, {len(output.fsas)} graphs, {arcs} arcs"
        )


def _model(path: str) -> Lines:
    model = read_transition_model(path)
    table = model.transitions
    yield f"{model.num_phones} phones, {model.num_pdfs} pdfs, {len(table.pdf) - 1} transition ids"
    yield "transition\tphone\tstate\tpdf\tself-loop\tlast\tlog-prob"
    for number in range(1, len(table.pdf)):
        marks = ("yes" if mark[number] else "no" for mark in (table.is_self_loop, table.is_final))
        fields = [number, table.phone[number], table.hmm_state[number], table.pdf[number], *marks]
        yield "\t".join([*map(str, fields), _number(model.log_probs[number])])


def _topology(path: str) -> Lines:
    for phone, states in sorted(read_topology(path).items()):
        for number, state in enumerate(states[:-1]):
            ways = ", ".join(f"{target} ({_number(prob)})" for target, prob in state.transitions)
            classes = f"pdf classes {state.forward_class} and {state.self_loop_class}"
            yield f"phone {phone}, state {number}: {classes}, to {ways}"


def _tree(path: str) -> Lines:
    tree = read_tree(path)
    yield f"context-width {tree.context_width}"
    yield f"central-position {tree.central_position}"
    yield f"num-pdfs {tree.decisions.num_pdfs}"


def _fst_file(path: str) -> Lines:
    yield from _fst_lines(read_value(Path(path), read_fst))


_TABLES: dict[str, tuple[Callable[[Cursor], Any], Callable[[str, Any], Lines]]] = {
    "matrix": (read_matrix, _matrix),
    "vector": (read_vector, _vector),
    "alignment": (read_alignment, _alignment),
    "posterior": (read_posterior, _posterior),
    "fst": (read_fst, _fst),
    "lattice": (read_lattice, _lattice),
    "example": (read_example, _example),
}
_FILES: dict[str, Callable[[str], Lines]] = {
    "fst-file": _fst_file,
    "model": _model,
    "topo": _topology,
    "tree": _tree,
}
KINDS = (*_TABLES, *_FILES)
