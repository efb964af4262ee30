"""Chain examples of Kaldi (cegs) as examples, numerators and weights for `LFMMILoss`, one for each sequence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.data.dataset import Example, OutputWindow
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.examples import (
    ChainExample,
    ChainSupervision,
    Indexes,
    Ints,
    NnetInput,
    read_example,
    split_merged,
)
from fsachain.kaldi.values import Floats

Places = slice | npt.NDArray[np.int64]  # of rows; a slice is no copy


@dataclass(frozen=True, eq=False)
class SupervisedExample:
    """A sequence to train on.

    `numerator` has Kaldi's normalization composed into it. `weight` is that of the sequence in the objective,
    `subsampling` counts input frames per output frame, `num_pdfs` is the width of the network output, `speaker_vector` the
    `ivector` input, float32 [I].
    """

    example: Example
    numerator: Fsa
    weight: float
    subsampling: int
    num_pdfs: int
    speaker_vector: np.ndarray | None


def read_examples(
    table: str | os.PathLike[str],
    *,
    input_name: str = "input",
    output_name: str = "output",
    time_offset: int | None = None,
) -> Iterator[SupervisedExample]:
    """The sequences of an archive of chain examples, end-to-end or made from alignments, merged or not, in order.

    `table` is as for `fsachain.kaldi.archive.read_table`. `time_offset` is the input frame, counted from that of an output,
    on which the network to be trained centres the output; None: half the subsampling, as `Tdnnf.time_offset`. Rows are left
    out, or the first is repeated, so that this is the frame of Kaldi's index. Frames must be evenly spaced.
    """
    for key, found in read_table(table, read_example):
        try:
            yield from _split(key, found, input_name, output_name, time_offset)
        except DataError as error:
            raise DataError(f"{os.fspath(table)}: example {key!r}: {error}") from error


def _split(
    key: str, found: ChainExample, input_name: str, output_name: str, time_offset: int | None
) -> Iterator[SupervisedExample]:
    inputs = {part.name: part for part in found.inputs}
    outputs = {part.name: part for part in found.outputs}
    for name, parts in ((input_name, inputs), (output_name, outputs)):
        if name not in parts:
            raise DataError(f"has {', '.join(parts)}; expected {name!r}")
    part, output = inputs[input_name], outputs[output_name]
    if len(output.indexes.t) > len(part.indexes.t):
        raise DataError(
            f"output {output_name!r} has {len(output.indexes.t)} frames, input {input_name!r} {len(part.indexes.t)}; "
            "expected at least as many"
        )
    fsas: Iterable[Fsa] = output.fsas
    if not output.end_to_end and output.num_sequences > 1:
        fsas = split_merged(output.fsas[0], output.num_sequences, output.frames_per_sequence)
    ivector = inputs.get("ivector")
    for n, fsa in enumerate(fsas):
        places, times = _consecutive(part.indexes, n, input_name)
        first, subsampling, weights = _window(output, n, times)
        first -= subsampling // 2 if time_offset is None else time_offset
        yield SupervisedExample(
            Example(
                key if output.num_sequences == 1 else f"{key}-{n}",
                key,
                (),
                _features(part.features, places, first, subsampling),
                OutputWindow(max(first, 0) // subsampling, weights),
            ),
            fsa,
            output.weight,
            subsampling,
            output.label_dim,
            None if ivector is None else _speaker_vector(ivector, n),
        )


def _rows_of(indexes: Indexes, n: int) -> tuple[Places, Ints]:
    mine = indexes.n == n
    places = slice(0, len(mine)) if mine.all() else np.flatnonzero(mine)
    return places, indexes.t[places]


def _consecutive(rows: Indexes, n: int, name: str) -> tuple[Places, Ints]:
    """Rows of sequence n of an input in order of time, and their times."""
    places, times = _rows_of(rows, n)
    if np.any(times[1:] <= times[:-1]):
        order = np.argsort(times, kind="stable")
        places, times = order if isinstance(places, slice) else places[order], times[order]
    if not len(times) or int(times[-1]) - int(times[0]) != len(times) - 1 or np.any(times[1:] <= times[:-1]):
        raise DataError(f"input {name!r}, sequence {n}: expected every time once, without gaps")
    return places, times


def _features(features: Floats, places: Places, first: int, subsampling: int) -> npt.NDArray[np.float32]:
    """Rows at `places`, float32, cut or padded in front: row `first` of them comes to a multiple of the subsampling."""
    found = features[places][max(first, 0) % subsampling :].astype(np.float32, copy=False)
    if first >= 0:
        return found
    return np.concatenate([np.repeat(features[places][:1], -first, axis=0), found], dtype=np.float32)


def _window(output: ChainSupervision, n: int, times: Ints) -> tuple[int, int, npt.NDArray[np.float32]]:
    """Input frame of the first output that counts, input frames per output frame, factors on derivatives."""
    places, frames = _rows_of(output.indexes, n)
    subsampling = int(frames[1]) - int(frames[0]) if len(frames) > 1 else 1
    if len(frames) != output.frames_per_sequence or subsampling < 1 or np.any(np.diff(frames) != subsampling):
        raise DataError(
            f"output {output.name!r}, sequence {n}: expected {output.frames_per_sequence} even steps"
        )
    if frames[0] < times[0] or frames[-1] > times[-1]:
        raise DataError(
            f"output {output.name!r}, sequence {n}: times {frames[0]} to {frames[-1]} lie not in those of the "
            f"input, {times[0]} to {times[-1]}"
        )
    weights = output.deriv_weights[places] if len(output.deriv_weights) else np.ones(len(frames), np.float32)
    return int(frames[0]) - int(times[0]), subsampling, weights.astype(np.float32, copy=False)


def _speaker_vector(part: NnetInput, n: int) -> npt.NDArray[np.float32]:
    places, times = _rows_of(part.indexes, n)
    if not len(times):
        raise DataError(f"input {part.name!r} has no row for sequence {n}")
    return part.features[places][0].astype(np.float32)
