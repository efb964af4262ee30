"""Kaldi's chain examples (cegs): features with their times, and the supervision of each output.

Formats: Kaldi's nnet3/nnet-chain-example.cc, nnet3/nnet-common.cc (index vectors) and chain/chain-supervision.cc;
end-to-end examples and those made from alignments, merged or not.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from fsachain.fsa import Fsa
from fsachain.kaldi.fst import read_fsa
from fsachain.kaldi.indexes import Indexes, read_indexes
from fsachain.kaldi.stream import Cursor
from fsachain.kaldi.values import Floats, read_matrix, read_vector
from fsachain.on_access import OnAccess

Part = TypeVar("Part")

_MAX_PARTS = 200


class NnetInput(NamedTuple):
    """One input of the network.

    Attributes:
        name: `input` for the features, `ivector` for a speaker vector.
        indexes: sequence n, time t, extra x of each row.
        features: [rows, F].
    """

    name: str
    indexes: Indexes
    features: Floats


class ChainSupervision(NamedTuple):
    """The supervision of one output.

    Attributes:
        name: `output` as a rule.
        indexes: num_sequences x frames_per_sequence rows of n, t and x; t is a multiple of the subsampling.
        weight: of all frames in the objective.
        num_sequences, frames_per_sequence, label_dim: sizes; label_dim is the number of pdfs.
        end_to_end: one graph for each sequence; otherwise one acyclic graph for all, one after another.
        fsas: the graphs, weights of the normalization included if Kaldi has put them in; of several each is made anew
            on access.
        deriv_weights: factor on the derivative of each frame, rows as in `indexes`; empty for ones.
    """

    name: str
    indexes: Indexes
    weight: float
    num_sequences: int
    frames_per_sequence: int
    label_dim: int
    end_to_end: bool
    fsas: Sequence[Fsa]
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
    indexes = read_indexes(cursor)
    begin = cursor.position
    features = read_matrix(cursor)
    if len(features) != len(indexes):
        cursor.fail(f"input {name!r} has {len(indexes)} indexes and {len(features)} rows", begin)
    cursor.expect("</NnetIo>")
    return NnetInput(name, indexes, features)


def _read_output(cursor: Cursor) -> ChainSupervision:
    cursor.expect("<NnetChainSup>")
    name = cursor.token("name of an output")
    indexes = read_indexes(cursor)
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
    end_to_end, fsas = _read_fsas(cursor, num_sequences, partial(_read_fsa, label_dim=label_dim))
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


def _read_fsas(
    cursor: Cursor, num_sequences: int, read: Callable[[Cursor], Fsa]
) -> tuple[bool, Sequence[Fsa]]:
    """Whether the supervision is end-to-end, and its graphs; old files do not say, and are not."""
    if cursor.peek_token() != "<End2End>":
        return False, (read(cursor),)
    cursor.expect("<End2End>")
    if not cursor.boolean("end-to-end"):
        return False, (read(cursor),)
    cursor.expect("<Fsts>")
    fsas = (read(cursor),) if num_sequences == 1 else _Fsas(cursor, num_sequences, read)
    cursor.expect("</Fsts>")
    return True, fsas


def _read_fsa(cursor: Cursor, label_dim: int) -> Fsa:
    begin = cursor.position
    fsa = read_fsa(cursor)
    if fsa.num_arcs and int(fsa.pdf.max()) >= label_dim:
        cursor.fail(f"pdf {fsa.pdf.max()} in a supervision of {label_dim} pdfs", begin)
    return fsa


class _Fsas(OnAccess[Fsa]):
    """Graphs one behind the other, kept as in the file: the smallest `Fsa` is a hundred times as large.

    They are all read once, so that what is wrong is told at the beginning, and again on access.
    """

    def __init__(self, cursor: Cursor, count: int, read: Callable[[Cursor], Fsa]) -> None:
        begin = cursor.position
        self._ends, self._name, self._read = array("Q"), cursor.name, read
        for _ in range(count):
            read(cursor)
            self._ends.append(cursor.position - begin)
        self._content = bytes(cursor.data[begin : cursor.position])

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, place: int) -> Fsa:
        begin = self._ends[place - 1] if place else 0
        return self._read(Cursor(memoryview(self._content)[: self._ends[place]], self._name, begin))


def _read_deriv_weights(cursor: Cursor) -> Floats:
    """Weights as a vector (DW2), as bytes of 1/255 (DW), or none."""
    token = cursor.peek_token()
    if token == "<DW2>":
        cursor.expect(token)
        return read_vector(cursor)
    if token == "<DW>":
        cursor.expect(token)
        weights = cursor.integers("derivative weights").astype(np.float32)
        weights /= np.float32(255)
        return weights
    return np.zeros(0, dtype=np.float32)
