"""Determinisation and minimisation of acceptors by OpenFst; random paths, comparison, facts and Graphviz text.

The two semirings give different graphs: in the log semiring the weights of all paths of a sequence are added, in
the tropical one the best stays. Each keeps the scores of sequences in its own semiring only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import MatrixRankWarning, spsolve

from fsachain import fsa as reachability
from fsachain.errors import ConfigError, GraphError, brief, counted, require
from fsachain.fsa import Fsa
from fsachain.graph.transducer import arcs_by_pdf
from fsachain.openfst import Transducer, rows
from fsachain.table import TransitionTable, compile_table

SEMIRINGS = ("log", "tropical")
Path = npt.NDArray[np.int64]


def random_paths(fsa: Fsa, count: int, *, seed: int = 0, mean_frames: int = 50) -> list[Path]:
    """`count` accepted paths, each an int64 array of arc numbers, one for each frame.

    From each state one of the arcs that lead on to a final state is drawn, all with the same probability whatever
    their weights. In a final state a path ends with probability 1 / mean_frames; after 2 x mean_frames frames it takes
    the shortest way to the end. So paths are about as long as asked for, where the graph allows it.

    Raises:
        GraphError: the acceptor accepts nothing.
        ConfigError: mean_frames is below 1.
    """
    if mean_frames < 1:
        raise ConfigError(f"mean_frames = {mean_frames}: expected at least 1")
    usable = np.flatnonzero(fsa.log_prob > -math.inf)
    finals = np.flatnonzero(fsa.final_log_prob > -math.inf)
    # One more state, behind all final ones: its distance backwards is the way to the end.
    src = np.concatenate([fsa.dst[usable], np.full(len(finals), fsa.num_states)])
    dst = np.concatenate([fsa.src[usable], finals])
    distance = reachability.arcs_from(fsa.num_states, fsa.num_states + 1, src, dst)[:-1] - 1
    if not math.isfinite(distance[fsa.start]):
        raise GraphError(
            f"the acceptor ({counted(fsa.num_states, 'state')}, {counted(fsa.num_arcs, 'arc')}) accepts no "
            "sequence: it has no paths"
        )
    alive = usable[np.isfinite(distance[fsa.dst[usable]])]
    order = alive[np.argsort(fsa.src[alive], kind="stable")]
    offsets = np.searchsorted(fsa.src[order], np.arange(fsa.num_states + 1))
    rng = np.random.default_rng(seed)

    def walk() -> Path:
        state, path = fsa.start, list[int]()
        while True:
            leaving, is_long = order[offsets[state] : offsets[state + 1]], len(path) >= 2 * mean_frames
            is_final = fsa.final_log_prob[state] > -math.inf
            if is_final and (not len(leaving) or is_long or rng.random() * mean_frames < 1):
                return np.array(path, dtype=np.int64)
            place = np.argmin(distance[fsa.dst[leaving]]) if is_long else rng.integers(len(leaving))
            path.append(int(leaving[place]))
            state = int(fsa.dst[path[-1]])

    return [walk() for _ in range(count)]


class SequenceScorer:
    """Scores of pdf sequences: "log" sums over all paths, equation (4) with y = 0; "tropical" takes the best path."""

    def __init__(self, fsa: Fsa, semiring: str = "log") -> None:
        if semiring not in SEMIRINGS:
            raise ConfigError(f"semiring = {semiring!r}: expected one of {', '.join(SEMIRINGS)}")
        self.fsa, self.arcs = fsa, arcs_by_pdf(fsa)
        self.add = np.logaddexp if semiring == "log" else np.maximum

    def __call__(self, pdfs: Sequence[int] | npt.NDArray[np.integer]) -> float:
        """The score of one pdf sequence; -inf where no path accepts it."""
        scores = {self.fsa.start: 0.0}
        for pdf in np.asarray(pdfs, dtype=np.int64).tolist():
            reached: dict[int, float] = {}
            for state, score in scores.items():
                for dst, log_prob in self.arcs[state].get(pdf, ()):
                    reached[dst] = float(self.add(reached.get(dst, -math.inf), score + log_prob))
            scores = reached
        total = -math.inf
        for state, score in scores.items():
            total = float(self.add(total, score + self.fsa.final_log_prob[state]))
        return total


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `equivalent` found; true if no difference beyond the tolerance, which is relative to max(1, |score|).

    `worst_difference` is inf where one acceptor refuses a sequence; `scores` are those of `worst_sequence` in both.
    """

    num_sequences: int
    worst_difference: float
    worst_sequence: npt.NDArray[np.integer]
    scores: tuple[float, float]
    tolerance: float

    __repr__ = brief

    def __bool__(self) -> bool:
        if not math.isfinite(self.worst_difference):
            return False
        return self.worst_difference <= self.tolerance * max(1.0, abs(self.scores[0]))

    def __str__(self) -> str:
        shown = " ".join(map(str, self.worst_sequence[:12].tolist())) + (
            " ..." if len(self.worst_sequence) > 12 else ""
        )
        verdict = "no difference found" if self else "different"
        return (
            f"{verdict}: {counted(self.num_sequences, 'sequence')}, worst difference {self.worst_difference:.3g} "
            f"({self.scores[0]:.6g} and {self.scores[1]:.6g}), on {counted(len(self.worst_sequence), 'frame')}: {shown}"
        )


def equivalent(
    first: Fsa,
    second: Fsa,
    *,
    count: int = 100,
    semiring: str = "log",
    tolerance: float = 1e-4,
    seed: int = 0,
    mean_frames: int = 50,
) -> Comparison:
    """Compare the scores of random accepted sequences of each acceptor in both.

    A sample: it finds differences that many sequences show, and proves nothing where it finds none. Scores that
    differ by a constant on all sequences are different.

    Args:
        first: an acceptor that accepts something.
        second: another.
        count: sequences drawn from each.
        semiring: "log" or "tropical"; determinisation keeps scores only in the semiring it was made in.
        tolerance: largest difference that counts as none, relative to max(1, |score|).
        seed: of the paths.
        mean_frames: as for `random_paths`.

    Raises:
        GraphError: one of them accepts nothing.
    """
    scorers = SequenceScorer(first, semiring), SequenceScorer(second, semiring)
    worst = Comparison(2 * count, 0.0, np.empty(0, np.int32), (0.0, 0.0), tolerance)
    worst_share = -1.0
    for fsa in (first, second):
        for path in random_paths(fsa, count, seed=seed, mean_frames=mean_frames):
            pdfs = fsa.pdf[path]
            scores = scorers[0](pdfs), scorers[1](pdfs)
            difference = 0.0 if scores[0] == scores[1] else abs(scores[0] - scores[1])
            share = difference / max(1.0, abs(scores[0])) if math.isfinite(difference) else math.inf
            if share > worst_share:
                worst_share = share
                worst = Comparison(2 * count, difference, pdfs, scores, tolerance)
    return worst


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

    @property
    def sums(self) -> str:
        """The least and the largest sum of a state's probabilities; one number where they are the same."""
        return " to ".join(dict.fromkeys(f"{value:.5g}" for value in (self.least_sum, self.largest_sum)))

    def __str__(self) -> str:
        cycles = (
            f"{counted(self.num_cyclic_states, 'state')} on cycles, in groups: {self.num_cycles}"
            if self.num_cycles
            else "no cycle"
        )
        unused = self.num_states - self.num_useful_states
        pdfs = (
            f"{counted(self.num_pdfs, 'pdf')}, the largest {self.largest_pdf}" if self.num_pdfs else "no pdfs"
        )
        return "\n".join(
            [
                f"acceptor: {counted(self.num_states, 'state')}, {self.num_finals} of them final, "
                f"{counted(self.num_arcs, 'arc')}, {pdfs}",
                f"{counted(self.num_self_loops, 'self-loop')}, {cycles}, {counted(unused, 'state')} on no path, "
                f"{'deterministic' if self.is_deterministic else 'not deterministic'}, "
                f"{counted(self.num_parallel_arcs, 'parallel arc')} of one pdf",
                f"shortest path {counted(self.min_frames, 'frame', 'g')}",
                f"probabilities of a state add up to {self.sums}",
                f"compiled: {counted(self.table_bytes, 'byte', ',')}; {self.arcs_per_frame:,} "
                "arc-evaluations per frame and sequence",
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


def describe_transducer(fst: Transducer) -> str:
    """Facts about an FST that is no acceptor over pdfs, such as L.fst or HCLG.fst, as text; label 0 is epsilon."""
    silent_in, silent_out = fst.ilabel == 0, fst.olabel == 0
    finals, loops = np.count_nonzero(fst.final_log_prob > -np.inf), np.count_nonzero(fst.src == fst.dst)
    labels = len(np.unique(fst.ilabel[~silent_in])), len(np.unique(fst.olabel[~silent_out]))
    return (
        f"transducer: {counted(fst.num_states, 'state')}, {finals} of them final, {counted(len(fst.src), 'arc')}\n"
        f"{counted(labels[0], 'input label')}, {counted(labels[1], 'output label')}\n"
        f"{counted(int(silent_in.sum()), 'arc')} without input label, {silent_out.sum()} without output label, "
        f"{(silent_in & silent_out).sum()} without both; {counted(int(loops), 'self-loop')}"
    )


def table_bytes(table: TransitionTable) -> int:
    return sum(array.nbytes for array in table.arrays().values())


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
            f"{counted(facts.num_cyclic_states, 'state', verb='lie')} on cycles: determinisation of a "
            "cyclic graph that is not "
            "deterministic may not end; `fsachain.graph.denominator.lump` merges its states"
        )
    pywrapfst = require("pywrapfst", extra="graph")
    return Fsa.from_openfst(pywrapfst.determinize(_in_semiring(fsa.trim(), semiring), delta=DELTA))


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
    return Fsa.from_openfst(fst)


def _best_scores_exist(fsa: Fsa) -> bool:
    """No cycle has a positive log-probability in all."""
    try:
        csgraph.bellman_ford(cheapest_steps(fsa, -fsa.log_prob), indices=fsa.start)
    except csgraph.NegativeCycleError:
        return False
    return True


def cheapest_steps(fsa: Fsa, cost: npt.NDArray[np.float64]) -> sparse.csr_array:
    """[S, S], for scipy's searches: the least cost of an arc between two states; infinite ones are no step."""
    usable = np.flatnonzero(np.isfinite(cost))
    src, dst, cost = fsa.src[usable], fsa.dst[usable], cost[usable]
    order = np.lexsort((cost, dst, src))  # a sparse matrix would add up parallel arcs
    src, dst, cost = src[order], dst[order], cost[order]
    first = np.append(True, (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]))[: len(src)]
    # An explicit zero is no edge to scipy, so costs of 0 become the smallest number there is.
    weights = np.where(cost[first] == 0, np.finfo(np.float64).tiny, cost[first])
    return sparse.csr_array((weights, (src[first], dst[first])), shape=(fsa.num_states,) * 2)


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
        warnings.simplefilter("ignore", MatrixRankWarning)  # a singular matrix gives NaN, so False
        total = spsolve(sparse.eye_array(fsa.num_states, format="csc") - steps, final)
    return bool(np.all(np.isfinite(total) & (total > 0)))


def _accepting(fsa: Fsa, semiring: str) -> Fsa:
    if semiring not in SEMIRINGS:
        raise ConfigError(f"semiring = {semiring!r}: expected one of {', '.join(SEMIRINGS)}")
    trimmed = fsa.trim()
    if trimmed.min_frames() == float("inf"):
        raise GraphError(
            f"the acceptor ({counted(fsa.num_states, 'state')}, {counted(fsa.num_arcs, 'arc')}) accepts no sequence"
        )
    return trimmed


def _in_semiring(fsa: Fsa, semiring: str) -> Any:
    fst = fsa.to_openfst()
    if semiring == "log":
        fst = require("pywrapfst", extra="graph").arcmap(fst, map_type="to_log")
    return fst


_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
MAX_STATES = 2000  # larger graphs make no picture that a person can read


def to_dot(fsa: Fsa, pdf_names: Sequence[str] | None = None) -> str:
    """Graphviz text for `dot -Tsvg`; arcs carry pdf (or its name) and log-probability, final states two circles.

    A graph of more than `MAX_STATES` states is refused.
    """
    if fsa.num_states > MAX_STATES:
        raise GraphError(
            f"{counted(fsa.num_states, 'state')}: expected at most {MAX_STATES}; draw a part of the graph"
        )
    largest = int(fsa.pdf.max(initial=-1))
    if pdf_names is not None and largest >= len(pdf_names):
        raise GraphError(
            f"pdf_names has {counted(len(pdf_names), 'name')}; the graph has pdfs up to {largest}"
        )
    lines = [
        "digraph fsa {",
        "  rankdir = LR;",
        '  node [shape = circle, label = "\\N"];',
        "  begin [shape = point];",
    ]
    for state in np.flatnonzero(fsa.final_log_prob > -np.inf).tolist():
        label = f"{state}\\n{fsa.final_log_prob[state]:.4g}"
        lines.append(f'  {state} [shape = doublecircle, label = "{label}"];')
    lines.append(f"  begin -> {fsa.start};")
    for src, dst, pdf, log_prob in rows(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob):
        name = str(pdf) if pdf_names is None else pdf_names[pdf].translate(_ESCAPED)
        lines.append(f'  {src} -> {dst} [label = "{name} / {log_prob:.4g}"];')
    return "\n".join([*lines, "}"]) + "\n"
