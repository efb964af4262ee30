"""Which words of a transcript were hardly said, by a forgiving numerator, and what was said in their place, by a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.decode.decoder import Decoder, DecoderConfig, Graph, search_all
from fsachain.decode.lattices import ArcsByLevel
from fsachain.errors import counted
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import Numerator
from fsachain.graph.spelling import NO_WORD
from fsachain.kaldi.lattice import Lattice
from fsachain.table import compile_table

Floats = npt.NDArray[np.floating]


class Doubt(NamedTuple):
    """What is doubtful about one transcript.

    said [U] is the probability of each of `words` of having been said; `unwritten` the share of the frames that are spent on
    what the transcript lacks.
    """

    words: tuple[str, ...]
    said: npt.NDArray[np.float64]
    unwritten: float

    @property
    def wrong(self) -> float:
        """The expected number of words that were not said."""
        return float((1.0 - self.said).sum())


def doubts(
    nnet_outputs: Mapping[str, npt.NDArray[np.floating]],
    numerators: Mapping[str, Numerator],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Doubt], dict[str, str]]:
    """Doubts by utterance id, and for utterances that have none the reason.

    `nnet_outputs` [T, P] and `numerators`, forgiving ones with a normalization (`build_numerator`), are by utterance id;
    `progress` is called with (utterances done, utterances in all).
    """
    found: dict[str, Doubt] = {}
    failed: dict[str, str] = {}
    for done, (name, scores) in enumerate(nnet_outputs.items(), start=1):
        numerator = numerators[name]
        table = compile_table(numerator.fsa, scores.shape[1], name=name)
        result = forward_backward(TableBatch.pack([table], [name]), scores[None])
        if result.ok[0]:
            occupancy = result.arc_occupancy(0)
            unwritten = occupancy[:, numerator.arc_word < NO_WORD].sum() / len(scores)
            found[name] = Doubt(numerator.words, numerator.said(occupancy), float(unwritten))
        else:
            failed[name] = (
                f"no path of {counted(len(scores), 'frame')}, {numerator.required_frames:.0f} are needed"
            )
        if progress is not None:
            progress(done, len(nnet_outputs))
    return found, failed


def mend(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    written: Mapping[str, Sequence[str]],
    graph: Graph,
    words: Sequence[str],
    forgive: Forgiveness,
    config: DecoderConfig | None = None,
    **how: Any,
) -> dict[str, tuple[str, ...]]:
    """The words that were most likely said in every utterance, where `written` are those of its transcript; see `mended`.

    Other arguments and errors as for `decode`. An utterance without a path keeps its transcript. A written word that is none
    of `words` cannot be found.
    """
    ids = {word: number for number, word in enumerate(words, start=1)}
    numbers = {name: [ids.get(word, -1) for word in written[name]] for name in nnet_outputs}
    found = search_all(partial(_mend, numbers, forgive), nnet_outputs, graph, words, config, **how)
    return {
        name: tuple(written[name]) if said is None else tuple(words[number - 1] for number in said)
        for name, said in found.items()
    }


def _mend(
    written: Mapping[str, Sequence[int]],
    forgive: Forgiveness,
    decoder: Decoder,
    scores: npt.ArrayLike,
    name: str,
) -> tuple[int, ...] | None:
    lattice = decoder.lattice(scores, name)
    return None if lattice is None else mended(lattice, written[name], forgive)


def mended(lattice: Lattice, words: Sequence[int], forgive: Forgiveness) -> tuple[int, ...]:
    """The ids of the words that were most likely said, where a transcript has the ids `words`.

    The path of the least cost in the lattice, by its own costs and the penalties of the script that makes the transcript of
    the path's words: a word of the path is kept, substituted or left out (a deletion), and words that it lacks are written
    (insertions). No words where no path reaches an end. A cycle in the lattice is a DataError.
    """
    arcs = ArcsByLevel(lattice.src, lattice.dst, lattice.num_states)
    word, cost = lattice.word[arcs.order], lattice.cost[arcs.order].astype(np.float64)
    # What an arc costs before a place of the transcript where it passes no word of it, and where it passes one.
    is_word = word > 0
    beside = cost + np.where(is_word, forgive.deletion, 0.0)
    replaced = np.where(np.equal.outer(word, np.asarray(words, np.int64)), 0.0, forgive.substitution)
    along = np.where(is_word[:, None], cost[:, None] + replaced, np.inf)
    # The least cost from each state and place to the end.
    ends = np.full((lattice.num_states, len(words) + 1), np.inf)
    ends[:, -1] = lattice.final_cost

    def leave_out(rows: Floats) -> Floats:
        for place in range(len(words))[::-1]:
            rows[:, place] = np.minimum(rows[:, place], rows[:, place + 1] + forgive.insertion)
        return rows

    def through(some: slice, behind: Floats) -> Floats:
        rows = behind + beside[some, None]
        rows[:, :-1] = np.minimum(rows[:, :-1], behind[:, 1:] + along[some])
        return rows

    to_end = arcs.to_end(leave_out(ends), through, leave_out)
    found: list[int] = []
    state, place = lattice.start, 0
    while np.isfinite(to_end[state, place]):
        first, count = arcs.first[state], arcs.count[state]
        leaving = slice(first, first + count)
        behind = to_end[arcs.dst[leaving]]
        ways = [beside[leaving] + behind[:, place]]
        end = lattice.final_cost[state]
        if place < len(words):
            ways += [
                along[leaving, place] + behind[:, place + 1],
                [forgive.insertion + to_end[state, place + 1]],
            ]
            end = np.inf
        costs = np.concatenate([*ways, [end]])
        best = int(costs.argmin())
        if best == len(costs) - 1:
            break
        if place < len(words) and best == len(costs) - 2:
            place += 1
            continue
        place += best >= count
        arc = first + best % count
        state = arcs.dst[arc]
        if is_word[arc]:
            found.append(int(word[arc]))
    return tuple(found)
