"""The border between `Fsa` and OpenFst: pywrapfst objects and binary files in, the same out.

OpenFst stores costs (smaller is better) in 32 bits and reserves label 0 for epsilon; fsachain stores
log-probabilities and counts pdfs from 0. Hence log_prob = -cost and pdf = label - 1, here and in the AT&T
text of `fsachain.fsa` only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import DataError, GraphError, require
from fsachain.fsa import Fsa
from fsachain.graph.transducer import Transducer
from fsachain.kaldi.fst import MAGIC, read_arcs
from fsachain.kaldi.stream import open_file

_TROPICAL = "standard"
_LOG = ("log", "log64")


def from_openfst(fst: Any, source: str | None = None) -> Fsa:
    """The acceptor that a pywrapfst FST holds, arcs in its order (by source state).

    Args:
        fst: any pywrapfst FST over the tropical ("standard") or log semiring ("log", "log64"; the latter is
            rounded to 32 bits). Labels are pdf + 1 on both sides; a cost of Infinity is legal on arcs
            (log_prob = -inf).
        source: name of the FST in error messages, such as its path.

    Raises:
        GraphError: no states, an epsilon or negative label, different labels on the two sides of an arc, a
            weight of NaN or cost -Infinity, another semiring. The message names source, state and arc.
        MissingExtraError: pywrapfst is not installed.
    """
    where = source or "OpenFst acceptor"
    pywrapfst = require("pywrapfst", extra="graph")
    if fst.arc_type() in _LOG:
        fst = pywrapfst.arcmap(fst, map_type="to_std")
    if fst.arc_type() != _TROPICAL:
        raise GraphError(f"{where}: arc type {fst.arc_type()!r}; expected one of {(_TROPICAL, *_LOG)}")
    if fst.start() < 0:
        raise GraphError(f"{where}: no states or no start state; expected at least a start state")
    return Transducer.from_openfst(fst).acceptor(where)


def to_openfst(fsa: Fsa) -> Any:
    """The same acceptor as a pywrapfst `VectorFst` (tropical), arcs sorted by source state, ties in order.

    Weights are rounded to 32 bits; a log-probability below what these hold becomes -inf.

    Raises:
        GraphError: a log-probability too large for 32 bits.
        MissingExtraError: pywrapfst is not installed.
    """
    limit = float(np.finfo(np.float32).max)
    for name in ("log_prob", "final_log_prob"):
        too_large = np.flatnonzero(getattr(fsa, name) > limit)
        if too_large.size:
            index = int(too_large[0])
            raise GraphError(
                f"{name}[{index}] = {getattr(fsa, name)[index]}: OpenFst's 32 bits hold at most {limit}"
            )
    label = fsa.pdf.astype(np.int64) + 1
    if label.size and label.max() > np.iinfo(np.int32).max:
        raise GraphError(f"pdf {label.max() - 1}: OpenFst's labels hold at most {np.iinfo(np.int32).max - 1}")
    src, dst, labels = (array.astype(np.int32) for array in (fsa.src, fsa.dst, label))
    with np.errstate(over="ignore"):
        return Transducer(
            fsa.num_states, fsa.start, src, dst, labels, labels, fsa.log_prob, fsa.final_log_prob
        ).to_openfst()


def read(path: str | os.PathLike[str]) -> Fsa:
    """Read the OpenFst binary file at `path`; see `from_openfst` for what it may hold.

    Raises:
        GraphError: `read_transducer` or `from_openfst` refuses it.
    """
    return read_transducer(path).acceptor(os.fspath(path))


def write(fsa: Fsa, path: str | os.PathLike[str]) -> None:
    """Write `fsa` to `path` as OpenFst binary (vector, tropical).

    Raises:
        GraphError: the file cannot be written.
    """
    write_fst(to_openfst(fsa), path)


def read_transducer(path: str | os.PathLike[str]) -> Transducer:
    """Read the OpenFst binary file at `path` as it is: states, labels and weights that cannot be are not looked for.

    OpenFst's own reader would reserve what a header claims, and end the process where it cannot; ours does not.

    Raises:
        GraphError: there is no such file, it is no FST, is cut short, or is of a kind that `kaldi.fst` does not read.
    """
    name = os.fspath(path)
    if not Path(name).is_file():
        raise GraphError(f"{name}: no such file; expected an OpenFst binary file")
    try:
        cursor = open_file(name)
        if cursor.peek(len(MAGIC)) != MAGIC:
            raise GraphError(f"{name}: not an OpenFst binary file (it does not begin as one)")
        return read_arcs(cursor)
    except DataError as error:
        raise GraphError(f"{name}: not an OpenFst binary file, or cut short ({error})") from error


def write_fst(fst: Any, path: str | os.PathLike[str]) -> None:
    """Write a pywrapfst FST to `path` in OpenFst binary form.

    Raises:
        GraphError: the file cannot be written.
    """
    pywrapfst = require("pywrapfst", extra="graph")
    try:
        fst.write(os.fspath(path))
    except (pywrapfst.FstError, OSError) as error:
        raise GraphError(f"{os.fspath(path)}: cannot be written ({error})") from error
