"""A smoothed n-gram as an acceptor without epsilon arcs, for denominators and for graphs of words.

In an ARPA model a word that was not seen after a history is predicted by a shorter one, times the back-off weight of
the history. As an FST that is an epsilon arc, through which a seen word can be reached too, a second time. Here each
history gets an arc for each word, with the one probability that the model gives it:

    P(w | h) = the n-gram's own probability if h w was seen, else backoff(h) P(w | h')

with h' the history without its oldest word. That is (number of histories) x (number of words) arcs: small for phones,
too many for thousands of units. For those `estimate_phone_lm` of order 2 keeps the pairs that were seen and no others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.transducer import Transducer

MAX_ARCS = 20_000_000

_Arcs = dict[int, tuple[int, float]]  # by label: destination and log-probability


def ngram_acceptor(path: str | os.PathLike[str], units: Sequence[str], *, max_arcs: int = MAX_ARCS) -> Fsa:
    """The n-gram of an ARPA file over phones, BPE units or words.

    Args:
        path: the ARPA file; read by kaldilm.
        units: names by id, from id 1 on: `lexicon.phones` for `build_denominator`, the pieces of a BPE model for
            `ctc_denominator`, `lexicon.words` for `phone_model_of_words`. N-grams with other names are left out; their
            probability is lost.
        max_arcs: more than these are refused.

    Returns:
        Deterministic acceptor, label = id - 1. Weights are kaldilm's, in 32 bits.

    Raises:
        GraphError: no such file, no ARPA file, no unit in it, or more arcs than `max_arcs`.
        MissingExtraError: kaldilm is not installed.
    """
    lexicon = Lexicon.from_entries(((name, 1.0, ["unit"]) for name in units), silence=None)
    grammar = Transducer.from_openfst(grammar_from_arpa(path, lexicon))
    try:
        return without_back_off(grammar, max_arcs=max_arcs)
    except GraphError as error:
        raise GraphError(f"{os.fspath(path)}: {error}") from error


def without_back_off(grammar: Transducer, *, max_arcs: int = MAX_ARCS) -> Fsa:
    """A back-off model with its epsilon arcs resolved as this module says.

    Args:
        grammar: each state has at most one arc of input label 0, to a shorter history, and one arc for each other label.
        max_arcs: more than these are refused.

    Returns:
        Deterministic acceptor, label = input label - 1; trimmed.

    Raises:
        GraphError: two arcs of one label, back-off arcs in a cycle, or more arcs than `max_arcs`.
    """
    own: list[_Arcs] = [{} for _ in range(grammar.num_states)]
    columns = (grammar.src, grammar.ilabel, grammar.dst, grammar.log_prob)
    for src, label, dst, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        if label in own[src]:
            raise GraphError(f"state {src} has two arcs of label {label}; expected a back-off n-gram")
        own[src][label] = (dst, log_prob)
    back_off = [arcs.pop(0, None) for arcs in own]
    final = grammar.final_log_prob.copy()
    done: list[bool] = [False] * grammar.num_states
    num_arcs = 0
    for state in range(grammar.num_states):
        for here in reversed(_chain(state, back_off, done)):
            shorter = back_off[here]
            if shorter is not None:
                lower, weight = shorter
                own[here] = {
                    label: (dst, weight + log_prob) for label, (dst, log_prob) in own[lower].items()
                } | own[here]
                final[here] = final[here] if final[here] > -np.inf else weight + final[lower]
            done[here] = True
            num_arcs += len(own[here])
            if num_arcs > max_arcs:
                raise GraphError(
                    f"a smoothed n-gram of {grammar.num_states} histories has more than max_arcs = {max_arcs} arcs; "
                    "an unsmoothed one (estimate_phone_lm) stays small"
                )
    rows = [(src, dst, label - 1) for src, arcs in enumerate(own) for label, (dst, _) in sorted(arcs.items())]
    weights = [log_prob for arcs in own for _, (_, log_prob) in sorted(arcs.items())]
    src, dst, pdf = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Fsa(grammar.num_states, src, dst, pdf, np.array(weights), final, grammar.start).trim()


def _chain(state: int, back_off: list[tuple[int, float] | None], done: list[bool]) -> list[int]:
    """The state and those that it backs off to, up to one that is resolved."""
    chain: list[int] = []
    while not done[state]:
        if len(chain) > len(done):
            raise GraphError(f"state {state} lies on a cycle of back-off arcs")
        chain.append(state)
        shorter = back_off[state]
        if shorter is None:
            break
        state = shorter[0]
    return chain
