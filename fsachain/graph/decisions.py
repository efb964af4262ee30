"""A decision tree from a phone in context to a pdf: Kaldi's event map, as a flat tuple of nodes.

A question is about one key: -1 is the pdf class, 0 to N - 1 are the places of the context window (phone ids, 0 =
no phone). A table node has one branch for each value; a split node has a yes branch for the values of a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsachain.errors import GraphError

PDF_CLASS = -1
NO_BRANCH = -1


class Leaf(NamedTuple):
    """The answer: a pdf."""

    pdf: int


class Table(NamedTuple):
    """Branch `branches[value of key]`, node numbers; `NO_BRANCH` or beyond the end: no answer."""

    key: int
    branches: tuple[int, ...]


class Split(NamedTuple):
    """Branch `yes` if the value of `key` is among `values`, else `no`; node numbers."""

    key: int
    values: frozenset[int]
    yes: int
    no: int


Node = Leaf | Table | Split
Path = dict[int, frozenset[int]]


@dataclass(frozen=True)
class DecisionTree:
    """Nodes, the root first; a branch leads to a node further on, so that every walk ends.

    Raises:
        GraphError: no node, a branch that does not lead further on, or a negative pdf.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise GraphError("nodes is empty: a decision tree needs at least a leaf")
        for number, node in enumerate(self.nodes):
            if isinstance(node, Leaf):
                if node.pdf < 0:
                    raise GraphError(f"nodes[{number}] is a leaf of pdf {node.pdf}: expected a pdf >= 0")
                continue
            for branch in _branches(node):
                if branch != NO_BRANCH and not number < branch < len(self.nodes):
                    raise GraphError(
                        f"nodes[{number}] leads to node {branch}: expected one in ({number}, {len(self.nodes)})"
                    )

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf of a leaf."""
        return max((node.pdf for node in self.nodes if isinstance(node, Leaf)), default=-1) + 1

    @property
    def keys(self) -> frozenset[int]:
        """Keys that some question is about."""
        return frozenset(node.key for node in self.nodes if not isinstance(node, Leaf))

    def pdf(self, window: Sequence[int], pdf_class: int) -> int | None:
        """The pdf of `pdf_class` in a window of phone ids; None where the tree has no answer."""
        number = 0
        while True:
            node = self.nodes[number]
            if isinstance(node, Leaf):
                return node.pdf
            value = pdf_class if node.key == PDF_CLASS else window[node.key]
            if isinstance(node, Split):
                number = node.yes if value in node.values else node.no
                continue
            number = node.branches[value] if 0 <= value < len(node.branches) else NO_BRANCH
            if number == NO_BRANCH:
                return None

    def paths(self, everything: Path) -> Iterator[tuple[int, Path]]:
        """Each leaf's pdf, and the values by key that lead to it; `everything`: all values of each key."""
        stack = [(0, everything)]
        while stack:
            number, path = stack.pop()
            node = self.nodes[number]
            if isinstance(node, Leaf):
                yield node.pdf, path
                continue
            allowed = path[node.key]
            if isinstance(node, Split):
                chosen = [(node.yes, allowed & node.values), (node.no, allowed - node.values)]
            else:
                by_branch: dict[int, set[int]] = {}
                for value in allowed:
                    if value < len(node.branches) and node.branches[value] != NO_BRANCH:
                        by_branch.setdefault(node.branches[value], set()).add(value)
                chosen = [(branch, frozenset(values)) for branch, values in by_branch.items()]
            stack += [(branch, path | {node.key: values}) for branch, values in chosen if values]

    def to_list(self) -> list[list[Any]]:
        """A form that JSON can hold; `from_list` reads it."""
        rows: list[list[Any]] = []
        for node in self.nodes:
            if isinstance(node, Leaf):
                rows.append(["leaf", node.pdf])
            elif isinstance(node, Table):
                rows.append(["table", node.key, list(node.branches)])
            else:
                rows.append(["split", node.key, sorted(node.values), node.yes, node.no])
        return rows

    @classmethod
    def from_list(cls, rows: Sequence[Sequence[Any]]) -> DecisionTree:
        """The tree that `to_list` described; a malformed row raises KeyError, TypeError or ValueError."""
        return cls(tuple(_node(*row) for row in rows))


def _node(kind: str, *fields: Any) -> Node:
    if kind == "leaf":
        return Leaf(int(fields[0]))
    if kind == "table":
        return Table(int(fields[0]), tuple(map(int, fields[1])))
    if kind == "split":
        return Split(int(fields[0]), frozenset(map(int, fields[1])), int(fields[2]), int(fields[3]))
    raise ValueError(f"node of kind {kind!r}: expected leaf, table or split")


def _branches(node: Table | Split) -> tuple[int, ...]:
    return node.branches if isinstance(node, Table) else (node.yes, node.no)
