"""A prepared corpus: a folder with data directories train, dev and test, lexicon.txt, and, if there are, word n-grams."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.kaldi.values import write_matrices
from fsachain.errors import DataError, require

SPLITS = ("train", "dev", "test")
GRAMMAR = "grammar.arpa"  # of the search
RESCORING = "rescoring.arpa"  # a larger one


def write_data_dir(
    folder: Path, utterances: Iterable[Utterance], features: Mapping[str, NDArray[np.float32]] | None = None
) -> None:
    """Write text, utt2spk and wav.scp, with absolute paths, or feats.scp of `features` [T, F] by id; sorted by utterance."""
    rows = DataDir(sorted(utterances, key=lambda utterance: utterance.id))
    if not rows.utterances:
        raise DataError(f"{folder}: no recordings to write")
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "text": [" ".join((row.id, *row.words)) for row in rows],
        "utt2spk": [f"{row.id} {row.speaker}" for row in rows],
    }
    if features is None:
        tables["wav.scp"] = [f"{row.id} {Path(row.audio or '').resolve()}" for row in rows]
    else:
        write_matrices(folder.resolve() / "feats.ark", [(row.id, features[row.id]) for row in rows])
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_data_dirs(folders: Iterable[Path]) -> list[Utterance]:
    """All recordings of several data directories; none may have segments."""
    found = [(folder, utterance) for folder in folders for utterance in DataDir.read(folder)]
    for folder, utterance in found:
        if utterance.audio is None or utterance.start or utterance.end is not None:
            raise DataError(f"{folder}: utterance {utterance.id!r} is not a recording of its own")
    return [utterance for _, utterance in found]


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
