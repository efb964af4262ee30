"""States and arcs of automata on the host, sums over their paths and best paths, by levels of states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.errors import GraphError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FINAL = -1


class Shape(NamedTuple):
    """What an automaton is made of but for scores and attributes, as int64 arrays on the host.

    src, dst, label: [A], states counted within each automaton; arcs [F + 1]: where the arcs of each begin;
    states: [F], how many each has.
    """

    src: Ints
    dst: Ints
    label: Ints
    arcs: Ints
    states: Ints

    @property
    def fsa_of_arc(self) -> Ints:
        """[A]: the automaton of each arc."""
        return np.repeat(np.arange(len(self.states)), np.diff(self.arcs))

    @property
    def first(self) -> Ints:
        """[F + 1]: the number of each automaton's first state when all states are counted together."""
        return np.concatenate([[0], np.cumsum(self.states)])

    def joint(self) -> tuple[Ints, Ints]:
        """Return src and dst [A] with all states counted together."""
        offset = self.first[self.fsa_of_arc]
        return self.src + offset, self.dst + offset


def sorted_shape(columns: Any, owner: Any, states: Any) -> tuple[Shape, Ints]:
    """Return a shape with arcs sorted by automaton and source, and the order [A] of the arcs as they came.

    Args:
        columns: sources, destinations and labels, three times [A].
        owner: [A], the automaton of each arc; states: [F], how many each automaton has.
    """
    src, dst, label, owner = (np.asarray(x, dtype=np.int64).reshape(-1) for x in (*columns, owner))
    states = np.asarray(states, dtype=np.int64)
    order = np.lexsort([src, owner])
    arcs = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(states)))])
    return Shape(src[order], dst[order], label[order], arcs, states), order


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """first[k], first[k] + 1, .. of each k, `sizes[k]` numbers."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - sizes), sizes)


def levels(shape: Shape) -> Iterator[Ints]:
    """Yield arcs in pieces, such that all arcs into a state come before those that leave it.

    Raises:
        GraphError: the automaton has a cycle.
    """
    source, target = shape.joint()
    num_states = int(shape.states.sum())
    splits = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_states))])
    pending = np.bincount(target, minlength=num_states)
    states = np.flatnonzero(pending == 0)
    count = 0
    while len(states):
        arcs = _ranges(splits[states], splits[states + 1] - splits[states])
        if len(arcs):
            yield arcs
        count += len(arcs)
        entered = target[arcs]
        np.subtract.at(pending, entered, 1)
        states = np.unique(entered[pending[entered] == 0])
    if count < len(source):
        raise GraphError("the automaton has a cycle; expected an acyclic one, such as a lattice")


class Sums(NamedTuple):
    """total: [F]; arcs: [A], the posterior of each arc in its automaton."""

    total: Floats
    arcs: Floats


def sums(shape: Shape, scores: Floats, log_semiring: bool) -> Sums:
    """Return the sum over the paths of each automaton, or its best path, and the posteriors of arcs.

    Args:
        shape: an acyclic automaton; scores: [A].
        log_semiring: False: the best path, whose arcs have posterior 1 and others 0; of equal paths one is taken.

    Raises:
        GraphError: the automaton has a cycle.
    """
    source, target = shape.joint()
    pieces = list(levels(shape))
    add = np.logaddexp if log_semiring else np.maximum
    first = shape.first
    some = np.flatnonzero(shape.states)
    alpha = np.full(first[-1], -np.inf)
    alpha[first[some]] = 0.0
    for arcs in pieces:
        add.at(alpha, target[arcs], alpha[source[arcs]] + scores[arcs])
    total = np.full(len(shape.states), -np.inf)
    total[some] = alpha[first[some + 1] - 1]
    if log_semiring:
        beta = np.full(first[-1], -np.inf)
        beta[first[some + 1] - 1] = 0.0
        for arcs in reversed(pieces):
            np.logaddexp.at(beta, source[arcs], scores[arcs] + beta[target[arcs]])
        sure = np.where(np.isfinite(total), total, np.inf)
        return Sums(total, np.exp(alpha[source] + scores + beta[target] - sure[shape.fsa_of_arc]))
    best = np.full(first[-1], -1)
    reached = alpha[source] + scores
    taken = np.flatnonzero((reached == alpha[target]) & (reached > -np.inf))
    best[target[taken[::-1]]] = taken[::-1]
    chosen = np.zeros(len(scores))
    states = first[some + 1][np.isfinite(total[some])] - 1
    while len(states):
        arcs = best[states]
        arcs = arcs[arcs >= 0]
        chosen[arcs] = 1.0
        states = source[arcs]
    return Sums(total, chosen)


class _TotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, shape: Shape, log_semiring: bool) -> Tensor:
        found = sums(shape, scores.detach().double().cpu().numpy(), log_semiring)
        ctx.save_for_backward(torch.from_numpy(found.arcs).to(scores.device))
        ctx.shape, ctx.dtype = shape, scores.dtype
        return torch.from_numpy(found.total).to(scores.device)

    @staticmethod
    def backward(ctx: Any, *factors: Any) -> Any:
        (posterior,) = ctx.saved_tensors
        owner = torch.from_numpy(ctx.shape.fsa_of_arc).to(posterior.device)
        return (torch.where(posterior == 0, 0, factors[0][owner] * posterior)).to(ctx.dtype), None, None


def tot_scores(scores: Tensor, shape: Shape, log_semiring: bool) -> Tensor:
    """Return the sum or the best path of each automaton, float64 [F] on the device of scores [A], differentiable."""
    total: Tensor = _TotScores.apply(scores, shape, log_semiring)
    return total
