"""Numerators of many utterances in one npz file: their arrays end to end, with offsets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fsachain.files import replacing
from fsachain.graph.archive import Arrays, ids, join, numbers, offsets, read_archive, texts
from fsachain.graph.fsa_arrays import JoinedFsas, join_fsas
from fsachain.graph.numerator import Numerator
from fsachain.names import ByName
from fsachain.npz_file import read_npz

NPZ_FORMAT = "fsachain-numerators-1"
NumeratorSource = Literal["transcripts", "graphs"]
_ARC_ARRAYS = {"arc_phone": np.int32, "arc_word": np.int32, "arc_is_start": np.bool_}


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
    arrays |= {name: join([getattr(n, name) for n in values], dtype) for name, dtype in _ARC_ARRAYS.items()}
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def source_of(path: str | os.PathLike[str]) -> NumeratorSource:
    """What the numerators of a file that `load_numerators` can read were made of."""
    source = read_npz(path, ("source",)).get("source")
    return (
        "graphs" if source is not None and source.size == 1 and source.item() == "graphs" else "transcripts"
    )


class StoredNumerators(ByName[Numerator]):
    """Numerators by utterance id over the arrays of a file, in its order; each is made anew when it is asked for.

    Raises:
        KeyError, ValueError: an array is missing, or does not fit the others.
        GraphError: as `Fsa` for the first acceptor that cannot be.
    """

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(ids(arrays, "names"))
        self._words = texts(arrays, "words")
        num_words = numbers(arrays, "num_words", np.int64, len(self.names))
        self._first_word = offsets(num_words, len(self._words), "num_words")
        self._fsas = JoinedFsas(arrays)
        if len(self._fsas) != len(self.names):
            raise ValueError(f"names has {len(self.names)} rows, num_states {len(self._fsas)}")
        num_arcs = int(self._fsas.first_arc[-1])
        self._labels = [numbers(arrays, name, dtype, num_arcs) for name, dtype in _ARC_ARRAYS.items()]

    def at(self, place: int) -> Numerator:
        """The numerator at a place in [0, N)."""
        arcs = slice(*self._fsas.first_arc[place : place + 2].tolist())
        return Numerator(
            self._fsas.at(place), self._words_at(place), *(column[arcs] for column in self._labels)
        )

    @property
    def num_words(self) -> npt.NDArray[np.int64]:
        """int64 [N], words of each numerator."""
        return np.diff(self._first_word)

    @property
    def num_arcs(self) -> npt.NDArray[np.int64]:
        """int64 [N], arcs of each numerator."""
        return np.diff(self._fsas.first_arc)

    def words(self, name: str) -> tuple[str, ...]:
        """Those of `self[name]`, without its graph."""
        return self._words_at(self.place(name))

    def _words_at(self, place: int) -> tuple[str, ...]:
        return tuple(self._words[slice(*self._first_word[place : place + 2].tolist())].tolist())


def load_numerators(path: str | os.PathLike[str]) -> StoredNumerators:
    """Read what `save_numerators` wrote, in its order: a mapping which takes no more memory than the file unpacked.

    Raises:
        GraphError: the file is not such an archive.
    """
    return read_archive(path, NPZ_FORMAT, StoredNumerators, "not a numerator archive written by fsachain")
