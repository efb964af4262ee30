"""Mini LibriSpeech: five hours of read English for training, two for the test, and the language models of LibriSpeech.

A corpus folder is what download.py makes, or anyone who unpacks the same files:

    LibriSpeech/train-clean-5/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac, and .../SPEAKER-CHAPTER.trans.txt beside them
    LibriSpeech/dev-clean-2/...
    librispeech-lexicon.txt
    3-gram.pruned.3e-7.arpa.gz    language model of the search
    3-gram.arpa.gz or 3-gram.pruned.1e-7.arpa.gz    for rescoring

The corpus has no development set beside its test set, dev-clean-2. So the last two speakers of the training set are held
out for tuning.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

from fsachain.asr.data.utterance import Utterance
from fsachain.errors import DataError
from recipes.pipeline.corpus import GRAMMAR, RESCORING, write_data_dir

LEXICON = "librispeech-lexicon.txt"
SMALL = "3-gram.pruned.3e-7.arpa"
LARGE = ("3-gram.arpa", "3-gram.pruned.1e-7.arpa")  # the first one that is there
DEV_SPEAKERS = 2
UNKNOWN = "<UNK> SPN"  # stands for the words that the lexicon lacks, in training alone


def prepare(corpus: Path | None, out: Path, seed: int) -> None:
    """Write lexicon.txt, grammar.arpa, rescoring.arpa, train, dev and test to `out`; nothing is drawn with `seed`."""
    if corpus is None:
        raise DataError(
            "the mini_librispeech recipe needs --corpus FOLDER; recipes/mini_librispeech/README.md says how to get one"
        )
    train = list(read_subset(corpus / "LibriSpeech" / "train-clean-5"))
    speakers = sorted({recording.speaker for recording in train})
    held_out = set(speakers[-DEV_SPEAKERS:])
    if len(held_out) == len(speakers):
        raise DataError(
            f"{corpus}: train-clean-5 has {len(speakers)} speakers; expected more than {DEV_SPEAKERS}, "
            "since so many are held out for tuning"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_lexicon(corpus / LEXICON, out / "lexicon.txt")
    unpack(corpus, (SMALL,), out / GRAMMAR)
    unpack(corpus, LARGE, out / RESCORING)
    write_data_dir(out / "train", (one for one in train if one.speaker not in held_out))
    write_data_dir(out / "dev", (one for one in train if one.speaker in held_out))
    write_data_dir(out / "test", read_subset(corpus / "LibriSpeech" / "dev-clean-2"))


def read_subset(folder: Path) -> Iterator[Utterance]:
    """Utterances of one part of LibriSpeech; each must have a recording and words."""
    transcripts = sorted(folder.glob("*/*/*.trans.txt"))
    if not transcripts:
        raise DataError(
            f"{folder}: no SPEAKER/CHAPTER/*.trans.txt; expected a part of LibriSpeech as it is unpacked"
        )
    for transcript in transcripts:
        for number, line in enumerate(transcript.read_text(encoding="utf-8").splitlines(), start=1):
            name, *words = line.split()
            audio = transcript.with_name(f"{name}.flac")
            if not words:
                raise DataError(f"{transcript}:{number}: {line!r}; expected an utterance and its words")
            if not audio.is_file():
                raise DataError(f"{transcript}:{number}: {audio.name} is missing")
            yield Utterance(name, transcript.parent.parent.name, tuple(words), str(audio))


def write_lexicon(source: Path, target: Path) -> None:
    """Copy the lexicon, with an entry for words that it lacks."""
    if not source.is_file():
        raise DataError(f"{source}: no such lexicon; recipes/mini_librispeech/download.py fetches it")
    entries = [line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
    target.write_text("\n".join([UNKNOWN, *entries]) + "\n", encoding="utf-8")


def unpack(corpus: Path, names: tuple[str, ...], target: Path) -> None:
    """Write the first of these files that the corpus has, packed or not, to `target`."""
    for name in names:
        plain, packed = corpus / name, corpus / f"{name}.gz"
        if plain.is_file():
            shutil.copyfile(plain, target)
            return
        if packed.is_file():
            try:
                with gzip.open(packed) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            except (EOFError, gzip.BadGzipFile) as error:
                target.unlink()
                raise DataError(f"{packed}: damaged ({error}); fetch it again") from error
            return
    raise DataError(
        f"{corpus}: has none of {', '.join(f'{name}.gz' for name in names)}; "
        "recipes/mini_librispeech/download.py fetches it"
    )
