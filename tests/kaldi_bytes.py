"""Kaldi's binary forms, written for tests from their description: what no wheel writes."""

import struct

import numpy as np


def i4(value: int) -> bytes:
    return b"\4" + struct.pack("<i", value)


def f4(value: float) -> bytes:
    return b"\4" + struct.pack("<f", value)


def matrix(values: np.ndarray) -> bytes:
    rows, columns = values.shape
    return b"FM " + i4(rows) + i4(columns) + values.astype("<f4").tobytes()


def const_fst(arcs, finals, start: int = 0, *, aligned: bool = False) -> bytes:
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
    features,
    indexes,
    output_indexes,
    sequences: int,
    fsts: bytes,
    weights: bytes = b"",
    *,
    num_pdfs: int = 4,
    weight: float = 0.5,
    end_to_end: bool = True,
) -> bytes:
    """A chain example; indexes (n, t, x) are written in full."""

    def vector(rows) -> bytes:
        escaped = b"".join(b"\x7f" + i4(n) + i4(t) + i4(x) for n, t, x in rows)
        return b"<I1V> " + i4(len(rows)) + escaped

    data = b"<Nnet3ChainEg> <NumInputs> " + i4(1) + b"<NnetIo> input " + vector(indexes) + matrix(features)
    data += b"</NnetIo> <NumOutputs> " + i4(1) + b"<NnetChainSup> output " + vector(output_indexes)
    data += b"<Supervision> <Weight> " + f4(weight) + b"<NumSequences> " + i4(sequences)
    data += b"<FramesPerSeq> " + i4(len(output_indexes) // sequences) + b"<LabelDim> " + i4(num_pdfs)
    data += b"<End2End> T<Fsts> " + fsts + b"</Fsts> " if end_to_end else b"<End2End> F" + fsts
    data += b"</Supervision> " + weights
    return data + b"</NnetChainSup> </Nnet3ChainEg> "
