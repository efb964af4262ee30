"""Decoding graphs on their way to the search: how they cross to other processes, and what keeps hostile ones out.

OpenFst reserves what the header of a file claims and ends the process where it cannot; it follows arcs to states that
are not there. So graphs are read by our own reader, and what it found is written anew for kaldifst: what was checked
is what is searched.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.errors import DataError, GraphError, require
from fsachain.graph.transducer import Transducer
from fsachain.kaldi.fst import read_fst
from fsachain.kaldi.stream import Cursor, open_file

Graph = Any  # path of an OpenFst file, its bytes, or a pywrapfst object


@dataclass(frozen=True)
class GraphFile:
    """A graph on disk; time and size are there so that a file written anew is read anew."""

    path: str
    modified_ns: int
    num_bytes: int


Source = GraphFile | bytes


def portable(graph: Graph) -> Source:
    """The graph as it crosses to another process; two versions of a file are told apart.

    Raises:
        GraphError: no such file, or something else than a path, bytes or a pywrapfst object.
    """
    if isinstance(graph, bytes | GraphFile):
        return graph
    if isinstance(graph, str | Path):
        path = Path(graph).resolve()
        if not path.is_file():
            raise GraphError(f"{path}: no such file")
        status = path.stat()
        return GraphFile(str(path), status.st_mtime_ns, status.st_size)
    if hasattr(graph, "write_to_string"):
        return bytes(graph.write_to_string())
    raise GraphError(f"graph: expected a path, bytes or a pywrapfst object, got {type(graph).__name__}")


@lru_cache(maxsize=1)
def load(source: Source) -> tuple[Any, int, int]:
    """The graph as kaldifst object, with the largest input and output label; the last graph is kept.

    Raises:
        GraphError: the graph cannot be read, is no decoding graph, or would keep the search from ending.
    """
    kaldifst = require("kaldifst", extra="recipes")
    where = "graph" if isinstance(source, bytes) else source.path
    try:
        arcs = read_fst(Cursor(source, where) if isinstance(source, bytes) else open_file(source.path))
    except DataError as error:
        raise GraphError(f"{where}: not a readable OpenFst file ({error})") from error
    _check_epsilon_cycles(arcs, where)
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        path = Path(folder, "graph.fst")
        path.write_bytes(arcs.to_bytes())
        fst = kaldifst.StdVectorFst.read(str(path))
    return fst, int(arcs.ilabel.max(initial=0)), int(arcs.olabel.max(initial=0))


def _check_epsilon_cycles(arcs: Transducer, where: str) -> None:
    """Refuse cycles that spend no frame and have an arc that gains: the search would go round for ever."""
    silent = np.flatnonzero((arcs.ilabel == 0) & (arcs.log_prob > -np.inf))
    if not (arcs.log_prob[silent] > 0).any():
        return
    src, dst = arcs.src[silent], arcs.dst[silent]
    adjacency = sparse.csr_array((np.ones(len(silent)), (src, dst)), shape=(arcs.num_states,) * 2)
    _, component = csgraph.connected_components(adjacency, connection="strong")
    bad = np.flatnonzero((component[src] == component[dst]) & (arcs.log_prob[silent] > 0))
    if bad.size:
        state, target, cost = src[bad[0]], dst[bad[0]], -arcs.log_prob[silent[bad[0]]]
        raise GraphError(
            f"{where}: the epsilon arc from state {state} to {target} has cost {cost:g} and lies on a cycle of epsilon "
            "arcs; expected no negative cost there (the search would not end)"
        )
