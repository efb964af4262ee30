"""PyChain, k2, GTN and torch-struct on acceptors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain import Fsa, TableBatch, TransitionTable, best_path, compile_table, forward_backward
from fsachain.backends.dispatch import BackendName
from tests import tolerances
from tools.golden.rows import Case, Row, compare, graph_files, graph_fsa

CLAMP = 30.0


def cases(shared: Path) -> list[Case]:
    """The files of golden/peers whose graphs are acceptors."""
    kinds = {
        "pychain_*": pychain_rows,
        "k2_intersect_*": k2_rows,
        "gtn_ctc": gtn_rows,
        "torch_struct_linearchain": torch_struct_rows,
    }
    found = []
    for pattern, rows in kinds.items():
        for path in sorted((shared / "golden" / "peers").glob(f"{pattern}.npz")):
            found.append(Case(f"peers/{path.stem}", partial(rows, shared, path)))
    return found


def cost_limits(theirs: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The allowed relative difference, of values below one as if they were one."""
    return tolerances.PEER_COST_RELATIVE * np.maximum(1.0, np.abs(np.asarray(theirs, dtype=np.float64)))


def _batch(shared: Path, values: Any, num_pdfs: int) -> TableBatch:
    if "src" in values:
        return TableBatch.share(compile_table(graph_fsa(values), num_pdfs), len(values["x"]))
    tables = [compile_table(graph, num_pdfs) for graph in graph_files(shared, values)]
    return (
        TableBatch.share(tables[0], len(values["x"])) if "graph_file" in values else TableBatch.pack(tables)
    )


def _with_ends(table: TransitionTable, values: Any) -> TransitionTable:
    """The ends that PyChain was run with: initial "leaky" or the graph's start, final ones or the graph's own."""
    with np.errstate(divide="ignore"):
        log_init = np.log(values["leaky_probs"].astype(np.float64))
    table = replace(table, leaky_log_prob=log_init)
    if str(values["initial_mode"]) == "leaky":
        table = replace(table, initial_log_prob=log_init)
    if str(values["final_mode"]) == "ones":
        table = replace(table, final_log_prob=np.zeros(table.num_states))
    return table


def pychain_rows(shared: Path, path: Path, backend: BackendName) -> Iterator[Row]:
    """PyChain; it clamps scores to +-30 and passes the gradient straight through."""
    values = np.load(path)
    case = f"peers/{path.stem}"
    scores = values["x"]
    batch, leaky = _batch(shared, values, scores.shape[2]), 0.0
    limit = tolerances.PEER_FSA_GRADIENT
    if path.stem == "pychain_num_clamp":
        scores, limit = scores.clip(-CLAMP, CLAMP), tolerances.PEER_CLAMP_GRADIENT
    if "initial_mode" in values:
        batch = TableBatch.share(_with_ends(batch.tables[0], values), len(scores))
        leaky = float(values["leaky_coefficient"])
    result = forward_backward(batch, scores, values["lengths"], leaky_hmm_coefficient=leaky, backend=backend)
    total = np.asarray(result.log_prob).sum()
    yield compare(case, "log Z, sum", total, values["objf"], cost_limits(values["objf"]))
    for key in ("objf_per_seq", "objf_ref64_per_seq"):
        if key in values:
            yield compare(case, f"log Z, {key}", result.log_prob, values[key], cost_limits(values[key]))
    yield compare(case, "gradient", result.occupancy, values["grad"], limit)


def k2_rows(shared: Path, path: Path, backend: BackendName) -> Iterator[Row]:
    """k2's intersection: exact with a beam of 1e6, and its best path."""
    values = np.load(path)
    case = f"peers/{path.stem}"
    batch = _batch(shared, values, values["x"].shape[2])
    result = forward_backward(batch, values["x"], values["lengths"], backend=backend)
    theirs = values["scores_beam1e+06"]
    yield compare(case, "log Z", result.log_prob, theirs, cost_limits(theirs))
    yield compare(case, "gradient", result.occupancy, values["grad_beam1e+06"], tolerances.PEER_FSA_GRADIENT)
    path_score = best_path(batch, values["x"], values["lengths"], backend=backend).score
    yield compare(case, "best path", path_score, values["tropical"], cost_limits(values["tropical"]))


def gtn_rows(shared: Path, path: Path, backend: BackendName) -> Iterator[Row]:
    values = np.load(path)
    case = f"peers/{path.stem}"
    batch = _batch(shared, values, values["x"].shape[2])
    result = forward_backward(batch, values["x"], backend=backend)
    yield compare(case, "log Z", result.log_prob, values["scores"], cost_limits(values["scores"]))
    yield compare(case, "gradient", result.occupancy, values["grad"], tolerances.PEER_FSA_GRADIENT)
    path_score = best_path(batch, values["x"], backend=backend).score
    theirs = values["viterbi_scores"]
    yield compare(case, "best path", path_score, theirs, cost_limits(theirs))


def torch_struct_rows(shared: Path, path: Path, backend: BackendName) -> Iterator[Row]:
    """torch-struct's linear chain as an acceptor: a state for each tag, a pdf for each (to, from), any first tag.

    A chain of `lengths` tags has one transition fewer.
    """
    values = np.load(path)
    case = f"peers/{path.stem}"
    potentials = values["log_potentials"]
    size, frames, tags, _ = potentials.shape
    to, origin = (grid.ravel() for grid in np.meshgrid(np.arange(tags), np.arange(tags), indexing="ij"))
    chain = Fsa(tags, origin, to, np.arange(tags * tags), np.zeros(tags * tags), np.zeros(tags))
    table = replace(compile_table(chain), initial_log_prob=np.zeros(tags))
    batch, scores = TableBatch.share(table, size), potentials.reshape(size, frames, tags * tags)
    lengths = values["lengths"] - 1
    result = forward_backward(batch, scores, lengths, backend=backend)
    occupancy = np.asarray(result.occupancy, dtype=np.float64)
    limits = tolerances.KALDI_DERIVATIVE  # their values are float32
    yield compare(case, "log Z", result.log_prob, values["logZ"], cost_limits(values["logZ"]))
    yield compare(case, "marginals", occupancy.reshape(potentials.shape), values["marginals"], limits)
    path_score = best_path(batch, scores, lengths, backend=backend).score
    yield compare(case, "best path", path_score, values["max_score"], cost_limits(values["max_score"]))
    expected = (occupancy * scores).sum(axis=(1, 2))
    yield compare(case, "entropy", np.asarray(result.log_prob) - expected, values["entropy"], limits)
