"""A decision tree from a phone in context to a pdf: Kaldi's event map.

A question is about one key: -1 is the pdf class, 0 to N - 1 are the places of the context window (phone ids, 0 =
no phone). A table node has one branch for each value; a split node has a yes branch for the values of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fsachain.brief import brief
from fsachain.errors import GraphError

PDF_CLASS = -1
NO_BRANCH = -1
Path = dict[int, frozenset[int]]  # values by key


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


def _branches(node: Node) -> tuple[int, ...]:
    if isinstance(node, Leaf):
        return ()
    return node.branches if isinstance(node, Table) else (node.yes, node.no)


def _branch(node: Table | Split, value: int) -> int:
    if isinstance(node, Split):
        return node.yes if value in node.values else node.no
    return node.branches[value] if 0 <= value < len(node.branches) else NO_BRANCH


@dataclass(frozen=True)
class DecisionTree:
    """Nodes, the root first; a branch leads to a node further on, so that every walk ends."""

    nodes: Sequence[Node]

    __repr__ = brief

    def __post_init__(self) -> None:
        nodes = tuple(self.nodes)
        object.__setattr__(self, "nodes", nodes)
        if not nodes:
            raise GraphError("nodes is empty: a decision tree needs at least a leaf")
        for number, node in enumerate(nodes):
            if isinstance(node, Leaf) and node.pdf < 0:
                raise GraphError(f"nodes[{number}] is a leaf of pdf {node.pdf}: expected a pdf >= 0")
            for branch in _branches(node):
                if branch != NO_BRANCH and not number < branch < len(nodes):
                    raise GraphError(
                        f"nodes[{number}] leads to node {branch}: expected one in ({number}, {len(nodes)})"
                    )

    @property
    def num_pdfs(self) -> int:
        return max((node.pdf for node in self.nodes if isinstance(node, Leaf)), default=-1) + 1

    def question_keys(self) -> Iterator[int]:
        return (node.key for node in self.nodes if not isinstance(node, Leaf))

    def pdf(self, window: Sequence[int], pdf_class: int) -> int | None:
        """The pdf of `pdf_class` in a window of phone ids; None where the tree has no answer."""
        node = self.nodes[0]
        while not isinstance(node, Leaf):
            branch = _branch(node, pdf_class if node.key == PDF_CLASS else window[node.key])
            if branch == NO_BRANCH:
                return None
            node = self.nodes[branch]
        return node.pdf

    def paths(self, everything: Path) -> Iterator[tuple[int, Path]]:
        """Each leaf's pdf, and the values by key that lead to it; `everything`: all values of each key."""
        stack = [(0, everything)]
        while stack:
            number, path = stack.pop()
            node = self.nodes[number]
            if isinstance(node, Leaf):
                yield node.pdf, path
                continue
            by_branch: dict[int, set[int]] = {}
            for value in path[node.key]:
                by_branch.setdefault(_branch(node, value), set()).add(value)
            by_branch.pop(NO_BRANCH, None)
            stack += [(branch, path | {node.key: frozenset(values)}) for branch, values in by_branch.items()]

    def to_columns(self) -> tuple[list[int], list[int]]:
        """The nodes as two columns of integers, for files.

        The first has of a leaf its pdf, of another node -1 - the place in the second where its row begins. A row is, of a
        table: key, number of branches, branches; of a split: key, -1 - number of values, yes, no, values in rising order.
        """
        heads: list[int] = []
        rows: list[int] = []
        for node in self.nodes:
            if isinstance(node, Leaf):
                heads.append(node.pdf)
                continue
            heads.append(-1 - len(rows))
            if isinstance(node, Table):
                rows += (node.key, len(node.branches), *node.branches)
            else:
                rows += (node.key, -1 - len(node.values), node.yes, node.no, *sorted(node.values))
        return heads, rows

    @classmethod
    def from_columns(cls, heads: Iterable[int], rows: Sequence[int]) -> DecisionTree:
        """The tree of `to_columns`; columns that it does not write are a GraphError."""
        nodes: list[Node] = []
        end = 0
        for number, head in enumerate(heads):
            if head >= 0:
                nodes.append(Leaf(head))
                continue
            begin = end
            if head != -1 - begin or begin + 2 > len(rows):
                raise GraphError(
                    f"nodes[{number}] has its row at {-1 - head}: expected {begin}, within the rows"
                )
            key, size = rows[begin], rows[begin + 1]
            end = begin + 2 + (size if size >= 0 else 1 - size)
            if end > len(rows):
                break
            if size >= 0:
                nodes.append(Table(key, tuple(rows[begin + 2 : end])))
                continue
            yes, no, *values = rows[begin + 2 : end]
            if any(value >= following for value, following in pairwise(values)):
                raise GraphError(f"nodes[{number}] is a split whose values do not rise")
            nodes.append(Split(key, frozenset(values), yes, no))
        if end != len(rows):
            raise GraphError(f"the rows of nodes have {end} numbers: expected {len(rows)}")
        return cls(nodes)
