"""Stationary probabilities of a graph: where a leak lands, and where a chunk cut from a recording may begin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fsachain.errors import GraphError
from fsachain.fsa import Floats, Fsa
from fsachain.recursion import log_add, log_sum_rows

NUM_STEPS = 100


def stationary_probs(fsa: Fsa) -> npt.NDArray[np.float64]:
    """float64 [S], summing to one: `init` of equation (3).

    p_0 is one at the start state; p_{k+1} is one step along the arcs, each state's arcs and its own final weight
    normalised to one, then rescaled to sum one; the result is the mean of p_0..p_99 (Povey et al., Interspeech 2016).

    Raises:
        GraphError: all mass dies within the 100 steps, as it does in a graph without a cycle.
    """
    transition = _step_matrix(fsa)
    probs = np.zeros(fsa.num_states)
    probs[fsa.start] = 1.0
    total = np.zeros(fsa.num_states)
    for step in range(NUM_STEPS):
        total += probs
        if step == NUM_STEPS - 1:
            break
        probs = transition @ probs
        mass = probs.sum()
        if mass <= 0.0:
            raise GraphError(
                f"all probability leaves the graph after {step} arcs, so it has no stationary distribution; expected a "
                "cycle that the start state reaches (use initial='start' for a graph without one)"
            )
        probs /= mass
    return total / total.sum()


def _step_matrix(fsa: Fsa) -> sparse.csr_array:
    """[S, S] with entry (j, i): the normalised probability of a step from i to j."""
    order = np.argsort(fsa.src, kind="stable")
    offsets = np.searchsorted(fsa.src[order], np.arange(fsa.num_states + 1)).astype(np.int64)
    totals: Floats = log_add(log_sum_rows(fsa.log_prob[order], offsets), fsa.final_log_prob)
    usable = fsa.log_prob > -np.inf
    probs = np.exp(fsa.log_prob[usable] - totals[fsa.src[usable]])
    return sparse.csr_array(
        (probs, (fsa.dst[usable], fsa.src[usable])), shape=(fsa.num_states, fsa.num_states)
    )
