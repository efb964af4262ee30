"""Kaldi's chain examples (cegs): features with their times, and the supervision of each output.

Formats: Kaldi's nnet3/nnet-chain-example.cc, nnet3/nnet-common.cc (index vectors) and chain/chain-supervision.cc;
end-to-end examples and those made from alignments, merged or not.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.asr.kaldi.values import Floats, read_matrix, read_vector
from fsachain.errors import DataError, brief, counted
from fsachain.fsa import Fsa, arcs_from, read_fsa, restricted
from fsachain.stream import Cursor, open_file

Ints = npt.NDArray[np.int32]

# An index takes one byte, the step of the time, where n and x stay and the step is small; else 127 and three integers.
_ESCAPE = 127
_LARGEST_STEP = 124
_HIGHEST = 2**31 - 1
_MAX_PARTS = 200


class Indexes(NamedTuple):
    """Which sequence n and time t, in frames, each row belongs to, and its extra index x: int32 [rows] each."""

    n: Ints
    t: Ints
    x: Ints

    def __repr__(self) -> str:
        return brief(self)


def read_indexes(cursor: Cursor) -> Indexes:
    """An index vector, binary or text. Rows without numbers of their own have the n and x of the row before."""
    cursor.expect("<I1V>")
    columns = array("i"), array("i"), array("i")
    n = t = x = 0
    for _ in range(cursor.integer("number of indexes", 0)):
        if not cursor.binary:
            cursor.expect("<I1>")
        step = int.from_bytes(cursor.take(1, "an index"), "little", signed=True) if cursor.binary else _ESCAPE
        if step == _ESCAPE:
            n, t, x = (cursor.integer(f"{name} of an index") for name in "ntx")
        elif abs(step) <= _LARGEST_STEP:
            t += step
        else:
            cursor.fail(f"step {step} of an index: expected -124 to 124, or {_ESCAPE}")
        if abs(t) > _HIGHEST:
            cursor.fail(f"time {t} of an index: expected at most {_HIGHEST}")
        for column, number in zip(columns, (n, t, x), strict=True):
            column.append(number)
    return Indexes(*(np.frombuffer(column, np.int32) for column in columns))


class NnetInput(NamedTuple):
    """One input of the network: `input` for the features, `ivector` for a speaker vector; features [rows, F]."""

    name: str
    indexes: Indexes
    features: Floats

    def __repr__(self) -> str:
        return brief(self)


class ChainSupervision(NamedTuple):
    """The supervision of one output.

    `indexes` has num_sequences x frames_per_sequence rows; t is a multiple of the subsampling. `label_dim` is the number
    of pdfs. `fsas` has one graph for each sequence if `end_to_end`, else one acyclic graph for all, one after another;
    their weights include those of the normalization if Kaldi has put them in. `deriv_weights` are factors on the derivative
    of each frame, rows as in `indexes`; empty for ones.
    """

    name: str
    indexes: Indexes
    weight: float
    num_sequences: int
    frames_per_sequence: int
    label_dim: int
    end_to_end: bool
    fsas: tuple[Fsa, ...]
    deriv_weights: Floats

    def __repr__(self) -> str:
        return brief(self)


class ChainExample(NamedTuple):
    inputs: tuple[NnetInput, ...]
    outputs: tuple[ChainSupervision, ...]

    def __repr__(self) -> str:
        return brief(self)


def read_example(cursor: Cursor) -> ChainExample:
    """One chain example, binary or text; for `read_table`."""
    cursor.expect("<Nnet3ChainEg>")
    cursor.expect("<NumInputs>")
    inputs = [_read_input(cursor) for _ in range(cursor.integer("number of inputs", 1, _MAX_PARTS))]
    cursor.expect("<NumOutputs>")
    outputs = [_read_output(cursor) for _ in range(cursor.integer("number of outputs", 1, _MAX_PARTS))]
    cursor.expect("</Nnet3ChainEg>")
    return ChainExample(tuple(inputs), tuple(outputs))


def _read_input(cursor: Cursor) -> NnetInput:
    cursor.expect("<NnetIo>")
    name = cursor.token("name of an input")
    indexes = read_indexes(cursor)
    begin = cursor.position
    features = read_matrix(cursor)
    if len(features) != len(indexes.t):
        cursor.fail(
            f"input {name!r} has {counted(len(indexes.t), 'index')} and {counted(len(features), 'row')}",
            begin,
        )
    cursor.expect("</NnetIo>")
    return NnetInput(name, indexes, features)


def _read_output(cursor: Cursor) -> ChainSupervision:
    def size(token: str) -> int:
        cursor.expect(token)
        return cursor.integer(token, 1)

    cursor.expect("<NnetChainSup>")
    name = cursor.token("name of an output")
    indexes = read_indexes(cursor)
    begin = cursor.position
    cursor.expect("<Supervision>")
    cursor.expect("<Weight>")
    weight = cursor.real("weight")
    sequences, frames, label_dim = size("<NumSequences>"), size("<FramesPerSeq>"), size("<LabelDim>")
    if sequences * frames != len(indexes.t):
        cursor.fail(
            f"{counted(sequences, 'sequence')} of {counted(frames, 'frame')}, but {counted(len(indexes.t), 'index')}",
            begin,
        )
    end_to_end = False  # old files do not say, and are not
    if cursor.peek_token() == "<End2End>":
        cursor.expect("<End2End>")
        end_to_end = cursor.boolean("end-to-end")
    if end_to_end:
        cursor.expect("<Fsts>")
    fsas = tuple(_read_fsa(cursor, label_dim) for _ in range(sequences if end_to_end else 1))
    if end_to_end:
        cursor.expect("</Fsts>")
    if cursor.peek_token() == "<AlignmentPdfs>":
        cursor.expect("<AlignmentPdfs>")
        cursor.integers("pdfs of the alignment")
    cursor.expect("</Supervision>")
    weights: Floats = np.zeros(0, dtype=np.float32)
    token = cursor.peek_token()
    if token in ("<DW2>", "<DW>"):
        cursor.expect(token)
        if token == "<DW2>":
            weights = read_vector(cursor)
        else:  # bytes of 1/255
            weights = cursor.integers("derivative weights").astype(np.float32) / np.float32(255)
    if len(weights) not in (0, len(indexes.t)):
        cursor.fail(
            f"{counted(len(weights), 'derivative weight')} for {counted(len(indexes.t), 'frame')}", begin
        )
    cursor.expect("</NnetChainSup>")
    return ChainSupervision(name, indexes, weight, sequences, frames, label_dim, end_to_end, fsas, weights)


def _read_fsa(cursor: Cursor, label_dim: int) -> Fsa:
    begin = cursor.position
    fsa = read_fsa(cursor)
    if fsa.num_arcs and int(fsa.pdf.max()) >= label_dim:
        cursor.fail(f"pdf {fsa.pdf.max()} in a supervision of {counted(label_dim, 'pdf')}", begin)
    return fsa


# nnet3-chain-merge-egs strings the graphs of a minibatch together: the first F frames of every path belong to
# the first sequence, the next F to the second, and so on. Between two sequences stands one state, or several
# with the same arcs, whose weights differ by a constant each: what the sequence before ended with (Kaldi's
# chain/chain-supervision.cc).

LOG_TOLERANCE = 1e-3  # weights are float32, sums of a few costs


def split_merged(fsa: Fsa, num_sequences: int, num_frames: int) -> Iterator[Fsa]:
    """The graphs that `fsa` strings together, in order: N acyclic acceptors, made one by one once all is checked.

    Every path of `fsa` has num_sequences * num_frames arcs. The weights of N paths, one of each graph, add up to the weight
    of the path that they form. A place between two sequences at which the one depends on the other is a DataError.
    """
    graph = fsa.trim()
    if not graph.num_arcs:
        raise DataError("the graph of merged sequences accepts nothing")
    time = _times(graph, num_sequences * num_frames)
    final, entries = graph.final_log_prob.copy(), [graph.start]
    for number in range(1, num_sequences):
        ends = np.flatnonzero(time == number * num_frames)
        entries.append(int(ends[0]))
        final[ends] = _constants(graph, ends, entries[-1], number - 1)

    def part(number: int, entry: int) -> Fsa:
        """The frames [number F, (number + 1) F) of all paths, from the state `entry`."""
        end = (number + 1) * num_frames
        inside = (time > number * num_frames) & (time <= end)
        inside[entry] = True
        return restricted(graph, inside, np.where(time == end, final, -np.inf), entry)

    return (part(number, entry) for number, entry in enumerate(entries))


def _times(graph: Fsa, num_frames: int) -> npt.NDArray[np.float64]:
    """Number of arcs on every path from the start to each state."""
    time = arcs_from(graph.start, graph.num_states, graph.src, graph.dst)
    ends = graph.final_log_prob > -np.inf
    if (time[graph.dst] != time[graph.src] + 1).any() or (time[ends] != num_frames).any():
        raise DataError(
            f"the graph of merged sequences has paths of other lengths; expected {counted(num_frames, 'frame')}"
        )
    return time


def _constants(graph: Fsa, states: npt.NDArray[np.int64], model: int, number: int) -> list[float]:
    """By how much the arcs of each state outweigh those of the state `model`: one constant for all arcs of a state."""
    expected = _arcs(graph, model)
    found = []
    for state in states.tolist():
        own = _arcs(graph, state)
        differences = [own.get(key, np.nan) - weight for key, weight in expected.items()]
        if own.keys() != expected.keys() or np.ptp(differences) > LOG_TOLERANCE:
            raise DataError(
                f"the graph of merged sequences goes on in several ways behind sequence {number}, which depend on it; "
                "expected graphs strung together"
            )
        found.append(differences[0])
    return found


def _arcs(graph: Fsa, state: int) -> dict[tuple[int, int], float]:
    """Log-weights of the arcs that leave a state, by pdf and destination."""
    arcs: dict[tuple[int, int], float] = {}
    for arc in np.flatnonzero(graph.src == state).tolist():
        key = int(graph.pdf[arc]), int(graph.dst[arc])
        arcs[key] = float(np.logaddexp(arcs.get(key, -np.inf), graph.log_prob[arc]))
    return arcs


# The objective that a log of nnet3-chain-compute-prob or nnet3-chain-train ends with.

_NUMBER = rb"(?:[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,4})?|nan|inf))"
_LINE = re.compile(
    rb"Overall (?:log-probability|average objective function) for '(?P<output>[^'\n]{1,200})' is (?P<objf>%b)"
    rb"(?: \+ (?P<l2>%b) = %b)?(?: per frame,)? over (?P<weight>%b) frames" % ((_NUMBER,) * 4)
)
_MOST_NAMED = 20  # outputs in a message


@dataclass(frozen=True)
class LoggedObjective:
    """What a log says of one output of the network; Kaldi prints six digits.

    `objf` is the log-probability per weighted frame, numerator less denominator; `l2_term` that of `--l2-regularize`, per
    weighted frame, 0 where the log has none; `weight` counts weighted frames.
    """

    objf: float
    l2_term: float
    weight: float


def read_objective(path: str | os.PathLike[str], output: str = "output") -> LoggedObjective:
    """The last overall objective of an output of the network in a Kaldi log, compute_prob_valid.final.log or the like.

    `.gz` files are read too.
    """
    cursor = open_file(path)
    line, others = None, dict[str, None]()
    for match in _LINE.finditer(cursor.data):
        name = match["output"].decode("utf-8", "replace")
        if name == output:
            line = match
        elif len(others) < _MOST_NAMED:
            others[name] = None
    if line is None:
        has = f"lines for {', '.join(map(repr, others))} alone" if others else "no such line"
        raise DataError(
            f"{cursor.name}: expected a line \"Overall log-probability for '{output}' is ... over ... frames\" (or "
            f'"Overall average objective function ..."), as nnet3-chain-compute-prob or -train write it; found {has}'
        )
    return LoggedObjective(float(line["objf"]), float(line["l2"] or 0.0), float(line["weight"]))
