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

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError, ShapeError, brief_of, counted
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
        moments: float64, `count`'s shape and then [1 + 2 F], of which the others are views.
    """

    __repr__ = brief_of("topology", "moments")

    def __init__(self, num_phones: int, topology: Topology, num_features: int) -> None:
        shape = (num_phones + 1, num_phones + 1, topology.num_pdf_classes, 1 + 2 * num_features)
        self.topology = topology
        self.moments: Floats = np.zeros(shape)
        self.count, self.sum, self.squares = _parts(self.moments)

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
                sums = part.sum(axis=0), (part * part).sum(axis=0)
                self.moments[phone.phone, left, pdf_class] += np.concatenate([[len(part)], *sums])
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


def _parts(moments: Floats) -> tuple[Floats, Floats, Floats]:
    """Count [...], sum [..., F] and sum of squares [..., F] of frames, as views of their moments [..., 1 + 2 F]."""
    ends = 1 + moments.shape[-1] // 2
    return moments[..., 0], moments[..., 1:ends], moments[..., ends:]


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
            f"num_pdfs = {num_pdfs}, {counted(statistics.count.sum(), 'frame', 'g')}: expected at least "
            f"{counted(len(sets), 'pdf')}, one for "
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
    """Leaves and the best split of each, the best of all first.

    A leaf that may still be split is the moments [left phones + 1, pdf classes, 1 + 2 F] of a phone set, 0 outside the leaf.
    """

    def __init__(self, statistics: BiphoneStatistics, min_frames: float, min_gain: float) -> None:
        self.statistics = statistics
        self.min_frames, self.min_gain = min_frames, min_gain
        count, total, squares = _parts(statistics.moments.sum(axis=(0, 1, 2)))
        self.floor = VARIANCE_FLOOR * np.maximum(squares / count - (total / count) ** 2, 1e-10)
        self.questions = self.left_questions()
        self.nodes: list[Node | Floats] = []
        self.queue: list[tuple[float, int, Split]] = []
        self.num_leaves = 0

    def log_likelihood(self, moments: Floats) -> Floats:
        """Of frames under their own Gaussian, [...], up to a constant for each frame."""
        count, total, squares = _parts(moments)
        safe = np.maximum(count, 1e-10)[..., None]
        spread = squares / safe - (total / safe) ** 2
        variance = np.maximum(spread, self.floor)
        return -0.5 * count * np.sum(np.log(variance) + spread / variance, axis=-1)

    def left_questions(self) -> npt.NDArray[np.bool_]:
        """[questions, left phones + 1]: "is there none", and the sets that merging alike phones passes through."""
        stats = self.statistics
        seen = [p for p in range(1, len(stats.count)) if stats.count[p].sum() > 0]
        groups = [frozenset({p}) for p in seen]
        values = [stats.moments[p].sum(axis=(0, 1)) for p in seen]
        found = [frozenset({0}), *groups]
        while len(groups) > 2:
            i, j = self.most_alike(values)
            merged = values[i] + values[j]
            found.append(groups[i] | groups[j])
            groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [found[-1]]
            values = [v for k, v in enumerate(values) if k not in (i, j)] + [merged]
        table = np.zeros((len(found), len(stats.count)), dtype=np.bool_)
        for row, members in zip(table, found, strict=True):
            row[list(members)] = True
        return table

    def most_alike(self, groups: Sequence[Floats]) -> tuple[int, int]:
        """The two of at least two groups whose frames lose least likelihood under one Gaussian."""
        moments = np.stack(groups)
        alone = self.log_likelihood(moments)
        best = (math.inf, 0, 1)
        for i in range(len(moments) - 1):
            losses = alone[i] + alone[i + 1 :] - self.log_likelihood(moments[i] + moments[i + 1 :])
            j = int(np.argmin(losses))
            best = min(best, (float(losses[j]), i, i + 1 + j))
        return best[1], best[2]

    def add_root(self, phones: tuple[int, ...], ignores_left: bool) -> int:
        """The leaf of a phone set; its number."""
        moments = self.statistics.moments[list(phones)].sum(axis=0)
        if ignores_left:  # all frames under one left phone, so that no question parts them
            moments = np.concatenate([moments.sum(axis=0, keepdims=True), np.zeros_like(moments[1:])])
        return self.add(moments)

    def add(self, moments: Floats) -> int:
        number = len(self.nodes)
        self.nodes.append(moments)
        self.num_leaves += 1
        gain, split = self.best_split(moments)
        if split is not None:
            heapq.heappush(self.queue, (-gain, number, split))
        return number

    def best_split(self, moments: Floats) -> tuple[float, Split | None]:
        """Gain and question of the best split, its branches not yet numbered; None where none is allowed."""
        by_left, by_class = moments.sum(axis=1), moments.sum(axis=0)
        total = by_left.sum(axis=0)
        before = float(self.log_likelihood(total))
        best: tuple[float, Split | None] = (self.min_gain, None)
        one_class = np.eye(len(by_class), dtype=np.bool_)[:-1]
        for key, asked, sums in ((PDF_CLASS, one_class, by_class), (0, self.questions, by_left)):
            if not len(asked):
                continue
            yes = asked.astype(np.float64) @ sums
            no = total - yes
            gains = self.log_likelihood(yes) + self.log_likelihood(no) - before
            gains[(yes[:, 0] < self.min_frames) | (no[:, 0] < self.min_frames)] = -np.inf
            question = int(np.argmax(gains))
            if gains[question] > best[0]:
                values = frozenset(np.flatnonzero(asked[question]).tolist())
                best = (float(gains[question]), Split(key, values, 0, 0))
        return best

    def split_to(self, num_pdfs: int) -> None:
        """Make the best splits until there are so many leaves, or no split is left."""
        while self.num_leaves < num_pdfs and self.queue:
            _, number, split = heapq.heappop(self.queue)
            moments = self.nodes[number]
            assert isinstance(moments, np.ndarray), "a node is split once"
            is_yes = np.zeros((*moments.shape[:2], 1), dtype=np.bool_)
            members = list(split.values)
            is_yes[(members,) if split.key == 0 else (slice(None), members)] = True
            yes, no = np.where(is_yes, moments, 0.0), np.where(is_yes, 0.0, moments)
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
