"""Which pdf a frame uses: (phone, its context, pdf class of the topology) give a column of the network output.

`ContextTree.num_pdfs` is the one source of P. Phone ids count from 1 in the order of `phones`; 0 in a context
means that there is no phone (the edges of the utterance). Trees are monophone, left biphone (tied or not), or a
decision tree over a window of any width, as Kaldi's `tree` holds it. Numbering: see `graph/pdf_numbering.py`; a
topology with a blank takes pdf 0 for the blank and shifts the rest by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from fsachain.errors import GraphError
from fsachain.graph.context_json import read_record, write_record
from fsachain.graph.decisions import PDF_CLASS, DecisionTree, Path
from fsachain.graph.pdf_numbering import (
    BiphoneCounts,
    PdfTable,
    named_ids,
    named_partition,
    number_untied,
    table_of,
    tie_biphones,
)
from fsachain.graph.topology import Topology


class PdfContext(NamedTuple):
    """What shares one pdf: phone ids, left phone ids (0 = none; empty = any) and the pdf class.

    The blank pdf of a CTC topology has no phones. In a decision tree the two sets are those of all leaves of the
    pdf, and the class is the least of them.
    """

    phones: tuple[int, ...]
    lefts: tuple[int, ...]
    pdf_class: int


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
        central_position: P, place in the window of the phone that the pdfs are for; N - 1 unless given.
        num_pdfs: number of pdfs P, the width of the network output.
    """

    phones: tuple[str, ...]
    topology: Topology
    context_width: int
    shared: tuple[tuple[int, ...], ...]
    context_independent: frozenset[int] = frozenset()
    decisions: DecisionTree | None = None
    central_position: int = -1
    num_pdfs: int = field(init=False)
    _pdfs: PdfTable | None = field(init=False, repr=False, default=None)
    _left_class: dict[int, int] = field(init=False, repr=False)
    _hmm_pdfs: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.phones or len(set(self.phones)) != len(self.phones):
            raise GraphError(
                f"phones has {len(self.phones)} names, {len(set(self.phones))} distinct; expected equal"
            )
        if self.central_position < 0:
            object.__setattr__(self, "central_position", self.context_width - 1)
        self._check_context()
        members = sorted(phone for phones in self.shared for phone in phones)
        if members != list(range(1, self.num_phones + 1)):
            raise GraphError(
                f"shared sets hold the phone ids {members}: expected each of 1..{self.num_phones} once"
            )
        self._number()

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
        bad = () if self.decisions is None else sorted(self.decisions.keys - {PDF_CLASS, *range(width)})
        if bad:
            raise GraphError(f"decisions ask for the place {bad[0]} of a window of {width} phones")

    def _number(self) -> None:
        classes = self.topology.num_pdf_classes
        if self.decisions is None:
            first = 0 if self.topology.blank == "none" else 1
            pdfs, num_pdfs = number_untied(
                self.shared, self.context_independent, classes, self.context_width, first
            )
            left_class = {phone: phones[0] for phones in self.shared for phone in phones}
        else:
            num_pdfs = self.decisions.num_pdfs
            if not self.is_narrow:
                object.__setattr__(self, "num_pdfs", num_pdfs)
                return
            pdfs = table_of(self.decisions, self.num_phones, self.context_width, classes)
            alike: dict[bytes, int] = {}
            ids = range(1, self.num_phones + 1)
            left_class = {phone: alike.setdefault(pdfs[phone].tobytes(), phone) for phone in ids}
        object.__setattr__(self, "_pdfs", pdfs)
        object.__setattr__(self, "_left_class", {0: 0, **left_class})
        object.__setattr__(self, "num_pdfs", num_pdfs)

    @classmethod
    def monophone(
        cls, phones: Sequence[str], topology: Topology, *, shared: Iterable[Iterable[str]] | None = None
    ) -> ContextTree:
        """One set of pdfs for each phone, or for each set of phone names in `shared`."""
        return cls(tuple(phones), topology, 1, named_partition(phones, shared))

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
        return cls(tuple(phones), topology, 2, named_partition(phones, shared), independent)

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
        return cls(tuple(phones), topology, 2, sets, independent, tree)

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
        if self._pdfs is not None:
            pdf = int(self._pdfs[window[0] if self.context_width == 2 else 0, window[-1], pdf_class])
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
        return self._left_class[phone]

    def describe(self, pdf: int) -> PdfContext:
        """The phones, left phones and pdf class that `pdf` stands for."""
        if not 0 <= pdf < self.num_pdfs:
            raise GraphError(f"pdf = {pdf}: expected a pdf in [0, {self.num_pdfs})")
        if pdf == self.blank_pdf:
            return PdfContext((), (), 0)
        if self._pdfs is None:
            return self._describe_wide(pdf)
        lefts, phones, classes = np.nonzero(self._pdfs == pdf)
        anywhere = len(set(lefts.tolist())) == self.num_phones + 1
        return PdfContext(
            tuple(sorted(set(phones.tolist()) - {0})),
            () if anywhere else tuple(sorted(set(lefts.tolist()))),
            int(classes.min(initial=self.topology.num_pdf_classes)),
        )

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
        """Write the tree as JSON."""
        write_record(path, {f.name: getattr(self, f.name) for f in fields(self) if f.init})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ContextTree:
        """Read a tree that `save` wrote.

        Raises:
            GraphError: the file is not a context tree.
        """
        return cls(**read_record(path))
