"""Numerators of many utterances in one npz file: their arrays end to end, with offsets."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.numerator import Numerator

NPZ_FORMAT = "fsachain-numerators-1"
_FSA_ARRAYS = ("src", "dst", "pdf", "log_prob")
_ARC_ARRAYS = ("arc_phone", "arc_word", "arc_is_start")


def save_numerators(path: str | os.PathLike[str], numerators: Mapping[str, Numerator]) -> None:
    """Write numerators by utterance id to one npz file at exactly `path`."""
    values = list(numerators.values())
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "names": np.array(list(numerators), dtype=np.str_),
        "words": np.array([word for n in values for word in n.words], dtype=np.str_),
        "num_words": np.array([len(n.words) for n in values], dtype=np.int64),
        "num_states": np.array([n.fsa.num_states for n in values], dtype=np.int64),
        "num_arcs": np.array([n.fsa.num_arcs for n in values], dtype=np.int64),
        "start": np.array([n.fsa.start for n in values], dtype=np.int64),
        "final_log_prob": _join([n.fsa.final_log_prob for n in values]),
    }
    arrays |= {name: _join([getattr(n.fsa, name) for n in values]) for name in _FSA_ARRAYS}
    arrays |= {name: _join([getattr(n, name) for n in values]) for name in _ARC_ARRAYS}
    with Path(path).open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_numerators(path: str | os.PathLike[str]) -> dict[str, Numerator]:
    """Read what `save_numerators` wrote, in its order.

    Raises:
        GraphError: the file is not such an archive.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if arrays["format"].item() != NPZ_FORMAT:
            raise GraphError(f"{path}: format {arrays['format'].item()!r}, expected {NPZ_FORMAT!r}")
        return _split(arrays)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, GraphError):
            raise
        reason = error if zipfile.is_zipfile(path) else "no npz file, or cut short"
        raise GraphError(f"{path}: not a numerator archive written by fsachain ({reason})") from error


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)


def _split(arrays: dict[str, np.ndarray]) -> dict[str, Numerator]:
    ends = {name: np.cumsum(arrays[name]).tolist() for name in ("num_words", "num_states", "num_arcs")}
    numerators = {}
    word = state = arc = 0
    for index, name in enumerate(arrays["names"].tolist()):
        last_word, last_state, last_arc = (
            ends[key][index] for key in ("num_words", "num_states", "num_arcs")
        )
        src, dst, pdf, log_prob = (arrays[key][arc:last_arc] for key in _FSA_ARRAYS)
        final = arrays["final_log_prob"][state:last_state]
        fsa = Fsa(last_state - state, src, dst, pdf, log_prob, final, int(arrays["start"][index]))
        words = tuple(arrays["words"][word:last_word].tolist())
        numerators[name] = Numerator(fsa, words, *(arrays[key][arc:last_arc] for key in _ARC_ARRAYS))
        word, state, arc = last_word, last_state, last_arc
    return numerators
