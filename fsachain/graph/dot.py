"""Graphviz text of an acceptor, to be drawn by `dot -Tsvg`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsachain.errors import GraphError
from fsachain.fsa import Fsa

MAX_STATES = 2000  # larger graphs make no picture that a person can read


def to_dot(fsa: Fsa, pdf_names: Sequence[str] | None = None) -> str:
    """The acceptor as a Graphviz digraph, left to right; arcs carry pdf and probability, finals two circles.

    Args:
        fsa: at most `MAX_STATES` states.
        pdf_names: what to write for each pdf; its number by default.

    Raises:
        GraphError: a larger graph, or a pdf without a name.
    """
    if fsa.num_states > MAX_STATES:
        raise GraphError(f"{fsa.num_states} states: expected at most {MAX_STATES}; draw a part of the graph")
    largest = int(fsa.pdf.max(initial=-1))
    if pdf_names is not None and largest >= len(pdf_names):
        raise GraphError(f"pdf_names has {len(pdf_names)} names; the graph has pdfs up to {largest}")
    lines = [
        "digraph fsa {",
        "  rankdir = LR;",
        '  node [shape = circle, label = "\\N"];',
        "  begin [shape = point];",
    ]
    for state in np.flatnonzero(fsa.final_log_prob > -np.inf).tolist():
        label = f"{state}\\n{_weight(fsa.final_log_prob[state])}"
        lines.append(f'  {state} [shape = doublecircle, label = "{label}"];')
    lines.append(f"  begin -> {fsa.start};")
    columns = (fsa.src, fsa.dst, fsa.pdf, fsa.log_prob)
    for src, dst, pdf, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        name = str(pdf) if pdf_names is None else _escaped(pdf_names[pdf])
        lines.append(f'  {src} -> {dst} [label = "{name} / {_weight(log_prob)}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _weight(log_prob: float) -> str:
    """The log-probability, short; weights of any size and sign are legal, so no probability."""
    return f"{log_prob:.4g}"


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
