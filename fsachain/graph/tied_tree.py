"""A left-biphone tree tied from alignments: splits that raise the likelihood of the aligned frames most.

Each phone set begins as one leaf for all left phones and pdf classes. A leaf is modelled by one Gaussian with
diagonal covariance; the split of some leaf that raises the likelihood most is made, until there are as many
leaves as asked for. Questions are about the pdf class, or whether the left phone is in a set of phones: sets
that merging alike phones, two at a time, has passed through. After Young, Odell and Woodland, HLT 1994; Kaldi's
build-tree does the same on what cluster-phones makes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError, ShapeError
from fsachain.fsa import Floats
from fsachain.graph.context import (
    PDF_CLASS,
    ContextTree,
    DecisionTree,
    Leaf,
    Node,
    Split,
    Table,
    named_ids,
    named_partition,
)
from fsachain.graph.supervision import AlignedPhone
from fsachain.graph.topology import Topology

VARIANCE_FLOOR = 0.01  # of the Gaussians, as a share of the variance of all frames


class BiphoneStatistics:
    """Count, sum and sum of squares of the frames of each (phone, left phone, pdf class).

    Args:
        num_phones: of the phone list.
        topology: says which pdf class a frame has: the frames of a phone are shared out evenly over its HMM
            states, the first frame of each is of its entry class, the others of its loop class.
        num_features: F, width of the frames.

    Attributes:
        topology: as given.
        count: float64 [phones + 1, phones + 1, pdf classes], frames; indexed by phone id, left phone id (0: none), class.
        sum, squares: float64, `count`'s shape and then [F].
    """

    def __init__(self, num_phones: int, topology: Topology, num_features: int) -> None:
        shape = (num_phones + 1, num_phones + 1, topology.num_pdf_classes)
        self.topology = topology
        self.count: Floats = np.zeros(shape)
        self.sum: Floats = np.zeros((*shape, num_features))
        self.squares: Floats = np.zeros((*shape, num_features))

    def accumulate(self, frames: npt.ArrayLike, phones: Sequence[AlignedPhone]) -> None:
        """Add one utterance.

        Args:
            frames: [T, F], at the rate of the network output, so that first frames are first frames.
            phones: in order of time, in units of these frames.

        Raises (nothing is added then):
            ShapeError: frames of another width.
            GraphError: a phone that is unknown, or spans that do not lie in the frames in order.
        """
        values = np.asarray(frames, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.sum.shape[-1]:
            raise ShapeError(f"frames have shape {list(values.shape)}; expected [T, {self.sum.shape[-1]}]")
        end = 0
        for phone in phones:
            if not 1 <= phone.phone < len(self.count) or not end <= phone.start <= phone.end <= len(values):
                raise GraphError(
                    f"phone {phone.phone} in the frames [{phone.start}, {phone.end}) after frame {end} of {len(values)}: "
                    f"expected ids in [1, {len(self.count) - 1}] and spans in order of time"
                )
            end = phone.end
        left = 0
        for phone in phones:
            for pdf_class, span in self._classes(phone):
                part = values[span]
                key = (phone.phone, left, pdf_class)
                self.count[key] += len(part)
                self.sum[key] += part.sum(axis=0)
                self.squares[key] += (part * part).sum(axis=0)
            left = phone.phone

    def _classes(self, phone: AlignedPhone) -> list[tuple[int, slice]]:
        states, length = self.topology.states, phone.end - phone.start
        bounds = [phone.start + length * k // len(states) for k in range(len(states) + 1)]
        found = []
        for state, first, end in zip(states, bounds, bounds[1:], strict=False):
            if end > first:
                found.append((state.entry_class, slice(first, first + 1)))
            if end > first + 1:
                loop = state.entry_class if state.loop_class is None else state.loop_class
                found.append((loop, slice(first + 1, end)))
        return found


@dataclass(frozen=True, eq=False)
class _Cell:
    """A leaf that may still be split: statistics [left phones + 1, pdf classes] of a phone set, 0 outside the leaf."""

    lefts: npt.NDArray[np.bool_]
    classes: npt.NDArray[np.bool_]
    count: Floats
    sum: Floats
    squares: Floats

    def part(self, lefts: npt.NDArray[np.bool_], classes: npt.NDArray[np.bool_]) -> _Cell:
        keep = (lefts[:, None] & classes[None, :]).astype(np.float64)
        new = self.count * keep, self.sum * keep[..., None], self.squares * keep[..., None]
        return _Cell(self.lefts & lefts, self.classes & classes, *new)


def build_tied_tree(
    phones: Sequence[str],
    topology: Topology,
    statistics: BiphoneStatistics,
    *,
    num_pdfs: int,
    min_frames: float = 100.0,
    min_gain: float = 0.0,
    shared: Iterable[Iterable[str]] | None = None,
    context_independent: Iterable[str] = (),
) -> ContextTree:
    """The tree that explains the frames of an alignment best with so many pdfs.

    Args:
        phones: phone names in id order.
        topology: the one of the statistics.
        statistics: from alignments, such as those of an end-to-end model.
        num_pdfs: leaves to split to; fewer where no split is left that `min_frames` and `min_gain` allow.
        min_frames: each side of a split has at least so many.
        min_gain: least gain of a split in log-likelihood.
        shared: sets of phone names that share their pdfs; each set is one root.
        context_independent: names of phones whose pdfs ignore the left phone; split by pdf class alone.

    Raises:
        ConfigError: fewer pdfs than roots, or no frames at all.
    """
    sets = named_partition(phones, shared)
    independent = named_ids(phones, context_independent, "context_independent")
    if num_pdfs < len(sets) or statistics.count.sum() <= 0:
        raise ConfigError(
            f"num_pdfs = {num_pdfs}, {statistics.count.sum():g} frames: expected at least {len(sets)} pdfs, one for "
            "each phone set, and frames of an alignment"
        )
    splitter = _Splitter(statistics, min_frames, min_gain)
    roots = [splitter.add_root(members, bool(independent & set(members))) for members in sets]
    splitter.split_to(num_pdfs)
    branches = [-1] * (len(phones) + 1)
    for members, root in zip(sets, roots, strict=True):
        for phone in members:
            branches[phone] = root + 1  # node 0 is the table of phones
    decisions = DecisionTree((Table(1, tuple(branches)), *splitter.finish(first=1)))
    return ContextTree(tuple(phones), topology, 2, sets, independent, decisions)


class _Splitter:
    """Leaves and the best split of each, the best of all first."""

    def __init__(self, statistics: BiphoneStatistics, min_frames: float, min_gain: float) -> None:
        self.statistics = statistics
        self.min_frames, self.min_gain = min_frames, min_gain
        total = statistics.count.sum()
        mean = statistics.sum.sum(axis=(0, 1, 2)) / total
        spread = statistics.squares.sum(axis=(0, 1, 2)) / total - mean**2
        self.floor = VARIANCE_FLOOR * np.maximum(spread, 1e-10)
        self.questions = self.left_questions()
        self.nodes: list[Node | _Cell] = []
        self.queue: list[tuple[float, int, Split]] = []
        self.num_leaves = 0

    def log_likelihood(self, count: Floats, total: Floats, squares: Floats) -> Floats:
        """Of frames under their own Gaussian, up to a constant for each frame; arrays [...], [..., F], [..., F]."""
        safe = np.maximum(count, 1e-10)[..., None]
        spread = squares / safe - (total / safe) ** 2
        variance = np.maximum(spread, self.floor)
        return -0.5 * count * np.sum(np.log(variance) + spread / variance, axis=-1)

    def left_questions(self) -> npt.NDArray[np.bool_]:
        """[questions, left phones + 1]: "is there none", and the sets that merging alike phones passes through."""
        stats = self.statistics
        seen = [p for p in range(1, len(stats.count)) if stats.count[p].sum() > 0]
        groups = [frozenset({p}) for p in seen]
        values = [tuple(a[p].sum(axis=(0, 1)) for a in (stats.count, stats.sum, stats.squares)) for p in seen]
        found = [frozenset({0}), *groups]
        while len(groups) > 2:
            i, j = self.most_alike(values)
            merged = tuple(a + b for a, b in zip(values[i], values[j], strict=True))
            found.append(groups[i] | groups[j])
            groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [found[-1]]
            values = [v for k, v in enumerate(values) if k not in (i, j)] + [merged]
        table = np.zeros((len(found), len(stats.count)), dtype=np.bool_)
        for row, members in zip(table, found, strict=True):
            row[list(members)] = True
        return table

    def most_alike(self, values: Sequence[tuple[Floats, ...]]) -> tuple[int, int]:
        """The two of at least two groups whose frames lose least likelihood under one Gaussian."""
        count, total, squares = (np.stack([value[k] for value in values]) for k in range(3))
        alone = self.log_likelihood(count, total, squares)
        best = (math.inf, 0, 1)
        for i in range(len(values) - 1):
            together = self.log_likelihood(
                count[i] + count[i + 1 :], total[i] + total[i + 1 :], squares[i] + squares[i + 1 :]
            )
            losses = alone[i] + alone[i + 1 :] - together
            j = int(np.argmin(losses))
            best = min(best, (float(losses[j]), i, i + 1 + j))
        return best[1], best[2]

    def add_root(self, phones: tuple[int, ...], ignores_left: bool) -> int:
        """The leaf of a phone set; its number."""
        members = list(phones)
        stats = self.statistics
        parts = [a[members].sum(axis=0) for a in (stats.count, stats.sum, stats.squares)]
        if ignores_left:  # all frames under one left phone, so that no question parts them
            parts = [np.concatenate([a.sum(axis=0, keepdims=True), np.zeros_like(a[1:])]) for a in parts]
        num_lefts, num_classes = parts[0].shape
        every = np.ones(num_lefts, dtype=np.bool_), np.ones(num_classes, dtype=np.bool_)
        return self.add(_Cell(*every, *parts))

    def add(self, cell: _Cell) -> int:
        number = len(self.nodes)
        self.nodes.append(cell)
        self.num_leaves += 1
        gain, split = self.best_split(cell)
        if split is not None:
            heapq.heappush(self.queue, (-gain, number, split))
        return number

    def best_split(self, cell: _Cell) -> tuple[float, Split | None]:
        """Gain and question of the best split, its branches not yet numbered; None where none is allowed."""
        left_sums = [a.sum(axis=1) for a in (cell.count, cell.sum, cell.squares)]
        class_sums = [a.sum(axis=0) for a in (cell.count, cell.sum, cell.squares)]
        total = [a.sum(axis=0) for a in left_sums]
        before = float(self.log_likelihood(*total))
        best: tuple[float, Split | None] = (self.min_gain, None)
        by_class = np.eye(len(cell.classes), dtype=np.bool_)[: -1 if len(cell.classes) > 1 else 0]
        for key, asked, sums in ((PDF_CLASS, by_class, class_sums), (0, self.questions, left_sums)):
            if not len(asked):
                continue
            yes = [np.tensordot(asked.astype(np.float64), a, axes=1) for a in sums]
            no = [whole - part for whole, part in zip(total, yes, strict=True)]
            gains = self.log_likelihood(*yes) + self.log_likelihood(*no) - before
            gains[(yes[0] < self.min_frames) | (no[0] < self.min_frames)] = -np.inf
            question = int(np.argmax(gains))
            if gains[question] > best[0]:
                values = frozenset(np.flatnonzero(asked[question]).tolist())
                best = (float(gains[question]), Split(key, values, 0, 0))
        return best

    def split_to(self, num_pdfs: int) -> None:
        """Make the best splits until there are so many leaves, or no split is left."""
        while self.num_leaves < num_pdfs and self.queue:
            _, number, split = heapq.heappop(self.queue)
            cell = self.nodes[number]
            assert isinstance(cell, _Cell), "a node is split once"
            lefts, classes = np.ones_like(cell.lefts), np.ones_like(cell.classes)
            asked = lefts if split.key == 0 else classes
            asked[:] = np.isin(np.arange(len(asked)), list(split.values))
            yes = cell.part(lefts, classes)
            asked[:] = ~asked
            no = cell.part(lefts, classes)
            self.num_leaves -= 1
            self.nodes[number] = Split(split.key, split.values, self.add(yes), self.add(no))

    def finish(self, first: int) -> list[Node]:
        """The nodes, branches counted from `first`; leaves numbered in the order of the nodes."""
        found: list[Node] = []
        pdf = 0
        for node in self.nodes:
            if isinstance(node, Split):
                found.append(Split(node.key, node.values, node.yes + first, node.no + first))
            else:
                found.append(Leaf(pdf))
                pdf += 1
        return found
