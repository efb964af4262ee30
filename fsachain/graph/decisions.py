"""A decision tree from a phone in context to a pdf: Kaldi's event map, as nodes in a row.

A question is about one key: -1 is the pdf class, 0 to N - 1 are the places of the context window (phone ids, 0 =
no phone). A table node has one branch for each value; a split node has a yes branch for the values of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fsachain.errors import GraphError
from fsachain.graph.tree_nodes import NO_BRANCH, Node, Nodes, Split

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
