"""Kaldi's `tree` (context dependency) as a decision tree, and with a transition model as a `ContextTree`.

Format: Kaldi's tree/context-dep.cc and tree/event-map.cc.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from fsachain.errors import DataError, GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.decisions import NO_BRANCH, DecisionTree, Leaf, Node, Split, Table
from fsachain.kaldi.stream import Cursor, open_file
from fsachain.kaldi.transitions import TransitionModel, read_transition_model

MAX_WIDTH = 16


class ContextDependency(NamedTuple):
    """What a `tree` file holds: N, P and the decision tree."""

    context_width: int
    central_position: int
    decisions: DecisionTree


def read_tree(path: str | os.PathLike[str]) -> ContextDependency:
    """Read a `tree` file, binary or text.

    Raises:
        DataError: no tree, cut short, or with a question about a place outside the window.
    """
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

    Args:
        tree: the `tree` file; any context width.
        model: `0.trans_mdl` or `final.mdl`, whose head is the transition model.
        phones: phone names in id order, as `read_phones` gives them.

    Raises:
        DataError: the files cannot be read or do not belong together.
        GraphError: a topology that `Topology` cannot be; see `TransitionModel.topology`.
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
        tuple(phones),
        transitions.topology(),
        found.context_width,
        tuple((phone,) for phone in range(1, len(phones) + 1)),
        frozenset(),
        found.decisions,
        found.central_position,
    )
    _check_belongs(context, transitions, f"{tree} and {model}")
    return context


def _check_belongs(context: ContextTree, transitions: TransitionModel, where: str) -> None:
    """Every pdf of the transition model stands at a leaf of the same phone."""
    phones: dict[int, set[int]] = {}
    for pdf, path in context.contexts():
        phones.setdefault(pdf, set()).update(path[context.central_position])
    for entry in transitions.tuples:
        for pdf in (entry.forward_pdf, entry.self_loop_pdf):
            if entry.phone not in phones.get(pdf, ()):
                raise DataError(
                    f"{where}: pdf {pdf} belongs to phone {entry.phone} in the model and not in the tree; they do "
                    "not belong together"
                )


class _Open:
    """A table or split that waits for its branches."""

    def __init__(self, number: int, key: int, values: frozenset[int] | None, size: int) -> None:
        self.number, self.key, self.values, self.size = number, key, values, size
        self.branches: list[int] = []

    @property
    def end(self) -> str:
        return ")" if self.values is None else "}"

    def node(self) -> Node:
        if self.values is None:
            return Table(self.key, tuple(self.branches))
        return Split(self.key, self.values, *self.branches)


def _read_decisions(cursor: Cursor, width: int) -> DecisionTree:
    """Nodes in the order they are met, by an own stack: a file may nest them as deep as it is long."""
    begin = cursor.position
    nodes: list[Node] = []
    open_nodes: list[_Open] = []
    while True:
        while open_nodes and len(open_nodes[-1].branches) == open_nodes[-1].size:
            done = open_nodes.pop()
            cursor.expect(done.end)
            nodes[done.number] = done.node()
        if nodes and not open_nodes:
            break
        number, waiting = _read_node(cursor, nodes, width, bool(open_nodes) and open_nodes[-1].values is None)
        if open_nodes:
            open_nodes[-1].branches.append(number)
        if waiting is not None:
            open_nodes.append(waiting)
    try:
        return DecisionTree(tuple(nodes))
    except GraphError as error:
        cursor.fail(str(error), begin)


def _read_node(cursor: Cursor, nodes: list[Node], width: int, may_be_null: bool) -> tuple[int, _Open | None]:
    """Append the next node; where it has branches, a leaf holds its place until they are read."""
    begin = cursor.position
    kind = cursor.expect("CE", "TE", "SE", *(("NULL",) if may_be_null else ()))
    if kind == "NULL":
        return NO_BRANCH, None
    number = len(nodes)
    if kind == "CE":
        nodes.append(Leaf(cursor.integer("pdf", 0)))
        return number, None
    nodes.append(Leaf(0))
    key = cursor.integer("key of a question", -1, width - 1)
    if kind == "SE":
        values = frozenset(cursor.integers("values of a split").tolist())
        cursor.expect("{")
        return number, _Open(number, key, values, 2)
    size = cursor.integer("branches of a table", 0, 2**32 - 1)
    cursor.expect("(")
    if 4 * size > cursor.left:
        cursor.fail(f"a table of {size} branches, {cursor.left} bytes are left", begin)
    return number, _Open(number, key, None, size)
