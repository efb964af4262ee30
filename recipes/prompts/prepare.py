"""Recorded telephone prompts: Kaldi data directories train, dev and test with a lexicon in lang/."""

from __future__ import annotations

from pathlib import Path

from fsachain.errors import DataError
from recipes.pipeline.corpus import SPLITS, copy_lexicon, read_data_dirs, write_data_dir


def prepare(corpus: Path | None, out: Path, seed: int) -> None:
    """Write lexicon.txt and data directories to `out`, from a corpus with train, dev, test and lang/lexicon.txt."""
    if corpus is None:
        raise DataError(
            "the prompts recipe needs --corpus FOLDER; recipes/prompts/README.md says what it holds"
        )
    copy_lexicon(corpus / "lang" / "lexicon.txt", out)
    for split in SPLITS:
        write_data_dir(out / split, read_data_dirs([corpus / split]))
