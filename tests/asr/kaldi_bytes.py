"""Kaldi's binary forms, written for tests from their description: what no wheel writes; and how they are damaged."""

import math
import random
import re
import struct

from hypothesis import strategies as st

from fsachain.errors import DataError
from tools.fuzz.damage import HUGE, damaged  # noqa: F401
from tools.fuzz.reader import within

MEMORY_PER_BYTE = 20  # the value included; a claim of a header is 2 ** 31
MEMORY_FLOOR = 8_000_000


def i4(value):
    return b"\4" + struct.pack("<i", value)


def f4(value):
    return b"\4" + struct.pack("<f", value)


def matrix(values):
    rows, columns = values.shape
    return b"FM " + i4(rows) + i4(columns) + values.astype("<f4").tobytes()


def const_fst(arcs, finals, start=0, *, aligned=False):
    """A const FST; arcs: for each state a list of (ilabel, olabel, cost, dst); finals: costs."""
    flags, num_arcs = (4 if aligned else 0), sum(map(len, arcs))
    head = struct.pack("<i", 2125659606)
    head += struct.pack("<i", 5) + b"const" + struct.pack("<i", 8) + b"standard"
    head += struct.pack("<iiQqqq", 1 if aligned else 2, flags, 0, start, len(arcs), num_arcs)
    pad = (lambda data: data + b"\0" * (-len(data) % 16)) if aligned else (lambda data: data)
    data, first = pad(head), 0
    for final, leaving in zip(finals, arcs, strict=True):
        data += struct.pack("<fIIII", final, first, len(leaving), 0, 0)
        first += len(leaving)
    data = pad(data)
    for leaving in arcs:
        for ilabel, olabel, cost, dst in leaving:
            data += struct.pack("<iifi", ilabel, olabel, cost, dst)
    return data


def chain_example(
    features, indexes, outputs, sequences, fsts, weights=b"", num_pdfs=4, weight=0.5, end_to_end=True
):
    """A chain example; indexes (n, t, x), of the features and of the outputs, are written in full."""

    def vector(rows):
        escaped = b"".join(b"\x7f" + i4(n) + i4(t) + i4(x) for n, t, x in rows)
        return b"<I1V> " + i4(len(rows)) + escaped

    data = b"<Nnet3ChainEg> <NumInputs> " + i4(1) + b"<NnetIo> input " + vector(indexes) + matrix(features)
    data += b"</NnetIo> <NumOutputs> " + i4(1) + b"<NnetChainSup> output " + vector(outputs)
    data += b"<Supervision> <Weight> " + f4(weight) + b"<NumSequences> " + i4(sequences)
    data += b"<FramesPerSeq> " + i4(len(outputs) // sequences) + b"<LabelDim> " + i4(num_pdfs)
    data += b"<End2End> T<Fsts> " + fsts + b"</Fsts> " if end_to_end else b"<End2End> F" + fsts
    data += b"</Supervision> " + weights
    return data + b"</NnetChainSup> </Nnet3ChainEg> "


def check(path, content, read):
    """As `is_refused`, and within memory in proportion to the content."""
    with within(MEMORY_FLOOR + MEMORY_PER_BYTE * len(content)):
        is_refused(path, content, read)


def is_refused(path, content, read):
    """`read` gives a value, False, or a DataError that names the file and a place in it, True."""
    path.write_bytes(content)
    try:
        read(path)
    except DataError as error:
        assert str(path) in str(error)
        where = r"byte \d+|:\d+: |\.(ark|x|scp): |gaps|twice|cannot be read|no entries"
        assert re.search(where, str(error)), error
        assert "\n" not in str(error)
        return True
    return False


def damage(draw, content):
    return damaged(content, random.Random(draw(st.integers(0, 2**32))))


def lattice(arcs, finals, start=0, *, compact=True):
    """arcs: for each state a list of (word, transition ids, graph cost, acoustic cost, dst); finals: a weight or None.

    A weight is (graph cost, acoustic cost, transition ids). Plain lattices have one transition id, or none, on each arc.
    """

    def weight(graph, acoustic, string):
        data = struct.pack("<ff", graph, acoustic)
        return data + struct.pack(f"<i{len(string)}i", len(string), *string) if compact else data

    kind = b"compactlattice44" if compact else b"lattice4"
    data = struct.pack("<ii6si", 2125659606, 6, b"vector", len(kind)) + kind
    data += struct.pack("<iiQqqq", 2, 0, 0, start, len(arcs), sum(map(len, arcs)))
    for final, leaving in zip(finals, arcs, strict=True):
        data += weight(*(final or (math.inf, math.inf, ()))) + struct.pack("<q", len(leaving))
        for word, string, graph, acoustic, dst in leaving:
            ilabel = word if compact else (string[0] if string else 0)
            data += (
                struct.pack("<ii", ilabel, word) + weight(graph, acoustic, string) + struct.pack("<i", dst)
            )
    return data


def lattice_text(arcs, finals, *, compact=True):
    """The same as lines; the start is state 0."""

    def weight(graph, acoustic, string):
        return f"{graph},{acoustic}" + ("," + "_".join(map(str, string)) if compact else "")

    lines = []
    for state, leaving in enumerate(arcs):
        for word, string, graph, acoustic, dst in leaving:
            labels = str(word) if compact else f"{string[0] if string else 0}\t{word}"
            lines.append(f"{state}\t{dst}\t{labels}\t{weight(graph, acoustic, string)}")
    lines += [f"{state}\t{weight(*final)}" for state, final in enumerate(finals) if final]
    return ("\n" + "\n".join(lines) + "\n\n").encode()
