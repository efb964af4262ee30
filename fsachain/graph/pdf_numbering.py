"""Phones by their names, in sets; and left biphones tied by how often they occur, as a decision tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fsachain.errors import GraphError
from fsachain.graph.decisions import PDF_CLASS, DecisionTree
from fsachain.graph.tree_nodes import Leaf, Node, Table

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BiphoneCounts:
    """How often phones stand alone and after others, which `ContextTree.tied_biphone` ties by.

    Attributes:
        biphones: counts by (left phone id, phone id); left 0 is the start of an utterance.
        monophones: counts by phone id.
    """

    biphones: Mapping[tuple[int, int], int]
    monophones: Mapping[int, int]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> BiphoneCounts:
        """Counts of phone sequences, such as `lm_phones` draws."""
        biphones: dict[tuple[int, int], int] = {}
        monophones: dict[int, int] = {}
        for phones in sequences:
            for left, phone in zip((0, *phones), phones, strict=False):
                biphones[left, phone] = biphones.get((left, phone), 0) + 1
                monophones[phone] = monophones.get(phone, 0) + 1
        return cls(biphones, monophones)


def named_ids(phones: Sequence[str], names: Iterable[str], argument: str) -> frozenset[int]:
    """Ids (place in `phones`, from 1) of the phones called `names`; errors name `argument`."""
    ids = {name: index + 1 for index, name in enumerate(phones)}
    given = list(names)
    for name in given:
        if name not in ids:
            raise GraphError(f"{argument} names the phone {name!r}, which is not among the {len(ids)} phones")
    return frozenset(ids[name] for name in given)


def named_partition(phones: Sequence[str], shared: Iterable[Iterable[str]] | None) -> Sets:
    """Sets of phone ids: those of `shared` in order of their first phone, all other phones alone."""
    given = [
        tuple(sorted(members))
        for members in (named_ids(phones, s, "shared") for s in shared or ())
        if members
    ]
    named = {phone for members in given for phone in members}
    alone: list[tuple[int, ...]] = [(phone,) for phone in range(1, len(phones) + 1) if phone not in named]
    return tuple(sorted(given + alone))


def _independent(phones: tuple[int, ...], context_independent: frozenset[int]) -> bool:
    independent = [phone in context_independent for phone in phones]
    if any(independent) and not all(independent):
        raise GraphError(f"shared set of the phone ids {list(phones)} is only partly context independent")
    return all(independent)


def tie_biphones(
    shared: Sets,
    context_independent: frozenset[int],
    num_classes: int,
    counts: BiphoneCounts,
    min_biphone_count: int,
    min_monophone_count: int,
) -> DecisionTree:
    """Left biphones tied by counts, numbered as Kaldi's gmm-init-biphone does.

    Context-independent phones come first. Each other phone set begins with its pdfs for "no left phone"; then
    each left set in order gets pdfs of its own if the pair was seen `min_biphone_count` times, else those of
    the phone set whatever its left if that was seen more than `min_monophone_count` times, else those that all
    rare phones share. The latter two are numbered where they are first needed.
    """
    num_phones = sum(len(phones) for phones in shared)
    nodes: list[Node] = [Table(1, ())]
    branches = [-1] * (num_phones + 1)
    context = _Contexts(nodes, num_classes)
    independent = [phones for phones in shared if _independent(phones, context_independent)]
    for phones in independent:
        own = context.new()
        for phone in phones:
            branches[phone] = own
    rare = -1
    for phones in (phones for phones in shared if phones not in independent):
        own = -1
        by_left = [context.new()] + [-1] * num_phones
        seen = sum(counts.monophones.get(phone, 0) for phone in phones)
        for lefts in shared:
            pairs = sum(counts.biphones.get((left, phone), 0) for left in lefts for phone in phones)
            if pairs >= min_biphone_count:
                chosen = context.new()
            elif seen > min_monophone_count:
                chosen = own = context.new() if own < 0 else own
            else:
                chosen = rare = context.new() if rare < 0 else rare
            for left in lefts:
                by_left[left] = chosen
        nodes.append(Table(0, tuple(by_left)))
        for phone in phones:
            branches[phone] = len(nodes) - 1
    nodes[0] = Table(1, tuple(branches))
    return _root_first(nodes)


class _Contexts:
    """Appends nodes that ask for the pdf class, with pdfs of their own."""

    def __init__(self, nodes: list[Node], num_classes: int) -> None:
        self.nodes, self.num_classes, self.next_pdf = nodes, num_classes, 0

    def new(self) -> int:
        first = len(self.nodes)
        self.nodes += [Leaf(self.next_pdf + pdf_class) for pdf_class in range(self.num_classes)]
        self.next_pdf += self.num_classes
        self.nodes.append(Table(PDF_CLASS, tuple(range(first, first + self.num_classes))))
        return len(self.nodes) - 1


def _root_first(nodes: list[Node]) -> DecisionTree:
    """The tree with every branch leading further on: the root, then the others from last to first."""
    last = len(nodes)

    def place(number: int) -> int:
        return number if number <= 0 else last - number

    def move(node: Node) -> Node:
        return Table(node.key, tuple(map(place, node.branches))) if isinstance(node, Table) else node

    return DecisionTree((move(nodes[0]), *(move(node) for node in reversed(nodes[1:]))))
