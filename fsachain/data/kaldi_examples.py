"""Chain examples of Kaldi (cegs) as examples, numerators and weights of ours, one for each sequence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fsachain.data.dataset import Example
from fsachain.data.windows import OutputWindow
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.examples import ChainExample, ChainSupervision, NnetInput, read_example
from fsachain.kaldi.merged import split_merged


@dataclass(frozen=True, eq=False)
class SupervisedExample:
    """A sequence to train on.

    Attributes:
        example: features of the input, window of the outputs that count and the factors on their derivatives.
        numerator: its graph; Kaldi has composed the normalization into it.
        weight: of the sequence in the objective.
        subsampling: input frames per output frame.
        num_pdfs: width of the network output.
        speaker_vector: the `ivector` input, float32 [I], or None.
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

    Args:
        table: as for `fsachain.kaldi.archive.read_table`; `.gz` archives too.
        input_name: which input holds the features.
        output_name: which output is trained.
        time_offset: input frame, counted from that of an output, on which the network that is trained centres the
            output. Rows are left out, or the first is repeated, so that this is the frame of Kaldi's index. None:
            half the subsampling, as `Tdnnf.time_offset`.

    Raises:
        DataError: the archive cannot be read; an example without this input or output, with frames that are not
            evenly spaced, or with merged graphs that `split_merged` cannot take apart.
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
    output = outputs[output_name]
    fsas = output.fsas
    if not output.end_to_end and output.num_sequences > 1:
        fsas = tuple(split_merged(fsas[0], output.num_sequences, output.frames_per_sequence))
    for n, fsa in enumerate(fsas):
        times, features = _rows(inputs[input_name], n)
        first, subsampling, weights = _window(output, n, times)
        first -= subsampling // 2 if time_offset is None else time_offset
        context = max(first, 0) // subsampling
        before = np.repeat(features[:1], max(-first, 0), axis=0)
        features = np.concatenate([before, features[max(first, 0) % subsampling :]])
        yield SupervisedExample(
            Example(
                key if output.num_sequences == 1 else f"{key}-{n}",
                key,
                (),
                features,
                OutputWindow(context, weights),
            ),
            fsa,
            output.weight,
            subsampling,
            output.label_dim,
            _speaker_vector(inputs.get("ivector"), n),
        )


def _rows(part: NnetInput, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and features of sequence n, in order of time."""
    mine = np.flatnonzero(part.indexes[:, 0] == n)
    times = part.indexes[mine, 1]
    order = np.argsort(times, kind="stable")
    times = times[order]
    if not len(times) or np.any(np.diff(times) != 1):
        raise DataError(f"input {part.name!r}, sequence {n}: expected every time once, without gaps")
    return times, part.features[mine[order]].astype(np.float32)


def _window(output: ChainSupervision, n: int, times: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Input frame of the first output that counts, input frames per output frame, factors on derivatives."""
    mine = np.flatnonzero(output.indexes[:, 0] == n)
    frames = output.indexes[mine, 1]
    steps = np.unique(np.diff(frames))
    if len(frames) != output.frames_per_sequence or len(steps) > 1 or (len(steps) and steps[0] < 1):
        raise DataError(
            f"output {output.name!r}, sequence {n}: expected {output.frames_per_sequence} even steps"
        )
    subsampling = int(steps[0]) if len(steps) else 1
    if frames[0] < times[0] or frames[-1] > times[-1]:
        raise DataError(
            f"output {output.name!r}, sequence {n}: times {frames[0]} to {frames[-1]} lie not in those of the "
            f"input, {times[0]} to {times[-1]}"
        )
    weights = output.deriv_weights[mine] if len(output.deriv_weights) else np.ones(len(mine))
    return int(frames[0] - times[0]), subsampling, weights.astype(np.float32)


def _speaker_vector(part: NnetInput | None, n: int) -> np.ndarray | None:
    if part is None:
        return None
    mine = np.flatnonzero(part.indexes[:, 0] == n)
    if not len(mine):
        raise DataError(f"input {part.name!r} has no row for sequence {n}")
    return part.features[mine[0]].astype(np.float32)
