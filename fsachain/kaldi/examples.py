"""Kaldi's chain examples (cegs): features with their times, and the supervision of each output.

Formats: Kaldi's nnet3/nnet-chain-example.cc, nnet3/nnet-common.cc (index vectors) and chain/chain-supervision.cc;
end-to-end examples and those made from alignments, merged or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Fsa
from fsachain.kaldi.fst import read_fsa
from fsachain.kaldi.stream import Cursor
from fsachain.kaldi.values import Floats, read_matrix, read_vector

Part = TypeVar("Part")

_MAX_PARTS = 1000
_ESCAPE = 127


class NnetInput(NamedTuple):
    """One input of the network.

    Attributes:
        name: `input` for the features, `ivector` for a speaker vector.
        indexes: int64 [rows, 3]: sequence n, time t, extra x of each row.
        features: [rows, F].
    """

    name: str
    indexes: npt.NDArray[np.int64]
    features: Floats


class ChainSupervision(NamedTuple):
    """The supervision of one output.

    Attributes:
        name: `output` as a rule.
        indexes: int64 [num_sequences x frames_per_sequence, 3]: n, t, x; t is a multiple of the subsampling.
        weight: of all frames in the objective.
        num_sequences, frames_per_sequence, label_dim: sizes; label_dim is the number of pdfs.
        end_to_end: one graph for each sequence; otherwise one acyclic graph for all, one after another.
        fsas: the graphs, weights of the normalization included if Kaldi has put them in.
        deriv_weights: factor on the derivative of each frame, rows as in `indexes`; empty for ones.
    """

    name: str
    indexes: npt.NDArray[np.int64]
    weight: float
    num_sequences: int
    frames_per_sequence: int
    label_dim: int
    end_to_end: bool
    fsas: tuple[Fsa, ...]
    deriv_weights: Floats


class ChainExample(NamedTuple):
    """One entry of an archive of examples."""

    inputs: tuple[NnetInput, ...]
    outputs: tuple[ChainSupervision, ...]


def read_example(cursor: Cursor) -> ChainExample:
    """One chain example, binary or text; for `read_table`.

    Raises:
        DataError: no chain example, cut short, or with parts that do not fit each other.
    """
    cursor.expect("<Nnet3ChainEg>")
    cursor.expect("<NumInputs>")
    inputs = _parts(cursor, "inputs", _read_input)
    cursor.expect("<NumOutputs>")
    outputs = _parts(cursor, "outputs", _read_output)
    cursor.expect("</Nnet3ChainEg>")
    return ChainExample(inputs, outputs)


def _parts(cursor: Cursor, what: str, read: Callable[[Cursor], Part]) -> tuple[Part, ...]:
    return tuple(read(cursor) for _ in range(cursor.integer(f"number of {what}", 1, _MAX_PARTS)))


def _read_input(cursor: Cursor) -> NnetInput:
    cursor.expect("<NnetIo>")
    name = cursor.token("name of an input")
    indexes = _read_indexes(cursor)
    begin = cursor.position
    features = read_matrix(cursor)
    if len(features) != len(indexes):
        cursor.fail(f"input {name!r} has {len(indexes)} indexes and {len(features)} rows", begin)
    cursor.expect("</NnetIo>")
    return NnetInput(name, indexes, features)


def _read_indexes(cursor: Cursor) -> npt.NDArray[np.int64]:
    """Indexes (n, t, x); in binary one byte each where only t changes, and little."""
    cursor.expect("<I1V>")
    begin = cursor.position
    count = cursor.integer("number of indexes", 0)
    if count > cursor.left:
        cursor.fail(f"{count} indexes, {cursor.left} bytes are left", begin)
    rows = []
    n = t = x = 0
    for _ in range(count):
        if not cursor.binary:
            cursor.expect("<I1>")
        step = int.from_bytes(cursor.take(1, "an index"), "little", signed=True) if cursor.binary else _ESCAPE
        if step == _ESCAPE:
            n, t, x = (cursor.integer(f"{name} of an index") for name in "ntx")
        elif abs(step) < _ESCAPE - 2:
            t += step
        else:
            cursor.fail(f"step {step} of an index: expected -124 to 124, or {_ESCAPE}")
        rows.append((n, t, x))
    return np.array(rows, dtype=np.int64).reshape(count, 3)


def _read_output(cursor: Cursor) -> ChainSupervision:
    cursor.expect("<NnetChainSup>")
    name = cursor.token("name of an output")
    indexes = _read_indexes(cursor)
    begin = cursor.position
    cursor.expect("<Supervision>")
    cursor.expect("<Weight>")
    weight = cursor.real("weight")
    num_sequences, frames_per_sequence, label_dim = (
        _size(cursor, token) for token in ("<NumSequences>", "<FramesPerSeq>", "<LabelDim>")
    )
    if num_sequences * frames_per_sequence != len(indexes):
        cursor.fail(
            f"{num_sequences} sequences of {frames_per_sequence} frames, but {len(indexes)} indexes", begin
        )
    end_to_end, fsas = _read_fsas(cursor, num_sequences)
    for fsa in fsas:
        if fsa.num_arcs and int(fsa.pdf.max()) >= label_dim:
            cursor.fail(f"pdf {fsa.pdf.max()} in a supervision of {label_dim} pdfs", begin)
    if cursor.peek_token() == "<AlignmentPdfs>":
        cursor.expect("<AlignmentPdfs>")
        cursor.integers("pdfs of the alignment")
    cursor.expect("</Supervision>")
    weights = _read_deriv_weights(cursor)
    if len(weights) not in (0, len(indexes)):
        cursor.fail(f"{len(weights)} derivative weights for {len(indexes)} frames", begin)
    cursor.expect("</NnetChainSup>")
    return ChainSupervision(
        name, indexes, weight, num_sequences, frames_per_sequence, label_dim, end_to_end, fsas, weights
    )


def _size(cursor: Cursor, token: str) -> int:
    cursor.expect(token)
    return cursor.integer(token, 1)


def _read_fsas(cursor: Cursor, num_sequences: int) -> tuple[bool, tuple[Fsa, ...]]:
    """Whether the supervision is end-to-end, and its graphs; old files do not say, and are not."""
    if cursor.peek_token() != "<End2End>":
        return False, (read_fsa(cursor),)
    cursor.expect("<End2End>")
    if not cursor.boolean("end-to-end"):
        return False, (read_fsa(cursor),)
    cursor.expect("<Fsts>")
    fsas = tuple(read_fsa(cursor) for _ in range(num_sequences))
    cursor.expect("</Fsts>")
    return True, fsas


def _read_deriv_weights(cursor: Cursor) -> Floats:
    """Weights as a vector (DW2), as bytes of 1/255 (DW), or none."""
    token = cursor.peek_token()
    if token == "<DW2>":
        cursor.expect(token)
        return read_vector(cursor)
    if token == "<DW>":
        cursor.expect(token)
        return cursor.integers("derivative weights").astype(np.float32) / np.float32(255)
    return np.zeros(0, dtype=np.float32)
