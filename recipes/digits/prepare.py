"""Connected digits of the Free Spoken Digit Dataset, from either of two layouts.

Prepared: Kaldi data directories connected/{train,dev,test} and isolated/train, and lang/lexicon.txt.
Downloaded: the recordings as anyone gets them, `recordings/DIGIT_SPEAKER_TAKE.wav` at 8 kHz. Recordings of
one speaker are joined into strings of two to seven digits. Takes 0-4 make the test set, 5-9 dev, the others
train, so that no recording is in two sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.utterance import Utterance
from fsachain.errors import DataError, require
from recipes.pipeline.corpus import SPLITS, copy_lexicon, read_data_dirs, write_audio, write_data_dir

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAMPLE_RATE = 8000
PAUSE_SECONDS = (0.05, 0.35)
# How often each recording is used in strings of its set.
USES = {"train": 3, "dev": 1, "test": 1}
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")


@dataclass(frozen=True)
class Take:
    digit: int
    speaker: str
    number: int
    path: Path

    @property
    def split(self) -> str:
        return "test" if self.number < 5 else "dev" if self.number < 10 else "train"


def prepare(corpus: Path | None, out: Path, seed: int) -> None:
    """Write lexicon.txt, train, dev and test to `out`; for the downloaded layout audio/ too.

    `seed` draws strings and pauses; in the prepared layout nothing is drawn.
    """
    if corpus is None:
        raise DataError(
            "the digits recipe needs --corpus FOLDER; recipes/digits/README.md says how to get one"
        )
    if (corpus / "connected").is_dir():
        copy_lexicon(corpus / "lang" / "lexicon.txt", out)
        for split in SPLITS:
            parts = ("connected", "isolated") if split == "train" else ("connected",)
            write_data_dir(out / split, read_data_dirs([corpus / part / split for part in parts]))
        return
    copy_lexicon(Path(__file__).with_name("lexicon.txt"), out)
    takes = read_takes(corpus)
    for split in SPLITS:
        write_data_dir(out / split, _recordings(split, takes, out / "audio", seed))


def read_takes(corpus: Path) -> list[Take]:
    """All takes of a downloaded dataset, sorted by speaker, digit and take."""
    folder = corpus / "recordings" if (corpus / "recordings").is_dir() else corpus
    takes = [
        Take(int(match[1]), match[2], int(match[3]), path)
        for path in folder.glob("*.wav")
        if (match := _NAME.fullmatch(path.name))
    ]
    if not takes:
        raise DataError(f"{corpus}: neither connected/ nor recordings named DIGIT_SPEAKER_TAKE.wav")
    return sorted(takes, key=lambda take: (take.speaker, take.digit, take.number))


def _recordings(split: str, takes: list[Take], audio: Path, seed: int) -> Iterator[Utterance]:
    """Strings of one set; for the training set single digits too."""
    for number, speaker in enumerate(sorted({take.speaker for take in takes})):
        own = [take for take in takes if take.speaker == speaker and take.split == split]
        random = np.random.default_rng([seed, SPLITS.index(split), number])
        for index, string in enumerate(draw_strings(own, USES[split], random)):
            name = f"{speaker}-{split}-{index:04d}"
            path = audio / split / f"{name}.flac"
            write_audio(path, join([_read(take.path) for take in string], random), SAMPLE_RATE)
            yield Utterance(name, speaker, tuple(DIGITS[take.digit] for take in string), str(path))
        if split == "train":
            for take in own:
                name = f"{speaker}-{take.digit}-{take.number:02d}"
                yield Utterance(name, speaker, (DIGITS[take.digit],), str(take.path))


def draw_strings(takes: list[Take], uses: int, random: np.random.Generator) -> Iterator[list[Take]]:
    """Cut `uses` shuffled passes over the takes into strings of two to seven takes."""
    order = [takes[i] for _ in range(uses) for i in random.permutation(len(takes))]
    position = 0
    while position + 2 <= len(order):
        length = int(random.integers(2, 8))
        yield order[position : position + length] if position + length <= len(order) else order[position:]
        position += length


def join(digits: list[NDArray[np.float64]], random: np.random.Generator) -> NDArray[np.float64]:
    """The digits one after the other; the pauses hold noise at the noise floor of the recordings."""
    pieces: list[NDArray[np.float64]] = []
    for digit in [*digits, digits[-1][:0]]:
        floor = _noise_floor(digit if len(digit) else digits[-1])
        length = int(random.uniform(*PAUSE_SECONDS) * SAMPLE_RATE)
        pieces += [floor * random.standard_normal(length), digit]
    return np.concatenate(pieces)


def _noise_floor(samples: NDArray[np.float64]) -> float:
    """Root mean square of the quietest tenth of the 10 ms frames."""
    size = SAMPLE_RATE // 100
    if len(samples) < size:
        return 0.0
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = np.sort(np.mean(frames**2, axis=1))
    return float(np.sqrt(np.mean(power[: max(1, len(power) // 10)])))


def _read(path: Path) -> NDArray[np.float64]:
    soundfile = require("soundfile", extra="recipes")
    samples, rate = soundfile.read(path, dtype="float64")
    if rate != SAMPLE_RATE or samples.ndim != 1:
        raise DataError(
            f"{path}: {rate} Hz, {samples.ndim} dimensions; expected one channel at {SAMPLE_RATE} Hz"
        )
    return samples
