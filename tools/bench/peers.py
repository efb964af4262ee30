"""PyChain on the same graphs and scores, where it is installed.

Each adapter prepares graphs outside the timed call, which takes scores [N, T, P] to log Z and its gradient, in one thread.
PyChain clamps scores to +-30 and keeps no sequence exact in float32. It is no dependency; torch's CTC loss, which always is
there, stands in the table `ctc`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fsachain.batch import TableBatch
from fsachain.fsa import Fsa
from fsachain.table import compile_table
from tools.bench import calls
from tools.bench.tables import compared, pack_numerators
from tools.bench.timing import Call, Row, Table
from tools.bench.workloads import LEAK, Scores, Sizes, Workloads, random_scores, work_of

DENOMINATORS = 8  # sequences


def beside_peers(work: Workloads, sizes: Sizes) -> Table:
    """Ours and PyChain's, in the same rounds."""
    try:
        module = import_module("pychain")
    except ImportError as error:
        return Table(f"PyChain is not timed: {error}", [])
    rows: list[Row] = []
    for task, make in TASKS.items():
        batch, graphs, width, leak = _task(work, sizes, task)
        scores = random_scores(batch.size, sizes.frames, width)
        ours = {(f"{task}, B {batch.size}", 1): calls.backend_call(batch, scores, leak)}
        theirs = {("PyChain", 1): make(module, graphs, scores)}
        rows += compared(ours, theirs, sizes.seconds, work_of(batch, sizes.frames, width).evaluations)
    return Table("PyChain on the same graphs", rows)


def _task(work: Workloads, sizes: Sizes, task: str) -> tuple[TableBatch, Sequence[Fsa], int, float]:
    """The batch, its graphs, the number of pdfs and the leak."""
    if task == "leaky":
        graph = work.denominator
        graphs = [graph.fsa] * DENOMINATORS
        return graph.batch(len(graphs)), graphs, graph.num_pdfs, LEAK
    if task == "numerators":
        return pack_numerators(work, work.numerator_pdfs), work.numerators, work.numerator_pdfs, 0.0
    tables = [compile_table(graph, sizes.labels) for graph in work.ctc]
    return TableBatch.pack(tables), work.ctc, sizes.labels, 0.0


def pychain_leaky(module: Any, graphs: Sequence[Fsa], scores: Scores) -> Call:
    """PyChain's denominator: probabilities, leaky HMM, all states final; one graph for all sequences."""
    graph = module.graph.ChainGraph(_simple_fst(graphs[0]), initial_mode="leaky", final_mode="ones")
    return _pychain(module, module.graph.ChainGraphBatch(graph, batch_size=len(graphs)), scores)


def pychain_logs(module: Any, graphs: Sequence[Fsa], scores: Scores) -> Call:
    """PyChain's numerator: logs, no leak, a graph for each sequence."""
    several = [module.graph.ChainGraph(_simple_fst(fsa), log_domain=True) for fsa in graphs]
    batch = module.graph.ChainGraphBatch(
        several,
        max_num_transitions=max(fsa.num_arcs for fsa in graphs),
        max_num_states=max(fsa.num_states for fsa in graphs),
    )
    return _pychain(module, batch, scores)


def _pychain(module: Any, batch: Any, scores: Scores) -> Call:
    leaf, lengths = torch.from_numpy(scores).requires_grad_(), torch.full((len(scores),), scores.shape[1])
    loss = module.loss.ChainFunction.apply
    return calls.with_gradient(lambda: loss(leaf, lengths, batch, LEAK).sum(), leaf)


def _simple_fst(fsa: Fsa) -> Any:
    """The acceptor as PyChain's OpenFst module reads it, labels pdf + 1."""
    simplefst = import_module("simplefst")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.fst"
        fsa.write(path)
        return simplefst.StdVectorFst.read(str(path))


TASKS = {"leaky": pychain_leaky, "numerators": pychain_logs, "ctc": pychain_logs}
