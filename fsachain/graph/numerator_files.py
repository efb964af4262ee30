"""Numerators of many utterances in one npz file: their arrays end to end, with offsets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fsachain.files import replacing
from fsachain.graph.fsa_arrays import join, join_fsas, read_archive, split_fsas
from fsachain.graph.numerator import Numerator
from fsachain.npz_file import read_npz

NPZ_FORMAT = "fsachain-numerators-1"
NumeratorSource = Literal["transcripts", "graphs"]
_ARC_ARRAYS = ("arc_phone", "arc_word", "arc_is_start")


def save_numerators(
    path: str | os.PathLike[str], numerators: Mapping[str, Numerator], source: NumeratorSource = "transcripts"
) -> None:
    """Write numerators by utterance id to one npz file at exactly `path`.

    Args:
        path: the file; its folder exists.
        numerators: by utterance id.
        source: "transcripts" if their words are the transcripts, to be compared with them before training; "graphs" if
            they come from patterns or graphs.
    """
    values = list(numerators.values())
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "source": np.array(source),
        "names": np.array(list(numerators), dtype=np.str_),
        "words": np.array([word for n in values for word in n.words], dtype=np.str_),
        "num_words": np.array([len(n.words) for n in values], dtype=np.int64),
    }
    arrays |= join_fsas([n.fsa for n in values])
    arrays |= {name: join([getattr(n, name) for n in values]) for name in _ARC_ARRAYS}
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def source_of(path: str | os.PathLike[str]) -> NumeratorSource:
    """What the numerators of a file that `load_numerators` can read were made of."""
    source = read_npz(path, ("source",)).get("source")
    return (
        "graphs" if source is not None and source.size == 1 and source.item() == "graphs" else "transcripts"
    )


def load_numerators(path: str | os.PathLike[str]) -> dict[str, Numerator]:
    """Read what `save_numerators` wrote, in its order.

    Raises:
        GraphError: the file is not such an archive.
    """
    return read_archive(path, NPZ_FORMAT, _split, "not a numerator archive written by fsachain")


def _split(arrays: dict[str, np.ndarray]) -> dict[str, Numerator]:
    numerators = {}
    word = arc = 0
    sizes = arrays["num_words"].tolist()
    for name, num_words, fsa in zip(arrays["names"].tolist(), sizes, split_fsas(arrays), strict=True):
        words = tuple(arrays["words"][word : word + num_words].tolist())
        labels = (arrays[key][arc : arc + fsa.num_arcs] for key in _ARC_ARRAYS)
        numerators[name] = Numerator(fsa, words, *labels)
        word, arc = word + num_words, arc + fsa.num_arcs
    return numerators
