"""The border between `Fsa` and OpenFst: pywrapfst objects and binary files in, the same out.

OpenFst stores costs (smaller is better) in 32 bits and reserves label 0 for epsilon; fsachain stores
log-probabilities and counts pdfs from 0. Hence log_prob = -cost and pdf = label - 1, here and in the AT&T
text of `fsachain.att` only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, require
from fsachain.fsa import Fsa
from fsachain.graph.transducer import Transducer

_TROPICAL = "standard"
_LOG = ("log", "log64")
_MAGIC = (2125659606).to_bytes(4, "little")  # how every OpenFst binary file begins


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
    arcs = Transducer.from_openfst(fst)
    _check_arcs(arcs, where)
    _check_finals(arcs.final_log_prob, where)
    # + 0.0 turns the -0.0 that a cost of 0 becomes into 0.0.
    log_prob, final_log_prob = arcs.log_prob + 0.0, arcs.final_log_prob + 0.0
    return Fsa(arcs.num_states, arcs.src, arcs.dst, arcs.ilabel - 1, log_prob, final_log_prob, arcs.start)


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
        GraphError: there is no such file, it is no FST or is cut short, or `from_openfst` refuses it.
    """
    return from_openfst(read_fst(path), source=os.fspath(path))


def write(fsa: Fsa, path: str | os.PathLike[str]) -> None:
    """Write `fsa` to `path` as OpenFst binary (vector, tropical).

    Raises:
        GraphError: the file cannot be written.
    """
    write_fst(to_openfst(fsa), path)


def read_fst(path: str | os.PathLike[str]) -> Any:
    """Read the OpenFst binary file at `path` as it is, labels and semiring untouched, into a pywrapfst FST.

    Raises:
        GraphError: there is no such file, it is no FST or is cut short.
    """
    pywrapfst = require("pywrapfst", extra="graph")
    name = os.fspath(path)
    if not Path(name).is_file():
        raise GraphError(f"{name}: no such file; expected an OpenFst binary file")
    with Path(name).open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:  # OpenFst itself would print to stderr before it gives up
            raise GraphError(f"{name}: not an OpenFst binary file (it does not begin as one)")
    try:
        return pywrapfst.Fst.read(name)
    except pywrapfst.FstError as error:
        size = Path(name).stat().st_size
        raise GraphError(
            f"{name}: not an OpenFst binary file, or cut short ({size} bytes; {error})"
        ) from error


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


def _check_arcs(arcs: Transducer, where: str) -> None:
    """Refuse the first arc that an `Fsa` cannot hold; arcs are numbered within their state, as in OpenFst."""
    cost = 0.0 - arcs.log_prob
    checks: tuple[tuple[npt.NDArray[np.bool_], str], ...] = (
        (arcs.ilabel != arcs.olabel, "expected an acceptor: equal input and output labels"),
        (arcs.ilabel <= 0, "expected labels >= 1 (pdf + 1); remove epsilons (label 0) first"),
        (np.isnan(cost) | (cost == -np.inf), "expected a finite cost or Infinity"),
        ((arcs.dst < 0) | (arcs.dst >= arcs.num_states), f"expected a destination in [0, {arcs.num_states})"),
    )
    for is_bad, expected in checks:
        if is_bad.any():
            arc = int(np.argmax(is_bad))
            src = int(arcs.src[arc])
            number = arc - int(np.searchsorted(arcs.src, src))
            came = (
                f"labels {arcs.ilabel[arc]}:{arcs.olabel[arc]}, cost {cost[arc]:g}, to state {arcs.dst[arc]}"
            )
            raise GraphError(f"{where}: state {src}, arc {number} has {came}; {expected}")


def _check_finals(final_log_prob: npt.NDArray[np.float64], where: str) -> None:
    bad = np.flatnonzero(np.isnan(final_log_prob) | (final_log_prob == np.inf))
    if bad.size:
        state = int(bad[0])
        cost = f"final cost {-final_log_prob[state]:g}"
        raise GraphError(f"{where}: state {state} has {cost}; expected a finite cost or Infinity")
