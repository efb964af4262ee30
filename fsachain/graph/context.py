"""Which pdf a frame uses: (phone, left phone, pdf class of the topology) give a column of the network output.

`ContextTree.num_pdfs` is the one source of P. Phone ids count from 1 in the order of `phones`; left 0 means
that there is no left phone (start of the utterance). Numbering: phone sets in order, within one set the left
sets in order ("none" first, biphone only), within one context the pdf classes in order. This is Kaldi's
numbering of monophone trees. A topology with a blank takes pdf 0 for the blank and shifts the rest by one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.graph.topology import Topology

JSON_FORMAT = "fsachain-context-tree-1"


class PdfContext(NamedTuple):
    """What shares one pdf: phone ids, left phone ids (0 = none; empty = any) and the pdf class.

    The blank pdf of a CTC topology has no phones.
    """

    phones: tuple[int, ...]
    lefts: tuple[int, ...]
    pdf_class: int


@dataclass(frozen=True, eq=False)
class ContextTree:
    """Map (phone, left phone, pdf class) <-> pdf.

    Attributes:
        phones: names of the phones; id = index + 1.
        topology: HMM topology that all phones share.
        context_width: 1 for monophones, 2 for left biphones.
        shared: partition of the phone ids; the phones of one set share their pdfs, as phones and as left
            context.
        context_independent: phone ids whose pdfs ignore the left phone (biphone only).
        num_pdfs: number of pdfs P, the width of the network output.
    """

    phones: tuple[str, ...]
    topology: Topology
    context_width: int
    shared: tuple[tuple[int, ...], ...]
    context_independent: frozenset[int] = frozenset()
    num_pdfs: int = field(init=False)
    _first_pdf: npt.NDArray[np.int32] = field(init=False, repr=False)
    _left_class: dict[int, int] = field(init=False, repr=False)
    _hmm_pdfs: dict[tuple[int, int], tuple[tuple[int, int], ...]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.phones or len(set(self.phones)) != len(self.phones):
            raise GraphError(
                f"phones has {len(self.phones)} names, {len(set(self.phones))} distinct; expected equal"
            )
        if self.context_width not in (1, 2):
            raise GraphError(
                f"context_width = {self.context_width}: expected 1 (monophone) or 2 (left biphone)"
            )
        if self.context_width == 2 and self.topology.blank != "none":
            raise GraphError(
                "a topology with a blank has no left phone at hand: use ContextTree.monophone with it"
            )
        members = sorted(phone for phones in self.shared for phone in phones)
        if members != list(range(1, len(self.phones) + 1)):
            raise GraphError(
                f"shared sets hold the phone ids {members}: expected each of 1..{len(self.phones)} once"
            )
        first_pdf, num_pdfs = self._number()
        object.__setattr__(self, "_first_pdf", first_pdf)
        left_class = {phone: phones[0] for phones in self.shared for phone in phones}
        object.__setattr__(self, "_left_class", {0: 0, **left_class})
        object.__setattr__(self, "num_pdfs", num_pdfs)

    def _number(self) -> tuple[npt.NDArray[np.int32], int]:
        """First pdf (class 0) for [left, phone]; row 0 also serves monophones."""
        classes = self.topology.num_pdf_classes
        first = np.full((len(self.phones) + 1,) * 2, -1, dtype=np.int32)
        next_pdf = 0 if self.topology.blank == "none" else 1
        lefts: list[tuple[int, ...]] = [(0,), *self.shared]
        for phones in self.shared:
            independent = [phone in self.context_independent for phone in phones]
            if any(independent) and not all(independent):
                raise GraphError(
                    f"shared set {[self.phones[p - 1] for p in phones]} is only partly context independent"
                )
            if self.context_width == 1 or all(independent):
                first[:, phones] = next_pdf
                next_pdf += classes
                continue
            for left in lefts:
                first[np.ix_(left, phones)] = next_pdf
                next_pdf += classes
        return first, next_pdf

    @classmethod
    def monophone(
        cls, phones: Sequence[str], topology: Topology, *, shared: Iterable[Iterable[str]] | None = None
    ) -> ContextTree:
        """One set of pdfs for each phone, or for each set of phone names in `shared`."""
        return cls(tuple(phones), topology, 1, _partition(phones, shared))

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
        ids = _phone_ids(phones)
        independent = frozenset(_id_of(name, ids, "context_independent") for name in context_independent)
        return cls(tuple(phones), topology, 2, _partition(phones, shared), independent)

    @property
    def num_phones(self) -> int:
        """Number of phones; the largest phone id."""
        return len(self.phones)

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
        if not 0 <= pdf_class < self.topology.num_pdf_classes:
            raise GraphError(
                f"pdf_class = {pdf_class}: expected a class in [0, {self.topology.num_pdf_classes})"
            )
        return int(self._first_pdf[left, phone]) + pdf_class

    def hmm_pdfs(self, phone: int, left: int = 0) -> tuple[tuple[int, int], ...]:
        """(entry pdf, self-loop pdf or -1) for each HMM state of `phone` after `left`."""
        known = self._hmm_pdfs.get((phone, left))
        if known is not None:
            return known
        pairs = tuple(
            (
                self.pdf(phone, s.entry_class, left),
                -1 if s.loop_class is None else self.pdf(phone, s.loop_class, left),
            )
            for s in self.topology.states
        )
        self._hmm_pdfs[phone, left] = pairs
        return pairs

    def left_class(self, phone: int) -> int:
        """First phone of the shared set of `phone`: all that counts of a left neighbour; 0 for none."""
        return self._left_class[phone]

    def describe(self, pdf: int) -> PdfContext:
        """The phones, left phones and pdf class that `pdf` stands for."""
        if not 0 <= pdf < self.num_pdfs:
            raise GraphError(f"pdf = {pdf}: expected a pdf in [0, {self.num_pdfs})")
        if pdf == self.blank_pdf:
            return PdfContext((), (), 0)
        offset = pdf - self._first_pdf[:, 1:]
        lefts, phones = np.nonzero((offset >= 0) & (offset < self.topology.num_pdf_classes))
        anywhere = len(set(lefts.tolist())) == self.num_phones + 1
        return PdfContext(
            tuple(sorted(set((phones + 1).tolist()))),
            () if anywhere else tuple(sorted(set(lefts.tolist()))),
            int(offset[lefts[0], phones[0]]),
        )

    def equals(self, other: ContextTree) -> bool:
        """Both trees give every phone in every context the same pdfs."""
        names = ("phones", "topology", "context_width", "shared", "context_independent")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree as JSON."""
        record: dict[str, Any] = {
            "format": JSON_FORMAT,
            "phones": self.phones,
            "topology": self.topology.to_dict(),
            "context_width": self.context_width,
            "shared": self.shared,
            "context_independent": sorted(self.context_independent),
        }
        with Path(path).open("w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ContextTree:
        """Read a tree that `save` wrote.

        Raises:
            GraphError: the file is not a context tree.
        """
        try:
            with Path(path).open(encoding="utf-8") as file:
                record = json.load(file)
            if record["format"] != JSON_FORMAT:
                raise GraphError(f"{path}: format {record['format']!r}, expected {JSON_FORMAT!r}")
            return cls(
                tuple(record["phones"]),
                Topology.from_dict(record["topology"]),
                record["context_width"],
                tuple(tuple(phones) for phones in record["shared"]),
                frozenset(record["context_independent"]),
            )
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise GraphError(f"{path}: not a context tree written by fsachain ({error!r})") from error


def _phone_ids(phones: Sequence[str]) -> dict[str, int]:
    return {name: index + 1 for index, name in enumerate(phones)}


def _id_of(name: str, ids: dict[str, int], argument: str) -> int:
    if name not in ids:
        raise GraphError(f"{argument} names the phone {name!r}, which is not among the {len(ids)} phones")
    return ids[name]


def _partition(phones: Sequence[str], shared: Iterable[Iterable[str]] | None) -> tuple[tuple[int, ...], ...]:
    """Sets of phone ids: those of `shared` in order of their first phone, all other phones alone."""
    ids = _phone_ids(phones)
    sets: list[tuple[int, ...]] = [
        tuple(sorted(_id_of(name, ids, "shared") for name in names)) for names in shared or ()
    ]
    named = {phone for members in sets for phone in members}
    alone: list[tuple[int, ...]] = [(phone,) for phone in ids.values() if phone not in named]
    return tuple(sorted([members for members in sets if members] + alone))
