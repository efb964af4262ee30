"""A prepared corpus: a folder with data directories train, dev and test, lexicon.txt, and, if there are, word n-grams."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import DataError, require
from fsachain.kaldi.values import write_matrices

SPLITS = ("train", "dev", "test")
GRAMMAR = "grammar.arpa"  # of the search
RESCORING = "rescoring.arpa"  # a larger one


@dataclass(frozen=True)
class Recording:
    """One utterance that is a whole audio file."""

    id: str
    speaker: str
    words: tuple[str, ...]
    audio: Path


@dataclass(frozen=True)
class Sheet:
    """One utterance given as features, float32 [T, F]."""

    id: str
    speaker: str
    words: tuple[str, ...]
    features: NDArray[np.float32]


Spoken = TypeVar("Spoken", Recording, Sheet)


def write_feature_dir(folder: Path, sheets: Iterable[Sheet]) -> None:
    """Write feats.ark, feats.scp, text and utt2spk, sorted by utterance."""
    rows = _sorted(folder, sheets)
    folder.mkdir(parents=True, exist_ok=True)
    write_matrices(folder.resolve() / "feats.ark", [(row.id, row.features) for row in rows])
    _write_texts(folder, rows)


def write_data_dir(folder: Path, recordings: Iterable[Recording]) -> None:
    """Write wav.scp, text and utt2spk, sorted by utterance; audio paths become absolute."""
    rows = _sorted(folder, recordings)
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "wav.scp", (f"{row.id} {row.audio.resolve()}" for row in rows))
    _write_texts(folder, rows)


def _sorted(folder: Path, utterances: Iterable[Spoken]) -> list[Spoken]:
    rows = sorted(utterances, key=lambda utterance: utterance.id)
    if not rows:
        raise DataError(f"{folder}: no recordings to write")
    for before, after in pairwise(rows):
        if before.id == after.id:
            raise DataError(f"{folder}: two recordings have the id {after.id!r}")
    return rows


def _write_texts(folder: Path, rows: Sequence[Recording | Sheet]) -> None:
    _write_lines(folder / "text", (" ".join((row.id, *row.words)) for row in rows))
    _write_lines(folder / "utt2spk", (f"{row.id} {row.speaker}" for row in rows))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_data_dirs(folders: Sequence[Path]) -> list[Recording]:
    """All recordings of several data directories; none may have segments."""
    recordings: list[Recording] = []
    for folder in folders:
        for utterance in DataDir.read(folder):
            if utterance.audio is None or utterance.start or utterance.end is not None:
                raise DataError(f"{folder}: utterance {utterance.id!r} is not a recording of its own")
            audio = Path(utterance.audio)
            recordings.append(Recording(utterance.id, utterance.speaker, utterance.words, audio))
    return recordings


def prepare_data_dirs(corpus: Path | None, out: Path, seed: int) -> None:
    """Data directories and lexicon of `corpus`, as they are there: for recipes without a prepare.py."""
    if corpus is None:
        raise DataError(
            f"{out}: the recipe needs --corpus FOLDER with {', '.join(SPLITS)} and lang/lexicon.txt"
        )
    copy_lexicon(corpus / "lang" / "lexicon.txt", out)
    for split in SPLITS:
        write_data_dir(out / split, read_data_dirs([corpus / split]))


def copy_lexicon(source: Path, corpus: Path) -> None:
    if not source.is_file():
        raise DataError(f"{source}: no such lexicon; give the corpus folder that has it with --corpus")
    corpus.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, corpus / "lexicon.txt")


def write_audio(path: Path, samples: NDArray[np.float64], sample_rate: int) -> None:
    """Write one channel as 16-bit FLAC; samples beyond -1..1 are scaled down together, never clipped."""
    soundfile = require("soundfile", extra="recipes")
    path.parent.mkdir(parents=True, exist_ok=True)
    peak = float(np.max(np.abs(samples), initial=0.0))
    soundfile.write(path, samples * (0.99 / peak) if peak > 0.99 else samples, sample_rate, subtype="PCM_16")
