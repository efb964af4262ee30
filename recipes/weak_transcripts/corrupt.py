"""Errors planted in transcripts: words substituted, inserted and deleted, by a seed; and the utterances that lack fewest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsachain.asr.data.utterance import Utterance
from fsachain.asr.decode.wer import read_text, write_text
from fsachain.errors import require

SAID = "said.json"  # beside the text: for each utterance which of its words were said


class Rates(NamedTuple):
    """Shares of the words that are replaced by another, followed by one that was not said, and left out."""

    substitution: float
    insertion: float
    deletion: float


class Corrupted(NamedTuple):
    """A transcript, and for each of its words whether it was said there."""

    words: list[str]
    said: list[bool]


def corrupt(
    words: Sequence[str], vocabulary: Sequence[str], rates: Rates, random: np.random.Generator
) -> Corrupted:
    """Each word is replaced, left out or kept; an inserted one may follow it. Others are drawn from `vocabulary`, sorted."""
    found = Corrupted([], [])
    for word in words:
        drawn, follows = random.random(2)
        if drawn < rates.substitution:
            others = [other for other in vocabulary if other != word]
            found.words.append(others[int(random.integers(len(others)))])
            found.said.append(False)
        elif drawn >= rates.substitution + rates.deletion:
            found.words.append(word)
            found.said.append(True)
        if follows < rates.insertion:
            found.words.append(vocabulary[int(random.integers(len(vocabulary)))])
            found.said.append(False)
    return found


def densest(recordings: Sequence[Utterance], share: float) -> list[Utterance]:
    """Of those that have words, the share with most words a second: where words are missing, these lack the fewest."""
    soundfile = require("soundfile", extra="recipes")
    rates = [
        (len(one.words) / soundfile.info(str(one.audio)).duration, one) for one in recordings if one.words
    ]
    rates.sort(key=lambda rated: (-rated[0], rated[1].id))
    return [one for _, one in rates[: round(share * len(rates))]]


def precision_at(recall: float, doubts: Path, said: Path) -> float:
    """Of the most doubtful words, as many as have this share of the planted errors, the share that was planted; or NaN.

    `doubts` is words.txt of `fsachain suspicious`, `said` what `corrupt_text` wrote.
    """
    truth = json.loads(said.read_text(encoding="utf-8"))
    rows = [line.split() for line in doubts.read_text(encoding="utf-8").splitlines()]
    is_planted = np.array([not truth[name][int(place) - 1] for _, name, place, _ in rows])
    if not is_planted.any():
        return float("nan")
    found = np.cumsum(is_planted)
    last = int(np.argmax(found >= recall * found[-1]))
    return float(found[last] / (last + 1))


def corrupt_text(path: Path, rates: Rates, seed: int) -> None:
    """Corrupt the transcripts of a file `text`; those that keep no word are empty. Writes `said.json` beside it."""
    text = read_text(path)
    vocabulary = sorted({word for words in text.values() for word in words})
    random = np.random.default_rng(seed)
    found = {name: corrupt(words, vocabulary, rates, random) for name, words in text.items()}
    write_text(path, {name: tuple(one.words) for name, one in found.items()})
    path.with_name(SAID).write_text(
        json.dumps({name: one.said for name, one in found.items()}), encoding="utf-8"
    )
    kept, empty = sum(sum(one.said) for one in found.values()), sum(not one.words for one in found.values())
    written, before = sum(len(one.words) for one in found.values()), sum(map(len, text.values()))
    print(
        f"{path}: {before} words became {written}, of which {kept} were said; {empty} transcripts are empty"
    )
