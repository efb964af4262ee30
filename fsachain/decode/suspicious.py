"""Which words of a transcript were hardly said, by a forgiving numerator and a trained network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.errors import counted
from fsachain.graph.numerator import Numerator
from fsachain.graph.spelling import NO_WORD
from fsachain.table import compile_table


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
