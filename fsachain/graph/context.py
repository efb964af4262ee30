"""Which pdf a frame uses: (phone, its context, pdf class of the topology) give a column of the network output.

`ContextTree.num_pdfs` is the one source of P. Phone ids count from 1 in the order of `phones`; 0 in a context
means that there is no phone (the edges of the utterance). Trees are monophone, left biphone (tied or not), or a
decision tree over a window of any width, as Kaldi's `tree` holds it. Without tying pdfs are counted in Kaldi's
order: phone sets in order, within one set the left sets in order ("none" first), within one context the pdf
classes in order. A topology with a blank takes pdf 0 for the blank and shifts the rest by one.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, count, pairwise
from typing import Any, NamedTuple

import numpy as np

from fsachain.errors import GraphError, brief, counted
from fsachain.files import parse_json, replacing
from fsachain.graph.archive import Arrays, numbers, offsets, read_archive, unique_names
from fsachain.graph.lexicon import phone_difference
from fsachain.graph.topology import Topology
from fsachain.notebook import MOST_ROWS, html_table
from fsachain.opaque import opaque

NPZ_FORMAT = "fsachain-context-tree-2"
_LONGEST_TOPOLOGY = 1 << 14  # letters of JSON: hundreds of states
_MOST_PDFS = 2**31 - 1
_MOST_CONTEXTS = 1 << 27  # of a table of them: half a gibibyte, or two thousand phones with sixteen classes
_SHOWN = 20  # ids of a message

Sets = tuple[tuple[int, ...], ...]


class PdfContext(NamedTuple):
    """What shares one pdf: phone ids, left phone ids (0 = none; empty = any) and the pdf class.

    The blank pdf of a CTC topology has no phones. In a decision tree the two sets are those of all leaves of the
    pdf, and the class is the least of them.
    """

    phones: tuple[int, ...]
    lefts: tuple[int, ...]
    pdf_class: int


def _is_independent(phones: tuple[int, ...], independent: frozenset[int]) -> bool:
    count = len(independent.intersection(phones))
    if 0 < count < len(phones):
        raise GraphError(
            f"shared set of the phone ids {list(phones[:_SHOWN])} is only partly context independent"
        )
    return count > 0


@dataclass(frozen=True)
class BiphoneCounts:
    """How often phones stand alone and after others, which `ContextTree.tied_biphone` ties by.

    Attributes:
        biphones: counts by (left phone id, phone id); left 0 is the start of an utterance.
        monophones: counts by phone id.
    """

    biphones: Mapping[tuple[int, int], int]
    monophones: Mapping[int, int]

    __repr__ = brief

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> BiphoneCounts:
        """Counts of phone sequences, such as `lm_phones` draws."""
        biphones, monophones = Counter[tuple[int, int]](), Counter[int]()
        for phones in sequences:
            biphones.update(zip((0, *phones), phones, strict=False))
            monophones.update(phones)
        return cls(dict(biphones), dict(monophones))


def named_ids(phones: Sequence[str], names: Iterable[str], argument: str) -> frozenset[int]:
    """Ids of the phones called `names`; errors name `argument`."""
    ids = {name: index + 1 for index, name in enumerate(phones)}
    given = list(names)
    for name in given:
        if name not in ids:
            raise GraphError(
                f"{argument} names the phone {name!r}, which is not among the {counted(len(ids), 'phone')}"
            )
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
    nodes: list[Node] = []  # branches lead back
    branches = [-1] * (num_phones + 1)
    pdfs = count()

    def new() -> int:
        """A node that asks for the pdf class, behind a leaf with a pdf of its own for each class."""
        first = len(nodes)
        nodes.extend(Leaf(next(pdfs)) for _ in range(num_classes))
        nodes.append(Table(PDF_CLASS, tuple(range(first, first + num_classes))))
        return len(nodes) - 1

    independent = [phones for phones in shared if _is_independent(phones, context_independent)]
    for phones in independent:
        own = new()
        for phone in phones:
            branches[phone] = own
    rare = -1
    for phones in (phones for phones in shared if phones not in independent):
        own = -1
        by_left = [new()] + [-1] * num_phones
        seen = sum(counts.monophones.get(phone, 0) for phone in phones)
        for lefts in shared:
            pairs = sum(counts.biphones.get((left, phone), 0) for left in lefts for phone in phones)
            if pairs >= min_biphone_count:
                chosen = new()
            elif seen > min_monophone_count:
                chosen = own = new() if own < 0 else own
            else:
                chosen = rare = new() if rare < 0 else rare
            for left in lefts:
                by_left[left] = chosen
        nodes.append(Table(0, tuple(by_left)))
        for phone in phones:
            branches[phone] = len(nodes) - 1
    nodes.append(Table(1, tuple(branches)))
    last = len(nodes) - 1
    for number, node in enumerate(nodes):
        if isinstance(node, Table):
            ahead = (branch if branch < 0 else last - branch for branch in node.branches)
            nodes[number] = Table(node.key, tuple(ahead))
    return DecisionTree(nodes[::-1])


@opaque
@dataclass(frozen=True, eq=False)
class ContextTree:
    """Map (phones of a window, pdf class) -> pdf.

    Attributes:
        phones: names of the phones; id = index + 1.
        topology: HMM topology that all phones share.
        context_width: N, phones in the window: 1 for monophones, 2 for biphones.
        shared: partition of the phone ids; the phones of one set share their pdfs, as phones and as left
            context. Without meaning where there are `decisions`.
        context_independent: phone ids whose pdfs ignore the left phone (biphone only).
        decisions: the decision tree that gives the pdfs; None for trees without tying.
        central_position: place in the window of the phone that the pdfs are for; N - 1 unless given.
        num_pdfs: number of pdfs P, the width of the network output.
    """

    phones: Sequence[str]
    topology: Topology
    context_width: int
    shared: Sequence[tuple[int, ...]]
    context_independent: Collection[int] = frozenset()
    decisions: DecisionTree | None = None
    central_position: int = -1
    num_pdfs: int = field(init=False)
    _first_pdfs: list[int] = field(init=False, repr=False)  # without decisions: that of each shared set
    _hmm_pdfs: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = field(
        init=False, repr=False, default_factory=dict
    )

    __repr__ = brief

    def _repr_html_(self) -> str:
        """What the first pdfs stand for, for notebooks."""
        rows = []
        for pdf in range(min(self.num_pdfs, MOST_ROWS)):
            phones, lefts, pdf_class = self.describe(pdf)
            spoken = self._named(phones) or "(blank)"
            rows.append((pdf, spoken, self._named(lefts) or "(any)", pdf_class))
        title = f"ContextTree: {counted(self.num_phones, 'phone')}, {counted(self.num_pdfs, 'pdf')}"
        return html_table(("pdf", "phones", "after", "class"), rows, num_rows=self.num_pdfs, title=title)

    def _named(self, phones: Sequence[int]) -> str:
        return " ".join(("(none)", *self.phones)[phone] for phone in phones[:MOST_ROWS])

    def __post_init__(self) -> None:
        phones, independent = tuple(self.phones), frozenset(self.context_independent)
        shared = tuple(map(tuple, self.shared))
        distinct = len(set(phones))
        if not phones or distinct != len(phones):
            raise GraphError(
                f"phones has {counted(len(phones), 'name')}, {distinct} distinct; expected equal"
            )
        width = self.context_width
        centre = width - 1 if self.central_position < 0 else self.central_position
        self._check_context(width, centre)
        members = list(chain.from_iterable(shared))
        if independent and (min(independent) < 1 or max(independent) > len(phones)):
            raise GraphError(
                f"context_independent holds {min(independent)} to {max(independent)}: expected ids in [1, {len(phones)}]"
            )
        if not all(shared):
            raise GraphError("shared has an empty set")
        if sorted(members) != list(range(1, len(phones) + 1)):
            raise GraphError(
                f"shared sets hold the phone ids {sorted(members)[:_SHOWN]}: expected each of 1..{len(phones)} once"
            )
        classes = self.topology.num_pdf_classes
        ignores_left = [_is_independent(members, independent) or width == 1 for members in shared]
        in_set = (classes if ignores else classes * (len(shared) + 1) for ignores in ignores_left)
        first_pdfs = list(accumulate(in_set, initial=0 if self.topology.blank == "none" else 1))
        num_pdfs = first_pdfs[-1] if self.decisions is None else self.decisions.num_pdfs
        if num_pdfs > _MOST_PDFS:
            raise GraphError(
                f"{counted(len(phones), 'phone', verb='have')} {counted(num_pdfs, 'pdf')}; expected at most {_MOST_PDFS}"
            )
        is_table = self.decisions is not None and width == 2 and centre == 1
        if is_table and (len(phones) + 1) ** 2 * classes > _MOST_CONTEXTS:
            raise GraphError(
                f"{counted(len(phones), 'phone')} after each other in {counted(classes, 'pdf class')}: expected at "
                f"most {_MOST_CONTEXTS} "
                "contexts of a decision tree"
            )
        for name, value in (
            ("phones", phones),
            ("central_position", centre),
            ("shared", shared),
            ("context_independent", independent),
            ("_first_pdfs", first_pdfs),
            ("num_pdfs", num_pdfs),
        ):
            object.__setattr__(self, name, value)

    def _check_context(self, width: int, centre: int) -> None:
        if self.decisions is None and not (width in (1, 2) and centre == width - 1):
            raise GraphError(
                f"context_width = {width}: expected 1 (monophone) or 2 (left biphone), or a decision tree"
            )
        if not 0 <= centre < width:
            raise GraphError(f"central_position = {centre}: expected a place in the window, [0, {width})")
        if (width > 1 or self.decisions is not None) and self.topology.blank != "none":
            raise GraphError(
                "a topology with a blank has no left phone at hand: use ContextTree.monophone with it"
            )
        if self.decisions is not None:
            bad = min(
                (key for key in self.decisions.question_keys() if not PDF_CLASS <= key < width), default=None
            )
            if bad is not None:
                raise GraphError(
                    f"decisions ask for the place {bad} of a window of {counted(width, 'phone')}"
                )

    @classmethod
    def monophone(
        cls, phones: Sequence[str], topology: Topology, *, shared: Iterable[Iterable[str]] | None = None
    ) -> ContextTree:
        """One set of pdfs for each phone, or for each set of phone names in `shared`."""
        return cls(phones, topology, 1, named_partition(phones, shared))

    @classmethod
    def biphone(
        cls,
        phones: Sequence[str],
        topology: Topology,
        *,
        context_independent: Iterable[str] = (),
        shared: Iterable[Iterable[str]] | None = None,
    ) -> ContextTree:
        """One set of pdfs for each pair of left phone (or none) and phone: no tying.

        Args:
            phones: phone names in id order.
            topology: HMM topology, without blank.
            context_independent: names of phones whose pdfs ignore the left phone, such as the silence phone.
            shared: sets of phone names that share their pdfs and count as one left context.
        """
        independent = named_ids(phones, context_independent, "context_independent")
        return cls(phones, topology, 2, named_partition(phones, shared), independent)

    @classmethod
    def tied_biphone(
        cls,
        phones: Sequence[str],
        topology: Topology,
        counts: BiphoneCounts,
        *,
        min_biphone_count: int = 100,
        min_monophone_count: int = 20,
        context_independent: Iterable[str] = (),
        shared: Iterable[Iterable[str]] | None = None,
    ) -> ContextTree:
        """Left biphones; rare ones share the pdfs of their phone, and rare phones share one set of pdfs.

        The pdf ids are those of Kaldi's gmm-init-biphone; see `tie_biphones`.

        Args:
            phones: phone names in id order.
            topology: HMM topology, without blank.
            counts: of the training phones.
            min_biphone_count: a pair seen at least so often has pdfs of its own.
            min_monophone_count: a phone seen more often has pdfs of its own for its rare left phones.
            context_independent: names of phones whose pdfs ignore the left phone.
            shared: sets of phone names that share their pdfs and count as one left context.
        """
        sets = named_partition(phones, shared)
        independent = named_ids(phones, context_independent, "context_independent")
        classes = topology.num_pdf_classes
        tree = tie_biphones(sets, independent, classes, counts, min_biphone_count, min_monophone_count)
        return cls(phones, topology, 2, sets, independent, tree)

    @property
    def num_phones(self) -> int:
        """Number of phones; the largest phone id."""
        return len(self.phones)

    @property
    def is_narrow(self) -> bool:
        """The window is the phone, or the phone and its left neighbour."""
        return self.context_width <= 2 and self.central_position == self.context_width - 1

    @property
    def blank_pdf(self) -> int | None:
        """The pdf of the blank (0), or None for a topology without one."""
        return None if self.topology.blank == "none" else 0

    def pdf(self, phone: int, pdf_class: int, left: int = 0) -> int:
        """Pdf of `pdf_class` of phone id `phone` after phone id `left` (0: none; ignored by monophones)."""
        if not 1 <= phone <= self.num_phones or not 0 <= left <= self.num_phones:
            raise GraphError(
                f"phone {phone} after left phone {left}: expected [1, {self.num_phones}], left from 0"
            )
        return self.pdf_in((left, phone)[-self.context_width :], pdf_class)

    def pdf_in(self, window: Sequence[int], pdf_class: int) -> int:
        """Pdf of `pdf_class` of the central phone of a window of N phone ids; 0: no phone there.

        Raises:
            GraphError: another width, no such class, or a context that the decision tree has no answer for.
        """
        if not 0 <= pdf_class < self.topology.num_pdf_classes:
            raise GraphError(
                f"pdf_class = {pdf_class}: expected a class in [0, {self.topology.num_pdf_classes})"
            )
        if len(window) != self.context_width:
            raise GraphError(f"window {tuple(window)}: expected {counted(self.context_width, 'phone')}")
        pdf = None
        phone = window[self.central_position]
        if phone and self.decisions is not None:
            pdf = self.decisions.pdf(window, pdf_class)
        elif phone:
            number, left = self._set_of[phone], window[0] if self.context_width == 2 else 0
            rank = 1 + self._set_of[left] if left and not self._ignores_left(number) else 0
            pdf = self._first_pdfs[number] + rank * self.topology.num_pdf_classes + pdf_class
        if pdf is None:
            raise GraphError(f"the tree has no pdf for class {pdf_class} of the phones {tuple(window)}")
        return pdf

    def hmm_pdfs(self, phone: int, left: int = 0) -> tuple[tuple[int, int], ...]:
        """(entry pdf, self-loop pdf or -1) for each HMM state of `phone` after `left`."""
        return self.window_pdfs((left, phone)[-self.context_width :])

    def window_pdfs(self, window: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """(entry pdf, self-loop pdf or -1) for each HMM state of the central phone of a window."""
        known = self._hmm_pdfs.get(window)
        if known is None:
            known = self._hmm_pdfs[window] = tuple(
                (
                    self.pdf_in(window, s.entry_class),
                    -1 if s.loop_class is None else self.pdf_in(window, s.loop_class),
                )
                for s in self.topology.states
            )
        return known

    def left_class(self, phone: int) -> int:
        """A phone that stands for all that are the same left neighbour as `phone`; 0 for none."""
        if not phone:
            return 0
        return self.shared[self._set_of[phone]][0] if self.decisions is None else self._left_classes[phone]

    @cached_property
    def _set_of(self) -> dict[int, int]:
        return {phone: number for number, phones in enumerate(self.shared) for phone in phones}

    def _ignores_left(self, number: int) -> bool:
        return self.context_width == 1 or self.shared[number][0] in self.context_independent

    @cached_property
    def _left_classes(self) -> list[int]:
        """Of a tree of left biphones, by phone, the first phone after which all phones have the same pdfs."""
        pdfs = np.full(
            (self.num_phones + 1, self.num_phones + 1, self.topology.num_pdf_classes), -1, np.int32
        )
        for pdf, path in self.contexts():
            pdfs[np.ix_(*(list(path[key]) for key in (0, 1, PDF_CLASS)))] = pdf
        alike: dict[bytes, int] = {}
        return [0, *(alike.setdefault(row.tobytes(), phone) for phone, row in enumerate(pdfs[1:], 1))]

    def describe(self, pdf: int) -> PdfContext:
        """The phones, left phones and pdf class that `pdf` stands for."""
        if not 0 <= pdf < self.num_pdfs:
            raise GraphError(f"pdf = {pdf}: expected a pdf in [0, {self.num_pdfs})")
        return self._described[pdf]

    def equals(self, other: ContextTree) -> bool:
        """Both trees give every phone in every context the same pdfs."""
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def difference(
        self, other: ContextTree, where: tuple[str, str] = ("this tree", "the other")
    ) -> str | None:
        """The first phone, size or pdf in which the trees differ, which are called as `where` says; None: they are equal."""
        if self.equals(other):
            return None
        one, two = where
        phones = phone_difference(self.phones, other.phones, where)
        if phones is not None:
            return phones
        for what, ours, theirs in (
            (
                "the window of a pdf",
                counted(self.context_width, "phone"),
                counted(other.context_width, "phone"),
            ),
            ("the number of pdfs", self.num_pdfs, other.num_pdfs),
            ("the topology", self.topology.fingerprint, other.topology.fingerprint),
        ):
            if ours != theirs:
                return f"{what} is {ours!s:.200} in {one}, {theirs!s:.200} in {two}"
        for pdf in range(self.num_pdfs):
            uses = [self._use(tree.describe(pdf)) for tree in (self, other)]
            if uses[0] != uses[1]:
                return f"pdf {pdf} is that of {uses[0]} in {one}, of {uses[1]} in {two}"
        return f"the decision trees of {one} and {two} differ"

    def _use(self, context: PdfContext) -> str:
        phones, lefts = (" ".join(("(none)", *self.phones)[p] for p in some[:_SHOWN]) for some in context[:2])
        return f"{phones or 'blank'}{f' after {lefts}' if lefts else ''}, class {context.pdf_class}"

    @cached_property
    def _described(self) -> list[PdfContext]:
        parts: list[list[Path]] = [[] for _ in range(self.num_pdfs)]
        for pdf, path in self.contexts():
            parts[pdf].append(path)
        nothing = frozenset[int]()
        found = []
        for paths in parts:
            phones = nothing.union(*(path[self.central_position] for path in paths))
            lefts = nothing.union(*(path.get(self.central_position - 1, nothing) for path in paths))
            anywhere = not self.central_position or len(lefts) == self.num_phones + 1
            least = min((min(path[PDF_CLASS]) for path in paths), default=0)
            found.append(PdfContext(tuple(sorted(phones)), () if anywhere else tuple(sorted(lefts)), least))
        return found

    def contexts(self) -> Iterator[tuple[int, Path]]:
        """Pdfs, and the phone ids at each place of the window (pdf classes at -1) that they stand for.

        A pdf of a decision tree comes once for each of its leaves.
        """
        anything = frozenset(range(self.num_phones + 1))
        if self.decisions is not None:
            values = dict.fromkeys(range(self.context_width), anything)
            values[self.central_position] = anything - {0}
            values[PDF_CLASS] = frozenset(range(self.topology.num_pdf_classes))
            yield from self.decisions.paths(values)
            return
        pdfs = count(self._first_pdfs[0])
        every_left = [frozenset({0}), *map(frozenset, self.shared)]
        for number, phones in enumerate(self.shared):
            for lefts in [anything] if self._ignores_left(number) else every_left:
                for pdf_class in range(self.topology.num_pdf_classes):
                    around = {} if self.context_width == 1 else {0: lefts}
                    own = {self.central_position: frozenset(phones), PDF_CLASS: frozenset({pdf_class})}
                    yield next(pdfs), around | own

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree to an npz file at exactly `path`.

        Raises:
            GraphError: a topology of thousands of states.
        """
        topology = json.dumps(self.topology.to_dict())
        if len(topology) > _LONGEST_TOPOLOGY:
            raise GraphError(
                f"{path}: the topology has {counted(len(self.topology.states), 'state')}; expected hundreds"
            )
        arrays: dict[str, Any] = {
            "format": np.array(NPZ_FORMAT),
            "topology": np.array(topology),
            "phones": np.array(self.phones, dtype=np.str_),
            "window": np.array([self.context_width, self.central_position], np.int64),
            "shared": np.array(list(chain.from_iterable(self.shared)), np.int64),
            "shared_sizes": np.array(list(map(len, self.shared)), np.int64),
            "context_independent": np.array(sorted(self.context_independent), np.int64),
        }
        if self.decisions is not None:
            for name, column in zip(("heads", "rows"), self.decisions.to_columns(), strict=True):
                arrays[name] = np.array(column, np.int32)
        with replacing(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ContextTree:
        """Read a tree that `save` wrote.

        Raises:
            GraphError: the file is not a context tree.
        """
        return read_archive(path, NPZ_FORMAT, cls._of_arrays, "not a context tree written by fsachain")

    @classmethod
    def _of_arrays(cls, arrays: Arrays) -> ContextTree:
        topology = arrays["topology"]
        if topology.dtype.itemsize > 4 * _LONGEST_TOPOLOGY:
            raise ValueError(f"the topology has {counted(topology.dtype.itemsize // 4, 'letter')}")
        phones = unique_names(arrays, "phones")
        width, centre = numbers(arrays, "window", np.int64, 2).tolist()
        members = numbers(arrays, "shared", np.int64, len(phones)).tolist()
        ends = offsets(numbers(arrays, "shared_sizes", np.int64), len(members), "shared sets").tolist()
        independent = numbers(arrays, "context_independent", np.int64)
        if len(independent) > len(phones):
            raise ValueError(
                f"context_independent has {counted(len(independent), 'id')} of {counted(len(phones), 'phone')}"
            )
        decisions = None
        if "heads" in arrays:
            heads, rows = (numbers(arrays, name, np.int32).tolist() for name in ("heads", "rows"))
            decisions = DecisionTree.from_columns(heads, rows)
        return cls(
            phones,
            Topology.from_dict(parse_json(topology.item(), "the topology")),
            width,
            [members[begin:end] for begin, end in pairwise(ends)],
            independent.tolist(),
            decisions,
            centre,
        )


# A decision tree from a phone in context to a pdf: Kaldi's event map.
#
# A question is about one key: -1 is the pdf class, 0 to N - 1 are the places of the context window (phone ids, 0 =
# no phone). A table node has one branch for each value; a split node has a yes branch for the values of a set.

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
            raise GraphError(f"the rows of nodes have {counted(end, 'number')}: expected {len(rows)}")
        return cls(nodes)
