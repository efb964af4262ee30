"""The normalization FSA: a denominator that starts anywhere, as numerators are cut from anywhere.

A numerator composed with it scores its paths as the denominator does, so that log Z of the numerator never
exceeds that of the denominator (Hadian et al., Interspeech 2018). One new start state takes the place of the
initial probabilities.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.fsa import Fsa

MERGES = ("sum", "min")


def normalization_fsa(fsa: Fsa, initial_probs: npt.ArrayLike, merge: str = "sum") -> Fsa:
    """The denominator `fsa` with its initial distribution turned into a new start state.

    The new start has, for each (pdf, dst), one arc: the merge over states s of log initial_probs[s] + the
    arc's log_prob. All other arcs stay; every state is final with probability one except the new start, since
    an utterance has at least one frame. States that the new start does not reach are left out.

    Args:
        fsa: the denominator graph.
        initial_probs: [S], at least 0; states of probability 0 are not started from.
        merge: "sum", log-sum: the exact value, log Z is that of the denominator at leaky coefficient 0; or
            "min", the best
            term alone: Kaldi's epsilon removal in the tropical semiring.

    Raises:
        GraphError: an unknown merge, probabilities of another shape, negative, not finite or all 0.
    """
    if merge not in MERGES:
        raise GraphError(f"merge = {merge!r}: expected one of {', '.join(MERGES)}")
    probs = np.asarray(initial_probs, dtype=np.float64)
    if probs.shape != (fsa.num_states,):
        raise GraphError(
            f"initial_probs has shape {list(probs.shape)}: expected [{fsa.num_states}], one for each state"
        )
    if not np.isfinite(probs).all() or (probs < 0).any() or not probs.any():
        raise GraphError("initial_probs: expected finite probabilities of at least 0, one of them positive")
    usable = np.flatnonzero((probs[fsa.src] > 0) & (fsa.log_prob > -np.inf))
    log_prob = np.log(probs[fsa.src[usable]]) + fsa.log_prob[usable]
    key = fsa.pdf[usable].astype(np.int64) * fsa.num_states + fsa.dst[usable]
    order = np.argsort(key, kind="stable")
    merged_key, first = np.unique(key[order], return_index=True)
    reduce = np.logaddexp if merge == "sum" else np.maximum
    merged = reduce.reduceat(log_prob[order], first) if len(first) else np.empty(0)
    start = fsa.num_states
    return Fsa(
        start + 1,
        np.concatenate([np.full(len(merged), start), fsa.src]),
        np.concatenate([merged_key % start, fsa.dst]),
        np.concatenate([merged_key // start, fsa.pdf]),
        np.concatenate([merged, fsa.log_prob]),
        np.append(np.zeros(start), -np.inf),
        start,
    ).trim()
