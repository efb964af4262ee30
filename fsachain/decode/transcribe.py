"""Words with times and confidences from network outputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from fsachain.decode.align import FrameTiming, align_utterance
from fsachain.decode.confidence import WordPosterior, word_posteriors
from fsachain.decode.decoder import Decoder
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator


class RecognisedWord(NamedTuple):
    """A word that was heard: start and duration in seconds, confidence in [0, 1]."""

    word: str
    start: float
    duration: float
    confidence: float


class Transcriber:
    """Recognises speech.

    Words come from the best path of the decoder's lattice, confidences from `word_posteriors`, times from the best path
    through the words' own numerator, as in an alignment.

    Args:
        decoder: over the decoding graph of lexicon and tree.
        lexicon: pronunciations; ids of its words are the graph's.
        tree: context and topology.
        timing: where output frames lie.
    """

    def __init__(self, decoder: Decoder, lexicon: Lexicon, tree: ContextTree, timing: FrameTiming) -> None:
        self.decoder, self.lexicon, self.tree, self.timing = decoder, lexicon, tree, timing

    def recognise(
        self, nnet_output: npt.ArrayLike, *, first_frame: int = 0, name: str = "recording"
    ) -> list[RecognisedWord]:
        """The words of a recording, or of a part of it, in order.

        Args:
            nnet_output: [T, P].
            first_frame: output frame of the recording at which they begin; times count from its start.
            name: for messages.

        Raises:
            ShapeError, DataError: as `Decoder.decode`.
        """
        lattice = self.decoder.lattice(nnet_output, name)
        found = [] if lattice is None else word_posteriors(lattice)
        if not found:
            return []
        words = [self.decoder.words[posterior.word - 1] for posterior in found]
        spans = self._spans(nnet_output, words, found, name)
        offset = first_frame * self.timing.frame_seconds
        return [
            RecognisedWord(word, round(start + offset, 6), duration, posterior.confidence)
            for word, (start, duration), posterior in zip(words, spans, found, strict=True)
        ]

    def _spans(
        self, nnet_output: npt.ArrayLike, words: list[str], found: list[WordPosterior], name: str
    ) -> list[tuple[float, float]]:
        """Start and duration of each word. A path that broke off inside its last word may have no alignment."""
        numerator = build_numerator(words, self.lexicon, self.tree, name=name)
        aligned = align_utterance(nnet_output, numerator, self.lexicon.phones, self.timing, name=name)
        if aligned is None:
            length = self.timing.frame_seconds
            return [(self.timing.start_of(posterior.frame), length) for posterior in found]
        return [(entry.start, entry.duration) for entry in aligned.words]
