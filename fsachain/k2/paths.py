"""Best paths and drawn paths of acyclic automata."""

from __future__ import annotations

import numpy as np
import torch

from fsachain.k2.fsa import Fsa, derive
from fsachain.k2.ragged import RaggedShape, RaggedTensor
from fsachain.k2.shape import Floats, Ints, Shape, levels, sums


def shortest_path(fsa: Fsa, use_double_scores: bool = True) -> Fsa:
    """Return the best path of each automaton of an acyclic batch, without arcs where there is no path.

    Args:
        fsa: a batch of automata, or a lattice of `intersect_dense`.
        use_double_scores: ignored; sums are made in float64.

    Raises:
        GraphError: the automaton has a cycle.
    """
    shape = fsa._shape
    chosen = np.flatnonzero(sums(shape, fsa.scores.detach().double().cpu().numpy(), False).arcs)
    source, _ = shape.joint()
    depth = np.zeros(int(shape.states.sum()), dtype=np.int64)
    for k, arcs in enumerate(levels(shape)):
        depth[source[arcs]] = k
    owner = shape.fsa_of_arc[chosen]
    order = np.lexsort([depth[source[chosen]], owner])
    return derive([(fsa, chosen[order])], paths_shape(shape, chosen[order], owner[order]), True)


def paths_shape(shape: Shape, arcs: Ints, owner: Ints) -> Shape:
    """Return the shape of the paths that these arcs make, one after another; owner [arcs]: the path of each."""
    sizes = np.bincount(owner, minlength=len(shape.states))
    splits = np.concatenate([[0], np.cumsum(sizes)])
    source = np.arange(len(arcs)) - splits[owner]
    return Shape(source, source + 1, shape.label[arcs], splits, np.where(sizes > 0, sizes + 1, 0))


def random_paths(fsas: Fsa, use_double_scores: bool, num_paths: int) -> RaggedTensor:
    """Return paths drawn by their probability, with evenly spaced numbers instead of random ones.

    Args:
        fsas: an acyclic batch.
        use_double_scores: ignored; probabilities are float64.
        num_paths: how many of each automaton; one without a path gets none.

    Returns:
        int32 ragged tensor [fsa][path][arc] of arc numbers.

    Raises:
        GraphError: the automaton has a cycle.
    """
    shape = fsas._shape
    posterior = sums(shape, fsas.scores.detach().double().cpu().numpy(), True).arcs
    source, target = shape.joint()
    num_states = int(shape.states.sum())
    splits = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_states))])
    first = shape.first
    rows: list[list[list[int]]] = []
    for n, count in enumerate(shape.states):
        has_path = count and posterior[shape.arcs[n] : shape.arcs[n + 1]].any()
        starts = [(k + 0.5) / num_paths for k in range(num_paths if has_path else 0)]
        rows.append([_follow(first[n], first[n + 1] - 1, p, splits, target, posterior) for p in starts])
    lengths = [len(path) for row in rows for path in row]
    counts = [len(row) for row in rows]
    axes = [torch.tensor(np.concatenate([[0], np.cumsum(sizes)])) for sizes in (counts, lengths)]
    values = torch.tensor([arc for row in rows for path in row for arc in path], dtype=torch.int32)
    return RaggedTensor(RaggedShape(axes), values).to(fsas.device)


def _follow(state: int, last: int, p: float, splits: Ints, target: Ints, posterior: Floats) -> list[int]:
    """Walk from state to the last state: p in [0, 1) chooses an arc, and its place within that arc's share the next one."""
    path = []
    while state != last:
        begin, end = splits[state], splits[state + 1]
        shares = posterior[begin:end]
        bounds = np.concatenate([[0.0], np.cumsum(shares / shares.sum())])
        usable = np.flatnonzero(shares > 0)
        k = usable[min(max(int(np.searchsorted(bounds[usable], p, side="right")) - 1, 0), len(usable) - 1)]
        p = min(max((p - bounds[k]) / (bounds[k + 1] - bounds[k]), 0.0), 1.0)
        path.append(int(begin + k))
        state = target[begin + k]
    return path
