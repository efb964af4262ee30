"""Determinisation and minimisation of acceptors by OpenFst, in a semiring that is named.

The two semirings give different graphs: in the log semiring the weights of all paths of a sequence are added, in
the tropical one the best stays. Both keep what they call the score of a sequence, and not the other's.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import MatrixRankWarning, spsolve

from fsachain.errors import ConfigError, GraphError, require
from fsachain.fsa import Fsa
from fsachain.graph.facts import graph_facts
from fsachain.graph.random_paths import SEMIRINGS

# OpenFst rounds weights to multiples of this before it compares them, and keeps them rounded.
DELTA = 2.0**-17


def determinize(fsa: Fsa, *, semiring: str) -> Fsa:
    """One path for each accepted pdf sequence, with its score in `semiring`; parallel arcs become one.

    Args:
        fsa: the acceptor. Acyclic, or deterministic but for parallel arcs: a graph with a cycle need not have
            a deterministic form, and OpenFst would not end.
        semiring: "log" or "tropical".

    Raises:
        GraphError: a cyclic graph that is not deterministic, or one that accepts nothing.
        ConfigError: another semiring.
    """
    facts = graph_facts(_accepting(fsa, semiring))
    if facts.is_deterministic:
        return fsa.trim()
    if facts.num_cycles:
        raise GraphError(
            f"{facts.num_cyclic_states} states lie on cycles: determinisation of a cyclic graph that is not "
            "deterministic may not end; `fsachain.graph.lumping.lump` merges its states"
        )
    pywrapfst = require("pywrapfst", extra="graph")
    return _back(pywrapfst.determinize(_in_semiring(fsa.trim(), semiring), delta=DELTA))


def minimize(fsa: Fsa, *, semiring: str) -> Fsa:
    """The smallest deterministic graph of the same sequences and scores; weights are pushed to the start.

    Args:
        fsa: a deterministic acceptor, such as den.fst or what `determinize` gives.
        semiring: "log" or "tropical".

    Raises:
        GraphError: a graph that is not deterministic or accepts nothing, or whose cycles gain: then no weight
            can be pushed, and OpenFst would not end.
        ConfigError: another semiring.
    """
    trimmed = _accepting(fsa, semiring)
    if not graph_facts(trimmed).is_deterministic:
        raise GraphError(
            "some state has two arcs of one pdf: expected a deterministic graph; determinize it first"
        )
    if not (_best_scores_exist(trimmed) if semiring == "tropical" else _sums_exist(trimmed)):
        raise GraphError(
            f"a cycle gains weight: in the {semiring} semiring the paths from its states to the end have no finite score"
        )
    fst = _in_semiring(trimmed, semiring)
    fst.minimize(delta=DELTA)
    return _back(fst)


def _best_scores_exist(fsa: Fsa) -> bool:
    """No cycle has a positive log-probability in all."""
    usable = fsa.log_prob > -np.inf
    src, dst, cost = fsa.src[usable], fsa.dst[usable], -fsa.log_prob[usable]
    order = np.lexsort(
        (cost, dst, src)
    )  # of parallel arcs the best counts; a sparse matrix would add them up
    src, dst, cost = src[order], dst[order], cost[order]
    first = np.append(True, (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]))[: len(src)]
    # An explicit zero is no edge to scipy, so costs of 0 become the smallest number there is.
    weights = np.where(cost[first] == 0, np.finfo(np.float64).tiny, cost[first])
    edges = sparse.csr_array((weights, (src[first], dst[first])), shape=(fsa.num_states,) * 2)
    try:
        csgraph.bellman_ford(edges, indices=fsa.start)
    except csgraph.NegativeCycleError:
        return False
    return True


def _sums_exist(fsa: Fsa) -> bool:
    """The sums x = M x + final over all paths to the end are finite: M has no eigenvalue of 1 or more.

    Every state reaches the end. Then a positive solution x exists if and only if that is so (Perron, Frobenius).
    """
    with np.errstate(over="ignore"):
        prob, final = np.exp(fsa.log_prob), np.exp(fsa.final_log_prob)
    if not (np.isfinite(prob).all() and np.isfinite(final).all()):
        return False
    steps = sparse.csc_array((prob, (fsa.src, fsa.dst)), shape=(fsa.num_states,) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MatrixRankWarning)  # a singular matrix gives NaN, which says it all
        total = spsolve(sparse.eye_array(fsa.num_states, format="csc") - steps, final)
    return bool(np.all(np.isfinite(total) & (total > 0)))


def _accepting(fsa: Fsa, semiring: str) -> Fsa:
    if semiring not in SEMIRINGS:
        raise ConfigError(f"semiring = {semiring!r}: expected one of {', '.join(SEMIRINGS)}")
    trimmed = fsa.trim()
    if trimmed.min_frames() == float("inf"):
        raise GraphError(f"the acceptor ({fsa.num_states} states, {fsa.num_arcs} arcs) accepts no sequence")
    return trimmed


def _in_semiring(fsa: Fsa, semiring: str) -> Any:
    fst = fsa.to_openfst()
    if semiring == "log":
        fst = require("pywrapfst", extra="graph").arcmap(fst, map_type="to_log")
    return fst


def _back(fst: Any) -> Fsa:
    fst.connect()
    return Fsa.from_openfst(fst)
