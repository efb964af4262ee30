"""Kaldi's `tree` (context dependency) as a decision tree, and with a transition model as a `ContextTree`.

Format: Kaldi's tree/context-dep.cc and tree/event-map.cc.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fsachain.errors import DataError, GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.decision_tree import NO_BRANCH, DecisionTree, Leaf, Node, Split, Table
from fsachain.kaldi.transitions import read_transition_model
from fsachain.stream import Cursor, open_file

MAX_WIDTH = 16
_BYTES_PER_BRANCH = 4  # at least: `CE 0`, `NULL`


class ContextDependency(NamedTuple):
    context_width: int
    central_position: int
    decisions: DecisionTree


def read_tree(path: str | os.PathLike[str]) -> ContextDependency:
    cursor = open_file(path)
    cursor.detect_binary()
    cursor.expect("ContextDependency")
    width = cursor.integer("context width", 1, MAX_WIDTH)
    centre = cursor.integer("central position", 0, width - 1)
    if cursor.expect("ToPdf", "ToLength") == "ToLength":
        _read_decisions(cursor, width)
        cursor.expect("ToPdf")
    decisions = _read_decisions(cursor, width)
    cursor.expect("EndContextDependency")
    return ContextDependency(width, centre, decisions)


def read_context_tree(
    tree: str | os.PathLike[str], model: str | os.PathLike[str], phones: Sequence[str]
) -> ContextTree:
    """The context and topology of a Kaldi directory, for everything that takes a `ContextTree`.

    `model` is `0.trans_mdl` or `final.mdl`, whose head is the transition model; `phones` are in id order, as `read_phones`
    gives them. GraphError: a topology that `Topology` cannot be; see `TransitionModel.topology`.
    """
    found, transitions = read_tree(tree), read_transition_model(model)
    if transitions.num_phones != len(phones):
        raise DataError(
            f"{model}: {transitions.num_phones} phones; expected {len(phones)}, as in the phone list"
        )
    if transitions.num_pdfs > found.decisions.num_pdfs:
        raise DataError(
            f"{model}: {transitions.num_pdfs} pdfs, but {tree} has {found.decisions.num_pdfs}: they do not belong "
            "together"
        )
    context = ContextTree(
        phones,
        transitions.topology(),
        found.context_width,
        [(phone,) for phone in range(1, len(phones) + 1)],
        frozenset(),
        found.decisions,
        found.central_position,
    )
    unmet: dict[int, set[int]] = {}  # by pdf the phones that have it in the model, but at no leaf
    for one in transitions.tuples:
        unmet.setdefault(one.forward_pdf, set()).add(one.phone)
        unmet.setdefault(one.self_loop_pdf, set()).add(one.phone)
    for pdf, path in context.contexts():
        unmet[pdf] = unmet.get(pdf, set()) - path[context.central_position]
    for pdf, left in unmet.items():
        if left:
            raise DataError(
                f"{tree} and {model}: pdf {pdf} belongs to phone {min(left)} in the model and not in the tree; they do "
                "not belong together"
            )
    return context


class _Question(NamedTuple):
    """A table, or a split by `values`, whose branches follow in the file; `number` is that of its node."""

    number: int
    key: int
    size: int
    values: frozenset[int] | None
    branches: list[int]


def _read_decisions(cursor: Cursor, width: int) -> DecisionTree:
    """The nodes in file order, with an explicit stack: a file may nest them deeper than Python recurses."""
    begin = cursor.position
    nodes: list[Node] = []
    waiting: list[_Question] = []
    to_come = 0  # branches
    while not nodes or waiting:
        may_be_null = bool(waiting) and waiting[-1].values is None
        place = cursor.position
        kind = cursor.expect("CE", "TE", "SE", *(("NULL",) if may_be_null else ()))
        if waiting:
            waiting[-1].branches.append(NO_BRANCH if kind == "NULL" else len(nodes))
            to_come -= 1
        if kind == "CE":
            nodes.append(Leaf(cursor.integer("pdf", 0)))
        elif kind != "NULL":
            waiting.append(_read_question(cursor, kind, width, len(nodes), place))
            nodes.append(Leaf(0))  # until its branches are read
            to_come += waiting[-1].size
        if _BYTES_PER_BRANCH * to_come > cursor.left:
            cursor.fail(f"{to_come} branches of questions are to come, {cursor.left} bytes are left")
        while waiting and len(waiting[-1].branches) == waiting[-1].size:
            number, key, _, values, branches = waiting.pop()
            nodes[number] = Table(key, tuple(branches)) if values is None else Split(key, values, *branches)
            cursor.expect(")" if values is None else "}")
    try:
        return DecisionTree(nodes)
    except GraphError as error:
        cursor.fail(str(error), begin)


def _read_question(cursor: Cursor, kind: str, width: int, number: int, begin: int) -> _Question:
    key = cursor.integer("key of a question", -1, width - 1)
    if kind == "SE":
        place = cursor.position
        values = np.unique(cursor.integers("values of a split"))
        if values.size and not -(2**31) <= values[0] <= values[-1] < 2**31:
            cursor.fail("values of a split: expected integers of 32 bits", place)
        cursor.expect("{")
        return _Question(number, key, 2, frozenset(values.tolist()), [])
    size = cursor.integer("branches of a table", 0, 2**32 - 1)
    cursor.expect("(")
    if _BYTES_PER_BRANCH * size > cursor.left:
        cursor.fail(f"a table of {size} branches, {cursor.left} bytes are left", begin)
    return _Question(number, key, size, None, [])
