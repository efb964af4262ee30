"""Which pdf a frame uses: (phone, its context, pdf class of the topology) give a column of the network output.

`ContextTree.num_pdfs` is the one source of P. Phone ids count from 1 in the order of `phones`; 0 in a context
means that there is no phone (the edges of the utterance). Trees are monophone, left biphone (tied or not), or a
decision tree over a window of any width, as Kaldi's `tree` holds it. Numbering: see `graph/pdf_numbering.py`; a
topology with a blank takes pdf 0 for the blank and shifts the rest by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, fields

from fsachain.errors import GraphError
from fsachain.graph.context_files import read_record, write_record
from fsachain.graph.decisions import PDF_CLASS, DecisionTree, Path
from fsachain.graph.narrow_pdfs import PdfContext, TiedPdfs, UntiedPdfs
from fsachain.graph.pdf_numbering import BiphoneCounts, named_ids, named_partition, tie_biphones
from fsachain.graph.phone_sets import PhoneSet, PhoneSets
from fsachain.graph.topology import Topology
from fsachain.names import Names


@dataclass(frozen=True, eq=False)
class ContextTree:
    """Map (phones of a window, pdf class) -> pdf.

    Attributes:
        phones: names of the phones, of whatever sequence was given; id = index + 1.
        topology: HMM topology that all phones share.
        context_width: N, phones in the window: 1 for monophones, 2 for biphones.
        shared: partition of the phone ids; the phones of one set share their pdfs, as phones and as left
            context. Without meaning where there are `decisions`.
        context_independent: phone ids whose pdfs ignore the left phone (biphone only).
        decisions: the decision tree that gives the pdfs; None for trees without tying.
        central_position: P, place in the window of the phone that the pdfs are for; N - 1 unless given.
        num_pdfs: number of pdfs P, the width of the network output.
    """

    phones: Sequence[str]
    topology: Topology
    context_width: int
    shared: Sequence[tuple[int, ...]]
    context_independent: Set[int] = frozenset()
    decisions: DecisionTree | None = None
    central_position: int = -1
    num_pdfs: int = field(init=False)
    _narrow: UntiedPdfs | TiedPdfs | None = field(init=False, repr=False)
    _hmm_pdfs: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        phones = self.phones if isinstance(self.phones, Names) else Names(self.phones)
        distinct = len(phones) - len(phones.repeats())
        if not phones or distinct != len(phones):
            raise GraphError(f"phones has {len(phones)} names, {distinct} distinct; expected equal")
        object.__setattr__(self, "phones", phones)
        if self.central_position < 0:
            object.__setattr__(self, "central_position", self.context_width - 1)
        self._check_context()
        shared, independent = PhoneSets.of(self.shared), PhoneSet.of(self.context_independent)
        for name, ids in (("shared", shared.members), ("context_independent", independent.ids)):
            if ids.min(initial=1) < 1 or ids.max(initial=1) > self.num_phones:
                raise GraphError(
                    f"{name} holds {ids.min()} to {ids.max()}: expected ids in [1, {self.num_phones}]"
                )
        if len(shared.members) != self.num_phones:
            raise GraphError(f"shared sets hold {len(shared.members)} of the {self.num_phones} phones")
        object.__setattr__(self, "shared", shared)
        object.__setattr__(self, "context_independent", independent)
        object.__setattr__(self, "_narrow", self._narrow_pdfs(shared, independent))
        pdfs = self._narrow or self.decisions
        assert pdfs is not None, "a tree without decisions is narrow"
        object.__setattr__(self, "num_pdfs", pdfs.num_pdfs)

    def _check_context(self) -> None:
        width, centre = self.context_width, self.central_position
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
        if self.decisions is None:
            return
        nodes = self.decisions.nodes
        asked = (nodes.key(number) for number in range(len(nodes)) if not nodes.is_leaf(number))
        if (bad := min((key for key in asked if not PDF_CLASS <= key < width), default=None)) is not None:
            raise GraphError(f"decisions ask for the place {bad} of a window of {width} phones")

    def _narrow_pdfs(self, shared: PhoneSets, independent: PhoneSet) -> UntiedPdfs | TiedPdfs | None:
        classes, width = self.topology.num_pdf_classes, self.context_width
        if self.decisions is None:
            return UntiedPdfs(
                shared, independent, classes, width, first=0 if self.topology.blank == "none" else 1
            )
        return TiedPdfs(self.decisions, self.num_phones, classes, width) if self.is_narrow else None

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

        The pdf ids are those of Kaldi's gmm-init-biphone; see `pdf_numbering.tie_biphones`.

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
            raise GraphError(f"window {tuple(window)}: expected {self.context_width} phones")
        pdf: int | None
        if self._narrow is not None:
            pdf = self._narrow.pdf(window[0] if self.context_width == 2 else 0, window[-1], pdf_class)
        else:
            assert self.decisions is not None
            pdf = self.decisions.pdf(window, pdf_class)
        if pdf is None or pdf < 0:
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
        assert self._narrow is not None, "a wide window has more than a left phone"
        return self._narrow.left_class(phone) if phone else 0

    def describe(self, pdf: int) -> PdfContext:
        """The phones, left phones and pdf class that `pdf` stands for."""
        if not 0 <= pdf < self.num_pdfs:
            raise GraphError(f"pdf = {pdf}: expected a pdf in [0, {self.num_pdfs})")
        if pdf == self.blank_pdf:
            return PdfContext((), (), 0)
        return self._describe_wide(pdf) if self._narrow is None else self._narrow.context(pdf)

    def equals(self, other: ContextTree) -> bool:
        """Both trees give every phone in every context the same pdfs."""
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.init)

    def _describe_wide(self, pdf: int) -> PdfContext:
        paths = [path for leaf, path in self.contexts() if leaf == pdf]
        phones = frozenset().union(*(path[self.central_position] for path in paths))
        lefts = frozenset().union(*(path.get(self.central_position - 1, frozenset()) for path in paths))
        anywhere = not self.central_position or len(lefts) == self.num_phones + 1
        least = min((min(path[PDF_CLASS]) for path in paths), default=self.topology.num_pdf_classes)
        return PdfContext(tuple(sorted(phones)), () if anywhere else tuple(sorted(lefts)), least)

    def contexts(self) -> Iterator[tuple[int, Path]]:
        """Of each leaf of `decisions`: its pdf, and the phone ids at each place (pdf classes at -1) it stands for."""
        assert self.decisions is not None, "a tree without decisions has no leaves"
        anything = frozenset(range(self.num_phones + 1))
        values = dict.fromkeys(range(self.context_width), anything)
        values[self.central_position] = anything - {0}
        values[PDF_CLASS] = frozenset(range(self.topology.num_pdf_classes))
        return self.decisions.paths(values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree to an npz file at exactly `path`."""
        write_record(path, {f.name: getattr(self, f.name) for f in fields(self) if f.init})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ContextTree:
        """Read a tree that `save` wrote.

        Raises:
            GraphError: the file is not a context tree.
        """
        return cls(**read_record(path))
