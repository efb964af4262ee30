"""Kaldi's lattices as bytes and as text, written for tests from the description of their formats."""

import math
import struct


def binary(arcs, finals, start=0, *, compact=True):
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


def text(arcs, finals, *, compact=True):
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
