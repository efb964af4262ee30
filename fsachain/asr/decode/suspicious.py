"""Which words of a transcript were hardly said, by a forgiving numerator, and what was said in their place, by a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import xlogy

from fsachain.asr.decode.decoder import Decoder, DecoderConfig, Graph, search_all
from fsachain.asr.decode.lattices import ArcsByLevel
from fsachain.asr.decode.rescore import BEAM_ROUNDING, WordSequence, best_of
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.denominator import normalization_with_star
from fsachain.errors import brief, counted
from fsachain.fsa import Fsa
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import Numerator
from fsachain.graph.spelling import NO_WORD
from fsachain.openfst import Transducer
from fsachain.table import TransitionTable, compile_table

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]
BEAM = 4.0  # nats behind the best: what else was said
STAR_LASTS = 0.15  # nats for each frame of a star, which is no part of a training here


class Doubt(NamedTuple):
    """What is doubtful about one transcript.

    said [U] is the probability of each of `words` of having been said; `unwritten` the share of the frames that are spent on
    what the transcript lacks, which is no pause where stars are of frames: these take pauses too.
    """

    words: tuple[str, ...]
    said: npt.NDArray[np.float64]
    unwritten: float

    def __repr__(self) -> str:
        return brief(self)

    @property
    def wrong(self) -> float:
        """The expected number of words that were not said."""
        return float((1.0 - self.said).sum())


def with_cheap_star(normalization: Fsa, num_pdfs: int) -> Fsa:
    """A `normalization_fsa` with the star of frames that `doubts` does best with, to build numerators for it."""
    return normalization_with_star(normalization, num_pdfs, 0.0, STAR_LASTS)


def doubts(
    nnet_outputs: Mapping[str, npt.NDArray[np.floating]],
    numerators: Mapping[str, Numerator],
    normalization: Fsa,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Doubt], dict[str, str]]:
    """Doubts by utterance id, and for utterances that have none the reason.

    `nnet_outputs` [T, P] and `numerators`, forgiving ones (`build_numerator`), are by utterance id. `normalization` is
    without a star: what these were made with, or what got their star of frames (`with_cheap_star`). `progress` is called
    with (utterances done, utterances in all).
    """
    found: dict[str, Doubt] = {}
    failed: dict[str, str] = {}
    everything: TransitionTable | None = None
    for done, (name, scores) in enumerate(nnet_outputs.items(), start=1):
        numerator, speech = numerators[name], np.ones(len(scores))
        if numerator.forgive is not None and numerator.forgive.has_star_of_frames:
            everything = everything or compile_table(normalization, scores.shape[1], name="normalization")
            arcs = forward_backward(TableBatch.pack([everything]), scores[None]).arc_occupancy(0)
            is_pause = np.isin(normalization.pdf, numerator.fsa.pdf[numerator.arc_word == NO_WORD])
            speech = 1.0 - arcs[:, is_pause].sum(axis=1)
            star = score_of_any_frame(scores, arcs, normalization)
            scores = np.column_stack([scores, star.astype(scores.dtype)])
        table = compile_table(numerator.fsa, scores.shape[1], name=name)
        result = forward_backward(TableBatch.pack([table], [name]), scores[None])
        if result.ok[0]:
            occupancy = result.arc_occupancy(0)
            unwritten = occupancy[:, numerator.arc_word < NO_WORD].sum(axis=1) * speech
            found[name] = Doubt(numerator.words, numerator.said(occupancy), float(unwritten.mean()))
        else:
            failed[name] = (
                f"no path of {counted(len(scores), 'frame')}, {numerator.required_frames:.0f} are needed"
            )
        if progress is not None:
            progress(done, len(nnet_outputs))
    return found, failed


def score_of_any_frame(scores: Floats, arcs: Floats, normalization: Fsa) -> npt.NDArray[np.float64]:
    """(S3) of docs/losses.md [T]: what each frame of `scores` [T, P] adds to log Z of `normalization`.

    `arcs` [T, A] is the occupancy of its arcs.
    """
    leaves = np.ones(arcs.shape[1]), (np.arange(arcs.shape[1]), normalization.src)
    states = arcs @ sparse.csr_array(leaves, shape=(arcs.shape[1], normalization.num_states))
    expected = np.einsum("ta,ta->t", arcs, scores[:, normalization.pdf] + normalization.log_prob)
    found: npt.NDArray[np.float64] = expected + xlogy(states, states).sum(1) - xlogy(arcs, arcs).sum(1)
    return found


def mend(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    written: Mapping[str, Sequence[str]],
    graph: Graph,
    words: Sequence[str],
    forgive: Forgiveness,
    config: DecoderConfig | None = None,
    *,
    count: int = 1,
    **how: Any,
) -> dict[str, list[WordSequence]]:
    """What was most likely said in every utterance, where `written` are the words of its transcript; best first.

    At most `count` word sequences each, within `BEAM` of the best; see `mended`. Other arguments and errors as for `decode`.
    An utterance without a path keeps its transcript. A written word that is none of `words` cannot be found.
    """
    ids = {word: number for number, word in enumerate(words, start=1)}
    numbers = {name: [ids.get(word, -1) for word in written[name]] for name in nnet_outputs}
    found = search_all(partial(_mend, numbers, forgive, count), nnet_outputs, graph, words, config, **how)
    return {
        name: [
            WordSequence(tuple(words[number - 1] for number in said), log_prob)
            for said, log_prob in best or ()
        ]
        or [WordSequence(tuple(written[name]), 0.0)]
        for name, best in found.items()
    }


def _mend(
    written: Mapping[str, Sequence[int]],
    forgive: Forgiveness,
    count: int,
    decoder: Decoder,
    scores: npt.ArrayLike,
    name: str,
) -> list[tuple[list[int], float]] | None:
    lattice = decoder.lattice(scores, name)
    return None if lattice is None else mended(lattice, written[name], forgive, count)


def mended(
    lattice: Lattice, written: Sequence[int], forgive: Forgiveness, count: int = 1
) -> list[tuple[list[int], float]]:
    """Word ids and log-probability of what was most likely said, where a transcript has the word ids `written`; best first.

    The log-probability is that of the best path with these words in the lattice, less the penalties of the cheapest script
    that makes the transcript of them: a word of the path is kept, substituted or left out (a deletion), and words that it
    lacks are written (insertions). At most `count` sequences, within `BEAM` nats of the best; none where no path ends.
    """
    target = np.asarray(written, np.int64)
    likely = likely_paths(lattice, target, forgive, BEAM if count > 1 else BEAM_ROUNDING)
    return [] if likely is None else best_of(likely.to_openfst().topsort(), count, BEAM)


def likely_paths(lattice: Lattice, written: Ints, forgive: Forgiveness, beam: float) -> Transducer | None:
    """The paths through lattice and scripts that cost at most `beam` more than the cheapest; None: there is none.

    A state is a pair: a state of the lattice, and how many written words are done. Few pairs lie on such a path, and the
    whole product would take several times as long as the search. Insertions, which commute with arcs without words, stand
    right behind a word that was said, or at the beginning.
    """
    src, dst, word, cost = lattice.src, lattice.dst, lattice.word, lattice.cost
    begin = np.full(lattice.num_states, np.inf)
    begin[lattice.start] = 0.0
    from_start = _least_costs(dst, src, word, cost, begin, written[::-1], forgive)
    from_start = _with_insertions(from_start, forgive.insertion)[:, ::-1]
    to_end = _least_costs(src, dst, word, cost, lattice.final_cost, written, forgive)
    inserting = np.union1d(dst[word > 0], lattice.start)
    to_end[inserting] = _with_insertions(to_end[inserting], forgive.insertion)
    least = to_end[lattice.start, 0]
    if least == np.inf:
        return None
    is_likely = from_start + to_end <= least + beam
    number = np.cumsum(is_likely).reshape(is_likely.shape) - 1

    def between(src: Ints, dst: Ints, word: Ints, cost: Floats, more: int) -> tuple[npt.NDArray[Any], ...]:
        """Arcs by which `more` written words are done; `cost` [A, 1], or a column for each number that was done before."""
        from_likely, to_likely = is_likely[src, : len(written) + 1 - more], is_likely[dst, more:]
        arc, done = np.nonzero(from_likely & to_likely)
        own = np.broadcast_to(cost, from_likely.shape)[arc, done]
        return number[src[arc], done], number[dst[arc], done + more], word[arc], own

    said = np.flatnonzero(word)
    paired = cost[said, None] + _substitutions(word[said], written, forgive)
    left_out = cost + np.where(word > 0, forgive.deletion, 0.0)
    none = np.zeros_like(inserting)
    arcs = (
        between(src, dst, word, left_out[:, None], 0),
        between(src[said], dst[said], word[said], paired, 1),
        between(inserting, inserting, none, np.full((len(none), 1), forgive.insertion), 1),
    )
    src, dst, word, cost = (np.concatenate(column) for column in zip(*arcs, strict=True))
    ends = is_likely[:, -1]
    final = np.full(np.count_nonzero(is_likely), -np.inf)
    final[number[ends, -1]] = -lattice.final_cost[ends]
    return Transducer(len(final), int(number[lattice.start, 0]), src, dst, word, word, -cost, final)


def _least_costs(
    src: Ints, dst: Ints, word: Ints, cost: Floats, ends: Floats, written: Ints, forgive: Forgiveness
) -> Floats:
    """Least costs [S, U + 1] from each state, with 0 .. U of the words `written` done, to the ends of costs `ends` [S].

    Insertions stand right behind a word: none at the state itself.
    """
    arcs = ArcsByLevel(src, dst, len(ends))
    word, cost = word[arcs.order], cost[arcs.order, None]

    def through(some: slice, costs: Floats) -> Floats:
        said = np.flatnonzero(word[some])
        behind = _with_insertions(costs[said], forgive.insertion)
        paired = behind[:, 1:] + _substitutions(word[some][said], written, forgive)
        costs[said] = behind + forgive.deletion
        costs[said, :-1] = np.minimum(costs[said, :-1], paired)
        return costs + cost[some]

    costs = np.full((len(ends), len(written) + 1), np.inf)
    costs[:, -1] = ends
    return arcs.to_end(costs, through)


def _with_insertions(costs: Floats, penalty: float) -> Floats:
    """Least `costs` [S, U + 1] where any number of words may be inserted first."""
    if penalty == np.inf:
        return costs
    ramp = penalty * np.arange(costs.shape[1])
    return np.minimum.accumulate((costs + ramp)[:, ::-1], axis=1)[:, ::-1] - ramp


def _substitutions(words: Ints, written: Ints, forgive: Forgiveness) -> Floats:
    """Penalties [W, U] of each of `words` in place of each that was written."""
    return np.where(words[:, None] == written, 0.0, forgive.substitution)
