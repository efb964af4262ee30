"""Chain examples of Kaldi (cegs) as examples, numerators and weights for `LFMMILoss`, one for each sequence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.asr.data.dataset import Example, OutputWindow
from fsachain.asr.data.utterance import shortened
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.examples import ChainExample, ChainSupervision, Indexes, read_example, split_merged
from fsachain.errors import DataError, counted
from fsachain.fsa import Fsa

Places = npt.NDArray[np.int64]  # of rows


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
    table: str | os.PathLike[str], *, time_offset: int | None = None
) -> Iterator[SupervisedExample]:
    """The sequences of an archive of chain examples, end-to-end or made from alignments, merged or not, in order.

    `table` is as for `read_table` of `fsachain.asr.kaldi.archive`. `time_offset` is the input frame, counted from that of an
    output,
    on which the network to be trained centres the output; None: half the subsampling, as `Tdnnf.time_offset`. Rows are left
    out, or the first is repeated, so that this is the frame of Kaldi's index. Frames must be evenly spaced.
    """
    for key, found in read_table(table, read_example):
        try:
            yield from _split(key, found, time_offset)
        except DataError as error:
            raise DataError(f"{os.fspath(table)}: example {key!r}: {error}") from error


def _split(key: str, found: ChainExample, time_offset: int | None) -> Iterator[SupervisedExample]:
    inputs = {part.name: part for part in found.inputs}
    outputs = {part.name: part for part in found.outputs}
    for name, names in (("input", list(inputs)), ("output", list(outputs))):
        if name not in names:
            raise DataError(f"has {', '.join(names)}; expected {name!r}")
    part, output, ivector = inputs["input"], outputs["output"], inputs.get("ivector")
    if len(output.indexes.t) > len(part.indexes.t):
        raise DataError(
            f"the output has {counted(len(output.indexes.t), 'frame')}, the input {len(part.indexes.t)}; "
            "expected at least as many"
        )
    fsas: Iterable[Fsa] = output.fsas
    if not output.end_to_end and output.num_sequences > 1:
        fsas = split_merged(output.fsas[0], output.num_sequences, output.frames_per_sequence)
    for n, fsa in enumerate(fsas):
        places = _rows_of(part.indexes, n)
        times = part.indexes.t[places].astype(np.int64)
        if not len(times) or np.any(np.diff(times) != 1):
            raise DataError(f"sequence {n} of the input: expected every time once, without gaps")
        first, subsampling, weights = _window(output, n, int(times[0]), int(times[-1]))
        first -= subsampling // 2 if time_offset is None else time_offset
        # Row `first` comes to a multiple of the subsampling.
        places = np.concatenate(
            [np.repeat(places[:1], max(-first, 0)), places[max(first, 0) % subsampling :]]
        )
        example = Example(
            key if output.num_sequences == 1 else f"{key}-{n}",
            key,
            (),
            part.features[places].astype(np.float32, copy=False),
            OutputWindow(max(first, 0) // subsampling, weights),
        )
        vector = None
        if ivector is not None:
            rows = _rows_of(ivector.indexes, n)
            if not len(rows):
                raise DataError(f"the input {ivector.name!r} has no row for sequence {n}")
            vector = ivector.features[rows[0]].astype(np.float32)
        yield SupervisedExample(example, fsa, output.weight, subsampling, output.label_dim, vector)


def _rows_of(indexes: Indexes, n: int) -> Places:
    """The rows of sequence n in order of time."""
    mine = np.flatnonzero(indexes.n == n)
    return mine[np.argsort(indexes.t[mine], kind="stable")]


def _window(
    output: ChainSupervision, n: int, first: int, last: int
) -> tuple[int, int, npt.NDArray[np.float32]]:
    """Row of the first output among the input's times [first, last], input frames per output frame, frame weights."""
    places = np.flatnonzero(output.indexes.n == n)
    frames = output.indexes.t[places].astype(np.int64)
    subsampling = int(frames[1] - frames[0]) if len(frames) > 1 else 1
    if len(frames) != output.frames_per_sequence or subsampling < 1 or np.any(np.diff(frames) != subsampling):
        raise DataError(
            f"sequence {n} of the output: expected {counted(output.frames_per_sequence, 'even step')}, got frames "
            f"{shortened(frames.tolist())}"
        )
    if frames[0] < first or frames[-1] > last:
        raise DataError(
            f"sequence {n} of the output: times {frames[0]} to {frames[-1]} lie not in those of the "
            f"input, {first} to {last}"
        )
    weights = output.deriv_weights[places] if len(output.deriv_weights) else np.ones(len(frames), np.float32)
    return int(frames[0]) - first, subsampling, weights.astype(np.float32, copy=False)
