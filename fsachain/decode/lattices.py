"""The lattices of the search: the best words under any weights of the grammar, and files for Kaldi and OpenFst."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, require
from fsachain.graph.decoding import Weights
from fsachain.graph.open_vocabulary import WordIds
from fsachain.kaldi.lattice import Lattice
from fsachain.openfst import LATTICE_ARC, Transducer, pack_vector

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
_NUMBERS_AT_ONCE = 3_000_000  # of all arcs and points that one call of numpy works on


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
    found: list[list[tuple[int, ...]]] = [[()] * len(lattices) for _ in points]
    for some in _batches(lattices, _NUMBERS_AT_ONCE // max(1, len(points))):
        for words, column in zip(found, _best_words([lattices[n] for n in some], points), strict=True):
            for n, best in zip(some, column, strict=True):
                words[n] = best
    return found


def _batches(lattices: Sequence[Lattice], most_arcs: int) -> Iterator[list[int]]:
    """Numbers of lattices of similar size, so that few are done long before the others."""
    batch: list[int] = []
    arcs = 0
    for n in sorted(range(len(lattices)), key=lambda n: lattices[n].num_states):
        if batch and arcs + len(lattices[n].src) > most_arcs:
            yield batch
            batch, arcs = [], 0
        batch.append(n)
        arcs += len(lattices[n].src)
    if batch:
        yield batch


def _best_words(
    lattices: Sequence[WordLattice], points: Sequence[Sequence[float]]
) -> list[list[tuple[int, ...]]]:
    for lattice in lattices:
        for weights in points:
            lattice.check(weights)
    weight, *penalties = np.array([Weights(*one) for one in points], dtype=np.float64).reshape(-1, 3).T
    offset = np.cumsum([0, *(one.num_states for one in lattices)])

    def joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate(columns)

    src = joined([one.src + first for one, first in zip(lattices, offset, strict=False)])
    dst = joined([one.dst + first for one, first in zip(lattices, offset, strict=False)])
    level = levels_of(src, dst, int(offset[-1]))
    order = np.lexsort((src, level[src]))
    src, dst = src[order], dst[order]
    word = joined([one.word for one in lattices])[order]
    language = joined([one.language_cost for one in lattices])[order].astype(np.float64)
    is_word = joined([one.words.begins(one.word) for one in lattices])[order]
    is_unknown = joined([one.words.unknown(one.word) for one in lattices])[order]
    # Costs at LM weight and penalties 0.
    base = [
        one.cost - one.weights.lm_weight * one.language_cost - one.weights.penalty(one.word, one.words)
        for one in lattices
    ]
    heard = joined(base)[order]
    end = joined([one.final_cost - one.weights.lm_weight * one.final_language_cost for one in lattices])
    ends = end[:, None] + np.outer(joined([one.final_language_cost for one in lattices]), weight)  # [S, K]

    def cost(arcs: Any, points: Any) -> Floats:
        said = is_word[arcs] * penalties[0][points] + is_unknown[arcs] * penalties[1][points]
        return heard[arcs] + language[arcs] * weight[points] + said

    to_end, every = ends.copy(), np.arange(len(weight))
    limits = np.searchsorted(level[src], np.arange(1, level.max(initial=0) + 2))
    for begin, stop in pairwise(limits.tolist()):
        starts = np.flatnonzero(np.diff(src[begin:stop], prepend=-1))
        through = cost(np.arange(begin, stop)[:, None], every) + to_end[dst[begin:stop]]
        states = src[begin:stop][starts]
        to_end[states] = np.minimum(to_end[states], np.minimum.reduceat(through, starts, axis=0))

    count = np.bincount(src, minlength=len(level))
    first = np.zeros(len(level), dtype=np.int64)
    begins = np.flatnonzero(np.diff(src, prepend=-1))
    first[src[begins]] = begins
    # One walker for each lattice and point goes along the best path.
    walker = np.arange(len(lattices) * len(weight))
    state = np.repeat(offset[:-1] + [one.start for one in lattices], len(weight))
    point = np.tile(every, len(lattices))
    steps: list[tuple[Ints, Ints]] = [(walker[:0], walker[:0])]  # walkers and their words
    while True:
        goes = (to_end[state, point] < ends[state, point]) & (count[state] > 0)
        walker, state, point = walker[goes], state[goes], point[goes]
        if not len(walker):
            break
        arcs, of = _ranges(first[state], count[state])
        through = cost(arcs, point[of]) + to_end[dst[arcs], point[of]]
        hits = np.flatnonzero(through == to_end[state, point][of])
        _, chosen = np.unique(of[hits], return_index=True)
        taken = arcs[hits[chosen]]
        state = dst[taken]
        said = word[taken] > 0
        steps.append((walker[said], word[taken][said]))
    walkers, words = (np.concatenate(column) for column in zip(*steps, strict=True))
    words = words[np.argsort(walkers, kind="stable")].tolist()
    cuts = np.cumsum([0, *np.bincount(walkers, minlength=len(lattices) * len(weight))]).tolist()
    spelt = [tuple(words[begin:stop]) for begin, stop in pairwise(cuts)]
    return [spelt[k :: len(weight)] for k in range(len(weight))]


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
    with Path(path).open("wb") as file:
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


def as_transducer(lattice: Lattice) -> Transducer:
    """Its costs added up, over transitions and words."""
    states, labels = (
        (lattice.num_states, lattice.start, lattice.src, lattice.dst),
        (lattice.transition, lattice.word),
    )
    return Transducer(*states, *labels, -lattice.cost, -lattice.final_cost)
