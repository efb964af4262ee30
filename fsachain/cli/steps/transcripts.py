"""Words by utterance, from a file of transcripts or from a whole data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fsachain.data.cuts import holds_cuts
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import read_text


def read_transcripts(path: Path) -> Mapping[str, tuple[str, ...]]:
    """What is said, by utterance.

    Args:
        path: a file in Kaldi's format (utterance word ...), or a data set. Of a data set, utterances with a fault are left
            out. No recording is touched, so none is made by a command either.

    Raises:
        DataError: it cannot be read.
    """
    if path.is_dir() or holds_cuts(path):
        data, _ = DataDir.check(path, allow_commands=True)
        return {utterance.id: utterance.words for utterance in data}
    return read_text(path)
