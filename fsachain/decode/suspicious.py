"""Which words of a transcript were hardly said, by a forgiving numerator, and what was said in their place, by a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.decode.decoder import Decoder, DecoderConfig, Graph, search_all
from fsachain.decode.lattices import as_transducer
from fsachain.decode.rescore import BEAM_ROUNDING, WordSequence, best_of
from fsachain.errors import counted, require
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import Numerator
from fsachain.graph.spelling import NO_WORD
from fsachain.kaldi.lattice import Lattice
from fsachain.openfst import Transducer
from fsachain.table import compile_table

BEAM = 4.0  # nats behind the best: what else was said


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
    fst = require("pywrapfst", extra="graph")
    paths = replace(as_transducer(lattice), ilabel=lattice.word, olabel=lattice.word).to_openfst()
    scripts = _scripts(written, np.unique(lattice.word[lattice.word > 0]), forgive).to_openfst()
    found = fst.compose(paths.arcsort("olabel"), scripts)
    # Rounding lets pruning keep arcs to states whose own arcs are pruned.
    found.prune(weight=BEAM if count > 1 else BEAM_ROUNDING).connect()
    return best_of(found.topsort(), count, BEAM) if found.start() >= 0 else []


def _scripts(written: Sequence[int], words: npt.NDArray[np.integer], forgive: Forgiveness) -> Transducer:
    """An acceptor of all sequences of `words`, with the penalties of what makes the words `written` of them."""
    length, size = len(written), len(words)
    place, word = np.repeat(np.arange(length), size), np.tile(words, length)
    kept = np.where(word == np.repeat(np.asarray(written, np.int64), size), 0.0, -forgive.substitution)
    absent = np.repeat(np.arange(length + 1), size)
    src = np.concatenate([place, absent, np.arange(length)])
    dst = np.concatenate([place + 1, absent, np.arange(1, length + 1)])
    label = np.concatenate([word, np.tile(words, length + 1), np.zeros(length, np.int64)])
    cost = np.repeat([-forgive.deletion, -forgive.insertion], [len(absent), length])
    log_prob = np.concatenate([kept, cost])
    final = np.full(length + 1, -np.inf)
    final[-1] = 0.0
    use = np.lexsort((label, src))
    use = use[np.isfinite(log_prob[use])]
    return Transducer(length + 1, 0, src[use], dst[use], label[use], label[use], log_prob[use], final)
