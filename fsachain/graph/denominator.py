"""The denominator graph: phone language model, context and topology as one acceptor over pdfs; or none of these."""

from __future__ import annotations

import numpy as np

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import expand_acceptor
from fsachain.graph.lumping import lump
from fsachain.graph.transducer import Transducer


def build_denominator(phone_lm: Fsa, tree: ContextTree) -> Fsa:
    """Expand a phone language model to pdfs, transition and self-loop scale 1, and merge equivalent states.

    Args:
        phone_lm: acceptor over phones, label = phone id - 1, such as `estimate_phone_lm` makes.
        tree: context and topology.

    Returns:
        The graph for `DenominatorGraph`. A phone model whose states sum to one gives a graph whose states sum
        to one.

    Raises:
        GraphError: the language model accepts nothing, or has a phone that the tree does not know.
    """
    model = phone_lm.trim()
    if not model.num_arcs or not np.isfinite(model.final_log_prob).any():
        raise GraphError(
            f"phone_lm ({phone_lm.num_states} states, {phone_lm.num_arcs} arcs) accepts no phone sequence"
        )
    labels = model.pdf + 1
    phones = Transducer(
        model.num_states,
        model.start,
        model.src,
        model.dst,
        labels,
        labels,
        model.log_prob,
        model.final_log_prob,
    )
    graph = expand_acceptor(phones, tree, self_loop_scale=1.0, transition_scale=1.0).graph
    return lump(graph.input_fsa())


def free_denominator(num_pdfs: int) -> Fsa:
    """One state with a self-loop of score 0 for each pdf: every sequence of pdfs is accepted, and counts alike.

    Its log Z is sum_t log sum_p exp y(t, p), what a softmax of every frame divides by. With numerators of a CTC topology the
    objective log Z_num - log Z_den is then the log-likelihood of CTC (Graves et al., ICML 2006).

    Raises:
        GraphError: num_pdfs is not positive.
    """
    if num_pdfs < 1:
        raise GraphError(f"num_pdfs = {num_pdfs}; expected at least 1")
    loop = np.zeros(num_pdfs, np.int64)
    return Fsa(1, loop, loop, np.arange(num_pdfs), np.zeros(num_pdfs), np.zeros(1))
