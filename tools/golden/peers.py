"""PyChain, k2, GTN and torch-struct on acceptors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fsachain import Fsa, TableBatch, TransitionTable, best_path, compile_table, forward_backward
from fsachain.backends.dispatch import BackendName
from tests import tolerances
from tools.golden.rows import Case, Compared, cost_limits, graph_fsa

CLAMP = 30.0


def cases(shared: Path) -> list[Case]:
    """The files of golden/peers whose graphs are acceptors."""
    kinds = {
        "pychain_*": pychain_rows,
        "k2_intersect_*": partial(viterbi_rows, keys=("scores_beam1e+06", "grad_beam1e+06", "tropical")),
        "gtn_ctc": partial(viterbi_rows, keys=("scores", "grad", "viterbi_scores")),
        "torch_struct_linearchain": torch_struct_rows,
    }
    return [
        Case(f"peers/{path.stem}", path, rows)
        for pattern, rows in kinds.items()
        for path in sorted((shared / "golden" / "peers").glob(f"{pattern}.npz"))
    ]


def _batch(path: Path, values: Any, num_pdfs: int) -> TableBatch:
    """Of the file's own graph, or of files of data/graphs; one graph is shared by all sequences."""
    folder, size = path.parents[2] / "data" / "graphs", len(values["x"])
    graphs = [values]
    if "src" not in values:
        names = np.ravel(values["graph_files" if "graph_files" in values else "graph_file"])
        graphs = [np.load(folder / Path(str(name)).name) for name in names]
    tables = [compile_table(graph_fsa(graph), num_pdfs) for graph in graphs]
    return TableBatch.pack(tables) if "graph_files" in values else TableBatch.share(tables[0], size)


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


def pychain_rows(path: Path, values: Any, backend: BackendName) -> Iterator[Compared]:
    """PyChain; it clamps scores to +-30 and passes the gradient straight through."""
    scores = values["x"]
    batch, leaky = _batch(path, values, scores.shape[2]), 0.0
    limit = tolerances.PEER_FSA_GRADIENT
    if path.stem == "pychain_num_clamp":
        scores, limit = scores.clip(-CLAMP, CLAMP), tolerances.PEER_CLAMP_GRADIENT
    if "initial_mode" in values:
        batch = TableBatch.share(_with_ends(batch.tables[0], values), len(scores))
        leaky = float(values["leaky_coefficient"])
    result = forward_backward(batch, scores, values["lengths"], leaky_hmm_coefficient=leaky, backend=backend)
    total = np.asarray(result.log_prob).sum()
    yield "log Z, sum", total, values["objf"], cost_limits
    for key in ("objf_per_seq", "objf_ref64_per_seq"):
        if key in values:
            yield f"log Z, {key}", result.log_prob, values[key], cost_limits
    yield "gradient", result.occupancy, values["grad"], limit


def viterbi_rows(path: Path, values: Any, backend: BackendName, keys: Sequence[str]) -> Iterator[Compared]:
    """Of k2's intersection, exact with a beam of 1e6, or GTN: log Z, gradient and best path, by the keys of theirs."""
    batch = _batch(path, values, values["x"].shape[2])
    given = batch, values["x"], values.get("lengths")
    result = forward_backward(*given, backend=backend)
    log_prob, gradient, best = (values[key] for key in keys)
    yield "log Z", result.log_prob, log_prob, cost_limits
    yield "gradient", result.occupancy, gradient, tolerances.PEER_FSA_GRADIENT
    yield "best path", best_path(*given, backend=backend).score, best, cost_limits


def torch_struct_rows(path: Path, values: Any, backend: BackendName) -> Iterator[Compared]:
    """torch-struct's linear chain as an acceptor: a state for each tag, a pdf for each (to, from), any first tag.

    A chain of `lengths` tags has one transition fewer.
    """
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
    yield "log Z", result.log_prob, values["logZ"], cost_limits
    yield "marginals", occupancy.reshape(potentials.shape), values["marginals"], limits
    path_score = best_path(batch, scores, lengths, backend=backend).score
    yield "best path", path_score, values["max_score"], cost_limits
    expected = (occupancy * scores).sum(axis=(1, 2))
    yield "entropy", np.asarray(result.log_prob) - expected, values["entropy"], limits
