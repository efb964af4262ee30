"""A decision tree from a phone in context to a pdf: Kaldi's event map, as nodes in a row.

A question is about one key: -1 is the pdf class, 0 to N - 1 are the places of the context window (phone ids, 0 =
no phone). A table node has one branch for each value; a split node has a yes branch for the values of a set.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fsachain.errors import GraphError
from fsachain.on_access import OnAccess

# The nodes of a decision tree, and many of them as two columns of integers.
#
# A tree of tens of thousands of pdfs has twice as many nodes. As Python objects each takes a hundred bytes
# and more; here a leaf is four, and a table or split four for each of its numbers.

NO_BRANCH = -1
_HEAD = 2  # numbers of a row before its branches: the key, and the size


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


class Nodes(OnAccess[Node]):
    """Nodes in order.

    Attributes:
        heads: of a leaf its pdf; of another node -1 - the place in `rows` where its row begins.
        rows: one row behind the other, in order of the nodes. Of a table: key, number of branches, branches. Of a split:
            key, -1 - number of values, branches yes and no, values in rising order.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.heads, self.rows = array("i"), array("i")
        for node in nodes:
            if isinstance(node, Leaf):
                self.add_leaf(node.pdf)
            elif isinstance(node, Table):
                self.add_table(node.key, node.branches)
            else:
                self.add_split(node.key, sorted(node.values), node.yes, node.no)

    @classmethod
    def of_columns(cls, heads: Iterable[int], rows: Iterable[int]) -> Nodes:
        """The nodes whose columns are these 32-bit integers, which are copied.

        Raises:
            GraphError: rows that do not follow each other, a row cut short, or values of a split that do not rise.
        """
        nodes = cls()
        nodes.heads.extend(heads)
        nodes.rows.extend(rows)
        end = 0
        for number, head in enumerate(nodes.heads):
            if head < 0:
                if head != -1 - end or end + _HEAD > len(nodes.rows):
                    raise GraphError(
                        f"nodes[{number}] has its row at {-1 - head}: expected {end}, within the rows"
                    )
                end = nodes._end(number)
                values = memoryview(nodes.rows)[nodes.branches(number).stop : end]
                if any(value >= following for value, following in pairwise(values)):
                    raise GraphError(f"nodes[{number}] is a split whose values do not rise")
        if end != len(nodes.rows):
            raise GraphError(f"the rows of nodes have {end} numbers: expected {len(nodes.rows)}")
        return nodes

    def columns(self) -> tuple[list[int], list[int]]:
        """What `of_columns` takes."""
        return self.heads.tolist(), self.rows.tolist()

    def add_leaf(self, pdf: int) -> None:
        """One more node, a leaf.

        Raises:
            GraphError: a negative pdf.
        """
        if pdf < 0:
            raise GraphError(f"nodes[{len(self)}] is a leaf of pdf {pdf}: expected a pdf >= 0")
        self.heads.append(pdf)

    def add_table(self, key: int, branches: Sequence[int]) -> None:
        """One more node, a table."""
        self.heads.append(-1 - len(self.rows))
        self.rows.extend((key, len(branches)))
        self.rows.extend(branches)

    def add_split(self, key: int, values: Sequence[int], yes: int = NO_BRANCH, no: int = NO_BRANCH) -> None:
        """One more node, a split; values in rising order, each once."""
        self.heads.append(-1 - len(self.rows))
        self.rows.extend((key, -1 - len(values), yes, no))
        self.rows.extend(values)

    def is_leaf(self, number: int) -> bool:
        """Whether a node is an answer, not a question."""
        return self.heads[number] >= 0

    def is_table(self, number: int) -> bool:
        """Whether a node is a question with a branch for each value."""
        head = self.heads[number]
        return head < 0 and self.rows[_HEAD - 2 - head] >= 0

    def key(self, number: int) -> int:
        """What the question of a table or split is about."""
        return self.rows[-1 - self.heads[number]]

    def keys(self) -> Iterator[int]:
        """What each table and split is about, in order of the nodes."""
        return (self.key(number) for number in range(len(self)) if not self.is_leaf(number))

    def branches(self, number: int) -> range:
        """Where the branches of a table or split stand in `rows`."""
        begin = _HEAD - 1 - self.heads[number]
        size = self.rows[begin - 1]
        return range(begin, begin + (size if size >= 0 else 2))

    def follow(self, number: int, value: int) -> int:
        """The node that a table or split leads to from a value of its key, or `NO_BRANCH`."""
        rows, begin = self.rows, _HEAD - 1 - self.heads[number]
        size = rows[begin - 1]
        if size >= 0:
            return rows[begin + value] if 0 <= value < size else NO_BRANCH
        end = begin + 1 - size
        place = bisect_left(rows, value, begin + 2, end)
        return rows[begin] if place < end and rows[place] == value else rows[begin + 1]

    def _end(self, number: int) -> int:
        """Where the row of a table or split ends."""
        branches = self.branches(number)
        return branches.stop + max(0, -1 - self.rows[branches.start - 1])

    def __len__(self) -> int:
        return len(self.heads)

    def at(self, number: int) -> Node:
        """The node of a number in [0, len)."""
        if self.is_leaf(number):
            return Leaf(self.heads[number])
        branches = self.branches(number)
        leads_to = self.rows[branches.start : branches.stop]
        if self.is_table(number):
            return Table(self.key(number), tuple(leads_to))
        values = self.rows[branches.stop : self._end(number)]
        return Split(self.key(number), frozenset(values), *leads_to)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Nodes):
            return self.heads == other.heads and self.rows == other.rows
        return NotImplemented

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"Nodes([{shown}{', ...' if len(self) > 5 else ''}]: {len(self)})"


PDF_CLASS = -1
Path = dict[int, frozenset[int]]


@dataclass(frozen=True, init=False)
class DecisionTree:
    """Nodes, the root first; a branch leads to a node further on, so that every walk ends.

    Attributes:
        nodes: as columns, whatever sequence of `Leaf`, `Table` and `Split` was given.

    Raises:
        GraphError: no node, a branch that does not lead further on, or a negative pdf.
    """

    nodes: Nodes

    def __init__(self, nodes: Iterable[Node]) -> None:
        nodes = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
        object.__setattr__(self, "nodes", nodes)
        if not nodes:
            raise GraphError("nodes is empty: a decision tree needs at least a leaf")
        for number in range(len(nodes)):
            for place in () if nodes.is_leaf(number) else nodes.branches(number):
                branch = nodes.rows[place]
                if branch != NO_BRANCH and not number < branch < len(nodes):
                    raise GraphError(
                        f"nodes[{number}] leads to node {branch}: expected one in ({number}, {len(nodes)})"
                    )

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf of a leaf."""
        return max(max(self.nodes.heads), -1) + 1

    def pdf(self, window: Sequence[int], pdf_class: int) -> int | None:
        """The pdf of `pdf_class` in a window of phone ids; None where the tree has no answer."""
        nodes, number = self.nodes, 0
        while (pdf := nodes.heads[number]) < 0:
            key = nodes.key(number)
            number = nodes.follow(number, pdf_class if key == PDF_CLASS else window[key])
            if number == NO_BRANCH:
                return None
        return pdf

    def paths(self, everything: Path) -> Iterator[tuple[int, Path]]:
        """Each leaf's pdf, and the values by key that lead to it; `everything`: all values of each key."""
        stack = [(0, everything)]
        while stack:
            number, path = stack.pop()
            if self.nodes.is_leaf(number):
                yield self.nodes.heads[number], path
                continue
            key = self.nodes.key(number)
            shares = self._shares(number, path[key])
            stack += [(branch, path | {key: values}) for branch, values in shares if values]

    def _shares(self, number: int, allowed: frozenset[int]) -> list[tuple[int, frozenset[int]]]:
        """The branches of a table or split, and which of the allowed values of its key lead there."""
        if not self.nodes.is_table(number):
            split = self.nodes[number]
            assert isinstance(split, Split)
            return [(split.yes, allowed & split.values), (split.no, allowed - split.values)]
        by_branch: dict[int, set[int]] = {}
        for value in allowed:
            by_branch.setdefault(self.nodes.follow(number, value), set()).add(value)
        by_branch.pop(NO_BRANCH, None)
        return [(branch, frozenset(values)) for branch, values in by_branch.items()]
