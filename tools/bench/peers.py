"""Other programs on the same graphs and scores, where they are installed: PyChain, k2 and GTN.

Each adapter prepares graphs outside the timed call, which takes scores [N, T, P] to log Z and its gradient, in one thread.
What a peer computes differs: PyChain clamps scores to +-30 and keeps no sequence exact in float32; k2 prunes denominators
to a beam, since its exact intersection takes gigabytes. None of the three is a dependency; torch's CTC loss, which always is
there, stands in the table `ctc`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fsachain.batch import TableBatch
from fsachain.fsa import Fsa
from fsachain.table import compile_table
from tools.bench import calls
from tools.bench.tables import compared, pack_numerators
from tools.bench.timing import Call, Row, Table
from tools.bench.workloads import LEAK, Scores, Sizes, Workloads, random_scores, work_of

DENOMINATORS = 8  # sequences; some peers need gigabytes for more
EXACT, BEAM = 1e6, 10.0  # output beams of k2


def beside_peers(work: Workloads, sizes: Sizes) -> Table:
    """Ours beside every peer that is installed, in the same rounds."""
    modules, absent = {}, []
    for module in dict.fromkeys(module for peers in PEERS.values() for module, _ in peers.values()):
        try:
            modules[module] = import_module(module)
        except ImportError as error:
            absent.append(f"{module} is not timed: {error}")
    rows: list[Row] = []
    for task, peers in PEERS.items():
        batch, graphs, width, leak = _task(work, sizes, task)
        scores = random_scores(batch.size, sizes.frames, width)
        theirs = {
            (name, 1): make(modules[module], graphs, scores)
            for name, (module, make) in peers.items()
            if module in modules
        }
        if theirs:
            ours = {(f"{task}, B {batch.size}", 1): calls.backend_call(batch, scores, leak)}
            rows += compared(ours, theirs, sizes.seconds, work_of(batch, sizes.frames, width).evaluations)
    return Table("\n  ".join(["peers on the same graphs", *absent]), rows)


def _task(work: Workloads, sizes: Sizes, task: str) -> tuple[TableBatch, Sequence[Fsa], int, float]:
    """The batch, its graphs, the number of pdfs and the leak."""
    if task in ("leaky", "exact"):
        graph = work.denominator
        graphs = [graph.fsa] * DENOMINATORS
        return graph.batch(len(graphs)), graphs, graph.num_pdfs, LEAK if task == "leaky" else 0.0
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


def k2_call(module: Any, graphs: Sequence[Fsa], scores: Scores, beam: float = EXACT) -> Call:
    """k2's intersection, pruned to a beam of 10 as its MMI recipes use it, or with one that keeps everything."""
    fsas = module.create_fsa_vec(
        [module.arc_sort(module.Fsa(torch.from_numpy(k2_arcs(fsa)))) for fsa in graphs]
    )
    leaf = torch.from_numpy(scores).requires_grad_()
    segments = torch.tensor([[n, 0, scores.shape[1]] for n in range(len(scores))], dtype=torch.int32)

    def total() -> torch.Tensor:
        lattice = module.intersect_dense(fsas, module.DenseFsaVec(leaf, segments), output_beam=beam)
        return lattice.get_tot_scores(use_double_scores=False, log_semiring=True).sum()

    return calls.with_gradient(total, leaf)


def k2_arcs(fsa: Fsa) -> npt.NDArray[np.int32]:
    """The rows source, destination, label, bits of the float32 score that `k2.Fsa` is made of.

    k2 starts in state 0, so the start changes places with it. Its one final state is the last, and arcs into that carry
    label -1 and the final weights; other labels are pdfs. Rows are sorted by source.
    """
    number = np.arange(fsa.num_states)
    number[[0, fsa.start]] = number[[fsa.start, 0]]
    finals = np.flatnonzero(np.isfinite(fsa.final_log_prob))
    end, no_label = np.full(len(finals), fsa.num_states), np.full(len(finals), -1)
    src = np.concatenate([number[fsa.src], number[finals]])
    dst = np.concatenate([number[fsa.dst], end])
    label = np.concatenate([fsa.pdf, no_label])
    score = np.concatenate([fsa.log_prob, fsa.final_log_prob[finals]]).astype(np.float32)
    order = np.argsort(src, kind="stable")
    return np.stack([src, dst, label, score.view(np.int32)], axis=1)[order].astype(np.int32)


def gtn_loop(module: Any, graphs: Sequence[Fsa], scores: Scores) -> Call:
    """GTN, one sequence after another: intersection with a chain of all scores, forward score, gradient."""
    acceptors = [gtn_graph(module, fsa) for fsa in graphs]
    _, frames, pdfs = scores.shape

    def step() -> list[npt.NDArray[np.float32]]:
        gradients = []
        for acceptor, own in zip(acceptors, scores, strict=True):
            emissions = module.linear_graph(frames, pdfs, True)
            emissions.set_weights(np.ascontiguousarray(own))
            module.backward(module.forward_score(module.intersect(acceptor, emissions)))
            gradients.append(emissions.grad().weights_to_numpy())
        return gradients

    return step


def gtn_graph(module: Any, fsa: Fsa) -> Any:
    """Sorted for `intersect`; GTN has no final weights, so all must be 0 or -inf."""
    if fsa.final_log_prob[np.isfinite(fsa.final_log_prob)].any():
        raise ValueError("final_log_prob holds other values than 0 and -inf; GTN has no final weights")
    graph = module.Graph(False)
    for state, final in enumerate(fsa.final_log_prob.tolist()):
        graph.add_node(state == fsa.start, final == 0.0)
    columns = fsa.src.tolist(), fsa.dst.tolist(), fsa.pdf.tolist(), fsa.log_prob.tolist()
    for src, dst, pdf, log_prob in zip(*columns, strict=True):
        graph.add_arc(src, dst, pdf, pdf, log_prob)
    graph.arc_sort(True)
    return graph


Peers = dict[str, tuple[str, Callable[[Any, Sequence[Fsa], Scores], Call]]]
SEQUENCES: Peers = {
    "PyChain, log domain": ("pychain", pychain_logs),
    "k2, exact": ("k2", k2_call),
    "GTN, loop": ("gtn", gtn_loop),
}
PEERS: dict[str, Peers] = {
    "leaky": {"PyChain, leaky": ("pychain", pychain_leaky)},
    "exact": {"k2, beam 10": ("k2", partial(k2_call, beam=BEAM))},
    "numerators": SEQUENCES,
    "ctc": SEQUENCES,
}
