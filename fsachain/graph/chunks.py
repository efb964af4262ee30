"""Chunks of aligned utterances to train on: windows, frame weights, graphs, and the file that holds them.

An utterance is cut into chunks of one width. The first begins at its first frame, the last ends at its last
one, and those between are spread evenly, so they overlap a little where the width does not divide the
length. A frame that lies in several chunks is shared among them, one over their number each, as in Kaldi's
examples: all frames of an utterance count once. An utterance that is no longer than the width is one chunk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.files import read_npz, replacing
from fsachain.fsa import Fsa
from fsachain.graph.archive import (
    Arrays,
    join,
    join_fsas,
    numbers,
    offsets,
    origin_array,
    read_archive,
    split_fsas,
    texts,
    unique_names,
)
from fsachain.graph.supervision import Supervision

NPZ_FORMAT = "fsachain-chunks-1"
_NUMBERS = ("start", "end", "of_frames")


@dataclass(frozen=True, eq=False)
class Chunk:
    """The output frames [start, end) of an utterance (or of its copy at another speed) of `of_frames` frames.

    `fsa` is their numerator; frame_weights, float32 [end - start], is one over the number of chunks each frame lies in.
    """

    utterance: str
    start: int
    end: int
    of_frames: int
    fsa: Fsa
    frame_weights: npt.NDArray[np.float32]

    @property
    def id(self) -> str:
        return f"{self.utterance}-{self.start:06d}-{self.end:06d}"


def num_chunks(num_frames: int, width: int, overlap: int = 0) -> int:
    """How many chunks of `width` output frames cover `num_frames`, if neighbours share at least `overlap`."""
    if width < 1:
        raise ConfigError(f"width = {width}: expected at least one output frame per chunk")
    if not 0 <= overlap < width:
        raise ConfigError(f"overlap = {overlap}: expected 0 to less than the chunks' width {width}")
    return max(1, -(-(num_frames - overlap) // (width - overlap)))


def chunk_windows(num_frames: int, width: int, count: int) -> list[tuple[int, int]]:
    """`count` windows of `width` frames, spread evenly over an utterance of `num_frames`.

    The same count for copies of an utterance at several speeds puts the k-th chunk of each on the same
    words. Where the utterance is no longer than the width, every window is the whole of it.
    """
    if num_frames < 1 or count * width < num_frames:
        raise GraphError(f"{count} chunks of {width} frames do not cover an utterance of {num_frames} frames")
    if num_frames <= width:
        return [(0, num_frames)] * count
    last = num_frames - width
    starts = [index * last // (count - 1) for index in range(count)]
    return [(start, start + width) for start in starts]


def make_chunks(
    supervision: Supervision, windows: Sequence[tuple[int, int]], *, normalization: Fsa | None = None
) -> list[Chunk]:
    """The chunks of one utterance at `windows`, output frames [start, end), with weights that count each frame once.

    `normalization` is `DenominatorGraph.normalization_fsa()`; a window of which it accepts no path is a GraphError.
    """
    counts = np.zeros(supervision.num_frames, dtype=np.float32)
    graphs = {window: supervision.chunk(*window, normalization=normalization) for window in windows}
    for start, end in windows:
        counts[start:end] += 1
    return [
        Chunk(
            supervision.name,
            start,
            end,
            supervision.num_frames,
            graphs[start, end],
            1.0 / counts[start:end],
        )
        for start, end in windows
    ]


def save_chunks(
    path: str | os.PathLike[str],
    copies: Mapping[str, Iterable[Sequence[Chunk]]],
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write the chunks of a data set to one npz file; `origin` as for `save_numerators`.

    `copies` has for each utterance one list of chunks per copy, all of one length: the k-th chunks of the copies stand
    for each other.
    """
    utterances = {name: list(lists) for name, lists in copies.items()}
    chunks = [chunk for lists in utterances.values() for one in lists for chunk in one]
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "utterances": np.array(list(utterances), dtype=np.str_),
        "num_copies": np.array([len(lists) for lists in utterances.values()], dtype=np.int64),
        "num_chunks": np.array([len(lists[0]) if lists else 0 for lists in utterances.values()], np.int64),
        "names": np.array([chunk.utterance for chunk in chunks], dtype=np.str_),
        "frame_weights": join([chunk.frame_weights for chunk in chunks], np.float32),
    }
    arrays |= origin_array(origin)
    # "start" is also an array of the acceptors, which all start in state 0.
    arrays |= {f"chunk_{name}": np.array([getattr(c, name) for c in chunks], np.int64) for name in _NUMBERS}
    arrays |= join_fsas([chunk.fsa for chunk in chunks])
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def load_chunks(path: str | os.PathLike[str]) -> dict[str, list[list[Chunk]]]:
    """Read what `save_chunks` wrote, in its order; another file is a GraphError."""
    return read_archive(path, NPZ_FORMAT, _of_arrays, "no archive of chunks written by fsachain")


def _of_arrays(arrays: Arrays) -> dict[str, list[list[Chunk]]]:
    fsas, _ = split_fsas(arrays)
    utterances, names = unique_names(arrays, "utterances"), texts(arrays, "names").tolist()
    if len(names) != len(fsas):
        raise ValueError(f"names has {len(names)} rows, num_states {len(fsas)}")
    start, end, of_frames = (numbers(arrays, f"chunk_{name}", np.int64, len(names)) for name in _NUMBERS)
    if start.min(initial=0) < 0 or (end < start).any():
        raise ValueError("chunk_start and chunk_end are no spans of frames")
    weights = numbers(arrays, "frame_weights", np.float32)
    first_frame = offsets(end - start, len(weights), "chunk_start and chunk_end").tolist()
    num_copies = numbers(arrays, "num_copies", np.int64, len(utterances))
    num_chunks = numbers(arrays, "num_chunks", np.int64, len(utterances))
    what = "num_copies and num_chunks"
    if min(num_chunks.min(initial=0), num_copies.min(initial=0)) < 0:
        raise ValueError(f"{what} do not share out the chunks: one is negative")
    if np.multiply(num_copies, num_chunks, dtype=np.float64).max(initial=0) > len(
        names
    ):  # int64 would wrap around
        raise ValueError(f"{what} do not share out the {len(names)} chunks")
    first_chunk = offsets(num_copies * num_chunks, len(names), what).tolist()
    spans = zip(
        names, start.tolist(), end.tolist(), of_frames.tolist(), fsas, pairwise(first_frame), strict=True
    )
    chunks = [
        Chunk(name, begin, stop, length, fsa, weights[slice(*frames)])
        for name, begin, stop, length, fsa, frames in spans
    ]
    return {
        name: [chunks[place : place + count] for place in range(first, last, max(1, count))]
        for name, count, (first, last) in zip(
            utterances, num_chunks.tolist(), pairwise(first_chunk), strict=True
        )
    }


def holds_chunks(path: str | os.PathLike[str]) -> bool:
    """Whether `load_chunks` is the function for this file; False for what is no npz file at all."""
    try:
        return bool(read_npz(path, ("format",))["format"].item() == NPZ_FORMAT)
    except (DataError, KeyError, ValueError):
        return False
