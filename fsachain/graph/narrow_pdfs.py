"""The pdfs of narrow context trees, whose window is the phone, or the phone and its left neighbour.

Without tying they are counted in Kaldi's order: phone sets in order, within one set the left sets in order ("none"
first), within one context the pdf classes in order.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.graph.decisions import PDF_CLASS, DecisionTree
from fsachain.graph.phone_sets import PhoneSet, PhoneSets

_MOST_PDFS = 2**31 - 1
_MOST_CONTEXTS = 1 << 27  # of a table of them: half a gibibyte, or two thousand phones with sixteen classes


class PdfContext(NamedTuple):
    """What shares one pdf: phone ids, left phone ids (0 = none; empty = any) and the pdf class.

    The blank pdf of a CTC topology has no phones. In a decision tree the two sets are those of all leaves of the
    pdf, and the class is the least of them.
    """

    phones: tuple[int, ...]
    lefts: tuple[int, ...]
    pdf_class: int


class UntiedPdfs:
    """Pdfs of their own for each set of phones, or for each pair of left set and set.

    Args:
        sets: phones that share their pdfs, as phones and as left neighbours.
        independent: phones whose pdfs ignore the left neighbour.
        num_classes: C, pdfs of one context.
        width: 1 (monophones) or 2.
        first: how many pdfs are given out already.

    Raises:
        GraphError: a set some of whose phones are independent, or more pdfs than 32 bits can count.
    """

    def __init__(
        self, sets: PhoneSets, independent: PhoneSet, num_classes: int, width: int, first: int
    ) -> None:
        self._sets, self._num_classes = sets, num_classes
        self._any_left = _ignoring(sets, independent) | (width == 1)
        self._first = np.full(len(sets) + 1, first, np.int64)  # pdf of each set
        self._first[1:] = np.where(self._any_left, num_classes, num_classes * (len(sets) + 1))
        np.cumsum(self._first, out=self._first)
        self.num_pdfs = int(self._first[-1])
        if self.num_pdfs > _MOST_PDFS:
            raise GraphError(
                f"{sets.ends[-1]} phones have {self.num_pdfs} pdfs; expected at most {_MOST_PDFS}"
            )

    def pdf(self, left: int, phone: int, pdf_class: int) -> int:
        """The pdf of a phone after another (0: none); -1 for no phone."""
        number = int(self._sets.number[phone])
        if number < 0:
            return -1
        rank = 0 if self._any_left[number] else 1 + int(self._sets.number[left])
        return int(self._first[number]) + rank * self._num_classes + pdf_class

    def left_class(self, phone: int) -> int:
        """A phone that stands for all that are the same left neighbour."""
        return int(self._sets.members[self._sets.ends[self._sets.number[phone]]])

    def context(self, pdf: int) -> PdfContext:
        """What shares the pdf."""
        number = int(np.searchsorted(self._first, pdf, side="right")) - 1
        rank, pdf_class = divmod(pdf - int(self._first[number]), self._num_classes)
        phones = tuple(sorted(self._sets[number]))
        if self._any_left[number]:
            return PdfContext(phones, (), pdf_class)
        return PdfContext(phones, tuple(sorted(self._sets[rank - 1])) if rank else (0,), pdf_class)


def _ignoring(sets: PhoneSets, independent: PhoneSet) -> npt.NDArray[np.bool_]:
    """Bool [S], which sets consist of independent phones."""
    count = np.bincount(sets.number[independent.ids], minlength=len(sets))
    if (partly := np.flatnonzero((count > 0) & (count < np.diff(sets.ends)))).size:
        phones = list(sets[int(partly[0])][:20])
        raise GraphError(f"shared set of the phone ids {phones} is only partly context independent")
    return count > 0


class TiedPdfs:
    """The answers of a narrow decision tree; tabled on first use.

    Raises:
        GraphError: so many phones that their contexts make no table.
    """

    def __init__(self, decisions: DecisionTree, num_phones: int, num_classes: int, width: int) -> None:
        self._decisions, self._width = decisions, width
        self._shape = (num_phones + 1 if width == 2 else 1, num_phones + 1, num_classes)
        self.num_pdfs = decisions.num_pdfs
        if self._shape[0] * self._shape[1] * self._shape[2] > _MOST_CONTEXTS:
            raise GraphError(
                f"{num_phones} phones after each other in {num_classes} pdf classes: expected at most {_MOST_CONTEXTS} "
                "contexts of a decision tree"
            )

    @cached_property
    def _table(self) -> npt.NDArray[np.int32]:
        """[left phone, phone, pdf class]: the pdf, or -1; one row where the left phone is not asked for."""
        lefts, phones, classes = (frozenset(range(length)) for length in self._shape)
        everything = {self._width - 1: phones - {0}, PDF_CLASS: classes}
        table = np.full(self._shape, -1, dtype=np.int32)
        for pdf, path in self._decisions.paths({0: lefts} | everything):
            places = (path[0] if self._width == 2 else (0,), path[self._width - 1], path[PDF_CLASS])
            table[np.ix_(*map(list, places))] = pdf
        return table

    @cached_property
    def _left_classes(self) -> list[int]:
        alike: dict[bytes, int] = {}
        rows = [0 if len(self._table) == 1 else phone for phone in range(self._shape[1])]
        return [
            0,
            *(alike.setdefault(self._table[row].tobytes(), phone + 1) for phone, row in enumerate(rows[1:])),
        ]

    def pdf(self, left: int, phone: int, pdf_class: int) -> int:
        """The pdf of a phone after another (0: none); -1 where the tree has no answer."""
        return int(self._table[left if self._width == 2 else 0, phone, pdf_class])

    def left_class(self, phone: int) -> int:
        """A phone that stands for all that are the same left neighbour."""
        return self._left_classes[phone]

    def context(self, pdf: int) -> PdfContext:
        """What shares the pdf."""
        lefts, phones, classes = (sorted(set(places.tolist())) for places in np.nonzero(self._table == pdf))
        return PdfContext(
            tuple(phones),
            () if len(lefts) == len(self._table) else tuple(lefts),
            classes[0] if classes else self._shape[2],
        )
