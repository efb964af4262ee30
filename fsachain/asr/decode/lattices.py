"""The lattices of the search: the best words under any weights of the grammar, and files for Kaldi and OpenFst."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.asr.kaldi.lattice import Lattice
from fsachain.errors import ConfigError, DataError, require
from fsachain.files import naming
from fsachain.graph.decoding import Weights
from fsachain.graph.open_vocabulary import WordIds
from fsachain.opaque import opaque
from fsachain.openfst import LATTICE_ARC, Transducer, pack_vector

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
_NUMBERS_AT_ONCE = 3_000_000  # of arcs and points that one call of numpy works on
_ARCS_AT_ONCE = 200_000


@opaque
@dataclass(frozen=True, eq=False, repr=False)
class WordLattice(Lattice):
    """The likely paths of one utterance, with the part of the costs that is the grammar's.

    Transitions are pdf + 1, costs float32 and those of the search, acoustic scale included. About 28 bytes an arc.

    Attributes:
        language_cost: float32 [A], the grammar's part of `graph_cost` at weight one; see `DecodingGraph`.
        final_language_cost: float32 [S], the same of the ends; 0 where not final.
        weights: those of `graph_cost`.
        words: which of `word` are words.
    """

    language_cost: Floats
    final_language_cost: Floats
    weights: Weights
    words: WordIds

    def at(self, *weights: float) -> WordLattice:
        """The same paths at other `Weights`. ConfigError: this lattice's LM weight is 0, the other is not."""
        self.check(weights)
        other = Weights(*weights)
        more = Weights(*np.subtract(other, self.weights))
        graph = self.graph_cost + more.lm_weight * self.language_cost + more.penalty(self.word, self.words)
        final = self.final_graph_cost + more.lm_weight * self.final_language_cost
        graph, final = graph.astype(np.float32), final.astype(np.float32)
        return replace(self, graph_cost=graph, final_graph_cost=final, weights=other)

    def check(self, weights: Sequence[float]) -> None:
        lm_weight = Weights(*weights).check().lm_weight
        if lm_weight and not self.weights.lm_weight:
            raise ConfigError(
                f"lm_weight = {lm_weight}: the lattice was searched with weight 0, which hides the grammar"
            )


def best_words(
    lattices: Sequence[WordLattice], points: Sequence[Sequence[float]]
) -> list[list[tuple[int, ...]]]:
    """Word ids of the best path, by point and lattice, at each of the `points`, which are `Weights`.

    All points are done at once, and so are the states of all lattices that have equally many arcs before them at most: the
    time is that of some passes over the arcs. No words where no path reaches an end. A cycle is a DataError.
    """
    return BestWords(lattices).at(points)


class BestWords:
    """`best_words` of the same lattices at one set of points after the other; their arcs are put in order once."""

    def __init__(self, lattices: Sequence[WordLattice]) -> None:
        self._lattices = lattices
        self._batches = [(some, _Joined([lattices[n] for n in some])) for some in _batches(lattices)]

    def at(self, points: Sequence[Sequence[float]]) -> list[list[tuple[int, ...]]]:
        heaviest = max((Weights(*one).check() for one in points), default=Weights(0.0))
        for lattice in self._lattices:
            lattice.check(heaviest)
        found: list[list[tuple[int, ...]]] = [[()] * len(self._lattices) for _ in points]
        for some, joined in self._batches:
            most = max(1, _NUMBERS_AT_ONCE // max(1, len(joined.heard)))
            for first in range(0, len(points), most):
                for words, column in zip(
                    found[first:], joined.best_words(points[first : first + most]), strict=False
                ):
                    for n, best in zip(some, column, strict=True):
                        words[n] = best
        return found


def _batches(lattices: Sequence[Lattice]) -> Iterator[list[int]]:
    """Numbers of lattices of similar size, so that few are done long before the others."""
    batch: list[int] = []
    arcs = 0
    for n in sorted(range(len(lattices)), key=lambda n: lattices[n].num_states):
        if batch and arcs + len(lattices[n].src) > _ARCS_AT_ONCE:
            yield batch
            batch, arcs = [], 0
        batch.append(n)
        arcs += len(lattices[n].src)
    if batch:
        yield batch


class _Joined:
    """Some lattices side by side."""

    def __init__(self, lattices: Sequence[WordLattice]) -> None:
        def joined(column: Callable[[WordLattice], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate([column(one) for one in lattices])

        offset = np.cumsum([0, *(one.num_states for one in lattices)])
        first = np.repeat(offset[:-1], [len(one.src) for one in lattices])
        src, dst = first + joined(lambda one: one.src), first + joined(lambda one: one.dst)
        self.starts = offset[:-1] + [one.start for one in lattices]
        self.arcs = ArcsByLevel(src, dst, int(offset[-1]))
        order = self.arcs.order
        self.word = joined(lambda one: one.word)[order]
        self.language = joined(lambda one: one.language_cost)[order].astype(np.float64)
        self.is_word = joined(lambda one: one.words.begins(one.word))[order]
        self.is_unknown = joined(lambda one: one.words.unknown(one.word))[order]
        # Costs at LM weight and penalties 0.
        said = joined(lambda one: one.weights.penalty(one.word, one.words))
        self.heard = (
            joined(lambda one: one.cost - one.weights.lm_weight * one.language_cost)[order] - said[order]
        )
        self.end = joined(lambda one: one.final_cost - one.weights.lm_weight * one.final_language_cost)
        self.final_language = joined(lambda one: one.final_language_cost)

    def best_words(self, points: Sequence[Sequence[float]]) -> list[list[tuple[int, ...]]]:
        arcs = self.arcs
        weight, *penalties = np.array([Weights(*one) for one in points], dtype=np.float64).T
        said = np.outer(self.is_word, penalties[0]) + np.outer(self.is_unknown, penalties[1])
        cost = self.heard[:, None] + np.outer(self.language, weight) + said  # [A, K]
        ends = self.end[:, None] + np.outer(self.final_language, weight)  # [S, K]
        to_end = arcs.to_end(ends.copy(), lambda some, behind: cost[some] + behind)
        # The first of the best arcs that leave each state; -1 where it is best to end there, or nothing leads to an end.
        of, on = np.nonzero((cost + to_end[arcs.dst] == to_end[arcs.src])[::-1])
        leaving = np.full_like(to_end, -1, dtype=np.int64)
        leaving[arcs.src[::-1][of], on] = len(arcs.src) - 1 - of
        leaving[to_end >= ends] = -1

        # One walker for each lattice and point goes along the best path.
        walker = np.arange(len(self.starts) * len(weight))
        state = np.repeat(self.starts, len(weight))
        point = np.tile(np.arange(len(weight)), len(self.starts))
        steps: list[tuple[Ints, Ints]] = [(walker[:0], walker[:0])]  # walkers and their words
        while len(walker):
            taken = leaving[state, point]
            goes = taken >= 0
            walker, point, taken = walker[goes], point[goes], taken[goes]
            state = arcs.dst[taken]
            steps.append((walker, self.word[taken]))
        walkers, words = (np.concatenate(column) for column in zip(*steps, strict=True))
        walkers, words = walkers[words > 0], words[words > 0]
        words = words[np.argsort(walkers, kind="stable")].tolist()
        cuts = np.cumsum([0, *np.bincount(walkers, minlength=len(self.starts) * len(weight))]).tolist()
        spelt = [tuple(words[begin:stop]) for begin, stop in pairwise(cuts)]
        return [spelt[k :: len(weight)] for k in range(len(weight))]


class ArcsByLevel:
    """The arcs of an acyclic lattice by their sources, those with the fewest arcs between them and an end first.

    Arc k is that of number `order[k]`, from `src[k]` to `dst[k]`; state s is left by `count[s]` of them from `first[s]` on.
    """

    def __init__(self, src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer], num_states: int) -> None:
        level = levels_of(src, dst, num_states)
        self.order = np.lexsort((src, level[src]))
        self.src, self.dst = src[self.order], dst[self.order]
        self.count = np.bincount(src, minlength=num_states)
        self.first = np.zeros(num_states, dtype=np.int64)
        begins = np.flatnonzero(np.diff(self.src, prepend=-1))
        states = self.src[begins]
        self.first[states] = begins
        cuts = np.searchsorted(level[states], np.arange(1, level.max(initial=0) + 2))
        limits = np.append(begins, len(src))[cuts].tolist()
        # Of each level its arcs, its states, and where in the arcs theirs begin.
        self._levels = [
            (slice(begin, stop), states[low:high], begins[low:high] - begin)
            for (begin, stop), (low, high) in zip(pairwise(limits), pairwise(cuts.tolist()), strict=True)
        ]

    def to_end(self, rows: Floats, through: Callable[[slice, Floats], Floats]) -> Floats:
        """The least costs from each state to the end, in place of `rows` [S, K], which are those of ending there.

        `through` adds the costs of a slice of the arcs to `rows` behind them.
        """
        for arcs, states, starts in self._levels:
            best = np.minimum.reduceat(through(arcs, rows[self.dst[arcs]]), starts, axis=0)
            rows[states] = np.minimum(rows[states], best)
        return rows


def _ranges(begin: Ints, count: Ints) -> tuple[Ints, Ints]:
    """begin[i], begin[i] + 1, ... of count[i] numbers for each i, and the i of each number."""
    of = np.repeat(np.arange(len(begin)), count)
    return np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + begin[of], of


def levels_of(src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer], num_states: int) -> Ints:
    """The most arcs on a path from each state to one that no arc leaves."""
    into = np.argsort(dst, kind="stable")
    count = np.bincount(dst, minlength=num_states)
    first = np.cumsum(count) - count
    leaving = np.bincount(src, minlength=num_states)
    level, depth = np.full(num_states, -1), 0
    states = np.flatnonzero(leaving == 0)
    while len(states):
        level[states] = depth
        depth += 1
        before = src[into[_ranges(first[states], count[states])[0]]]
        np.subtract.at(leaving, before, 1)
        states = np.unique(before[leaving[before] == 0])
    if (level < 0).any():
        raise DataError(f"lattice: state {int(np.argmin(level))} lies on or before a cycle; expected none")
    return level


def write_kaldi_lattices(path: str | Path, lattices: Mapping[str, Lattice]) -> None:
    """An archive of Kaldi's plain lattices: pdf + 1 and word ids on the arcs, graph and acoustic costs as they are."""
    with naming(path), Path(path).open("wb") as file:
        for name, one in lattices.items():
            finals = np.stack([one.final_graph_cost, one.final_acoustic_cost], axis=1)
            costs = np.stack([one.graph_cost, one.acoustic_cost], axis=1)
            body = pack_vector(
                LATTICE_ARC, one.start, finals, one.src, one.transition, one.word, costs, one.dst
            )
            file.write(f"{name} ".encode() + b"\0B" + body)


def write_openfst_lattices(path: str | Path, lattices: Mapping[str, Lattice]) -> None:
    """OpenFst's archive (FAR), for farextract and `pywrapfst.FarReader`: costs added up, over pdf + 1 and word ids."""
    far = require("pywrapfst", extra="graph").FarWriter.create(str(path), arc_type="standard")
    for name in sorted(lattices):  # a FAR is sorted by key
        far.add(name, as_transducer(lattices[name]).to_openfst())
    del far  # writes the index of keys at the end
    # Where the disk is full OpenFst goes on.
    if _num_in_far(path) < len(lattices):
        raise OSError(errno.EIO, "not all could be written; is the disk full?", str(path))


def _num_in_far(path: str | Path) -> int:
    """Of the FSTs that can be read."""
    fst, found = require("pywrapfst", extra="graph"), 0
    with suppress(fst.FstError):
        far = fst.FarReader.open(str(path))
        while not (far.done() or far.error()):
            far.get_fst()
            found += 1
            far.next()
    return found


def as_transducer(lattice: Lattice) -> Transducer:
    """Its costs added up, over transitions and words."""
    states, labels = (
        (lattice.num_states, lattice.start, lattice.src, lattice.dst),
        (lattice.transition, lattice.word),
    )
    return Transducer(*states, *labels, -lattice.cost, -lattice.final_cost)
