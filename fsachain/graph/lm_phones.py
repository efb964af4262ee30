"""Phone sequences for the phone language model, from transcripts: draw pronunciations, put in silences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fsachain.errors import GraphError
from fsachain.graph.lexicon import Lexicon


def lm_phones(
    text: Iterable[str | Sequence[str]],
    lexicon: Lexicon,
    edge_silence: float = 0.8,
    between_silence: float = 0.2,
    seed: int = 0,
) -> list[list[int]]:
    """One phone-id sequence for each transcript, for `estimate_phone_lm`; reproducible.

    Args:
        text: transcripts, as strings (split at white space) or sequences of words.
        lexicon: each word is said in one of its ways, drawn by their probabilities (scaled to sum to one).
        edge_silence: probability of the silence phone at the start, and of one at the end.
        between_silence: probability of the silence phone between two words. Neither matters for a lexicon
            without silence.
        seed: of the random draws.

    Returns:
        As many lists as there are transcripts; an empty transcript gives an empty list.

    Raises:
        GraphError: a probability outside [0, 1], or a word that the lexicon refuses (the message has the
            transcript's index).
    """
    for argument, prob in (("edge_silence", edge_silence), ("between_silence", between_silence)):
        if not 0.0 <= prob <= 1.0:
            raise GraphError(f"{argument} = {prob}: expected a probability in [0, 1]")
    rng = np.random.default_rng(seed)
    sequences = []
    for index, transcript in enumerate(text):
        words = transcript.split() if isinstance(transcript, str) else transcript
        sequences.append(_draw(words, lexicon, edge_silence, between_silence, rng, f"text[{index}]"))
    return sequences


def _draw(
    words: Sequence[str], lexicon: Lexicon, edge: float, between: float, rng: np.random.Generator, name: str
) -> list[int]:
    phones: list[int] = []
    if not words:
        return phones
    silence = [] if lexicon.silence_phone is None else [lexicon.silence_phone]
    places = rng.random(len(words) + 1)
    choices = rng.random(len(words))
    for position, word in enumerate(words):
        if places[position] < (between if position else edge):
            phones += silence
        pronunciations = lexicon.pronunciations_of(word, name=name)
        cumulative = np.cumsum([pronunciation.prob for pronunciation in pronunciations])
        chosen = np.searchsorted(cumulative, choices[position] * cumulative[-1], side="right")
        phones += pronunciations[chosen].phones
    if places[-1] < edge:
        phones += silence
    return phones
