"""What a graph is like and what it costs: sizes, cycles, sums of its states, memory, work per frame."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.fsa import Fsa
from fsachain.graph.transducer import Transducer
from fsachain.table import ArcView, TransitionTable, compile_table


@dataclass(frozen=True)
class GraphFacts:
    """Facts about one acceptor.

    Attributes:
        num_states, num_arcs, num_finals: sizes; arcs of weight -inf count.
        num_pdfs: distinct pdfs; largest_pdf: the largest, -1 without arcs.
        num_self_loops: arcs from a state to itself.
        num_cyclic_states: states on a cycle, in num_cycles groups that reach each other.
        num_useful_states: states on a path from the start to a final state.
        num_parallel_arcs: arcs beyond the first between two states with one pdf.
        is_deterministic: no state has two arcs of one pdf.
        min_frames: arcs of the shortest path; inf where there is none.
        least_sum, largest_sum: over states, the probabilities of their arcs and their end added up.
        table_bytes: memory of the compiled table.
        arcs_per_frame: arc-evaluations of forward and backward, equations (2), (5) and (6), for one sequence.
    """

    num_states: int
    num_arcs: int
    num_finals: int
    num_pdfs: int
    largest_pdf: int
    num_self_loops: int
    num_cyclic_states: int
    num_cycles: int
    num_useful_states: int
    num_parallel_arcs: int
    is_deterministic: bool
    min_frames: float
    least_sum: float
    largest_sum: float
    table_bytes: int
    arcs_per_frame: int

    def __str__(self) -> str:
        cycles = (
            f"{self.num_cyclic_states} states on cycles, in groups: {self.num_cycles}"
            if self.num_cycles
            else "no cycle"
        )
        unused = self.num_states - self.num_useful_states
        pdfs = f"{self.num_pdfs} pdfs, the largest {self.largest_pdf}" if self.num_pdfs else "no pdfs"
        return "\n".join(
            [
                f"acceptor: {self.num_states} states, {self.num_finals} of them final, {self.num_arcs} arcs, {pdfs}",
                f"{self.num_self_loops} self-loops, {cycles}, {unused} states on no path, "
                f"{'deterministic' if self.is_deterministic else 'not deterministic'}, "
                f"{self.num_parallel_arcs} parallel arcs of one pdf",
                f"shortest path {self.min_frames:g} frames",
                f"probabilities of a state add up to {self.least_sum:.6g} to {self.largest_sum:.6g}",
                f"compiled: {self.table_bytes:,} bytes; {self.arcs_per_frame:,} arc-evaluations per frame and sequence",
            ]
        )


def graph_facts(fsa: Fsa) -> GraphFacts:
    """Facts about `fsa` as it is, dead states and arcs of weight -inf included."""
    usable = fsa.log_prob > -np.inf
    loops = fsa.src == fsa.dst
    ones = np.ones(int(usable.sum()))
    links = sparse.csr_array((ones, (fsa.src[usable], fsa.dst[usable])), shape=(fsa.num_states,) * 2)
    _, component = csgraph.connected_components(links, directed=True, connection="strong")
    sizes = np.bincount(component)
    looping = np.zeros(len(sizes), dtype=np.bool_)
    looping[component[fsa.src[loops & usable]]] = True
    cyclic = looping | (sizes > 1)
    with np.errstate(over="ignore"):
        sums = np.bincount(fsa.src, np.exp(fsa.log_prob), fsa.num_states) + np.exp(fsa.final_log_prob)
    by_label = np.unique(np.stack([fsa.src, fsa.pdf]), axis=1).shape[1]
    by_end = np.unique(np.stack([fsa.src, fsa.pdf, fsa.dst]), axis=1).shape[1]
    accepts = np.isfinite(fsa.min_frames())
    return GraphFacts(
        num_states=fsa.num_states,
        num_arcs=fsa.num_arcs,
        num_finals=int(np.count_nonzero(fsa.final_log_prob > -np.inf)),
        num_pdfs=len(np.unique(fsa.pdf)),
        largest_pdf=int(fsa.pdf.max(initial=-1)),
        num_self_loops=int(loops.sum()),
        num_cyclic_states=int(sizes[cyclic].sum()),
        num_cycles=int(cyclic.sum()),
        num_useful_states=fsa.trim().num_states if accepts else 0,
        num_parallel_arcs=fsa.num_arcs - by_end,
        is_deterministic=by_label == fsa.num_arcs,
        min_frames=fsa.min_frames(),
        least_sum=float(sums.min()),
        largest_sum=float(sums.max()),
        table_bytes=table_bytes(compile_table(fsa)),
        arcs_per_frame=2 * int(usable.sum()),
    )


@dataclass(frozen=True)
class TransducerFacts:
    """Facts about an FST that is no acceptor over pdfs, such as L.fst or HCLG.fst.

    Attributes:
        num_states, num_arcs, num_finals: sizes.
        num_input_labels, num_output_labels: distinct labels, epsilon (0) left out.
        num_epsilons: arcs without input and output label.
        num_input_epsilons, num_output_epsilons: arcs without the one, whatever the other.
        num_self_loops: arcs from a state to itself.
    """

    num_states: int
    num_arcs: int
    num_finals: int
    num_input_labels: int
    num_output_labels: int
    num_epsilons: int
    num_input_epsilons: int
    num_output_epsilons: int
    num_self_loops: int

    def __str__(self) -> str:
        return "\n".join(
            [
                f"transducer: {self.num_states} states, {self.num_finals} of them final, {self.num_arcs} arcs",
                f"{self.num_input_labels} input labels, {self.num_output_labels} output labels",
                f"{self.num_input_epsilons} arcs without input label, {self.num_output_epsilons} without output label, "
                f"{self.num_epsilons} without both; {self.num_self_loops} self-loops",
            ]
        )


def transducer_facts(fst: Transducer) -> TransducerFacts:
    """Facts about `fst` as it is."""
    silent_in, silent_out = fst.ilabel == 0, fst.olabel == 0
    return TransducerFacts(
        num_states=fst.num_states,
        num_arcs=len(fst.src),
        num_finals=int(np.count_nonzero(fst.final_log_prob > -np.inf)),
        num_input_labels=len(np.unique(fst.ilabel[~silent_in])),
        num_output_labels=len(np.unique(fst.olabel[~silent_out])),
        num_epsilons=int((silent_in & silent_out).sum()),
        num_input_epsilons=int(silent_in.sum()),
        num_output_epsilons=int(silent_out.sum()),
        num_self_loops=int((fst.src == fst.dst).sum()),
    )


def table_bytes(table: TransitionTable) -> int:
    """Memory of the arrays of a compiled table."""
    total = 0
    for field in fields(table):
        value = getattr(table, field.name)
        parts = (
            [getattr(value, part.name) for part in fields(ArcView)] if isinstance(value, ArcView) else [value]
        )
        total += sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    return total
