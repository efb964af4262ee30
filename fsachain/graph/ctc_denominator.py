"""Denominators over units with a blank: a unit language model under one of the CTC topologies.

`fsachain.graph.ctc` says which frame sequences spell a target; this is the same for all targets at once, each with its
probability under the language model. Pdf 0 is the blank, pdf k unit k. Only the pairs of units that the language model
has become arcs: a bigram of 5,000 BPE units has some hundred thousand, where all pairs would be 25 million.

Of a bigram with S states (one for the history of each unit) and A arcs:

| topology | states | arcs |
|---|---|---|
| "standard" | about 2 S | about 2 A + 3 S, less one for each unit that may follow itself |
| "compact" | about 2 S | about 2 A + 3 S |
| "selfless" | about 2 S | S less than "standard" |
| "minimal" | S | A + S |
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.ctc import CtcTopology

BLANK = 0


def ctc_denominator(units: Fsa, topology: CtcTopology = "standard") -> Fsa:
    """The graph of all frame sequences of all unit sequences of a language model.

    The score of a frame sequence is the log-sum, over the ways in which the topology reads it, of the language model's
    score of what is read; blanks and repetitions cost nothing. So for a target y the sequences of
    `ctc_graph(y, 0, topology)` are a part of these, and `product` with `DenominatorGraph(...).normalization_fsa()`
    makes of it a numerator for `LFMMILoss`. Under "compact" frames that spell two equal units in a row are read in
    several ways, which numerator and normalization count independently; objf may then be positive.

    Args:
        units: acceptor, label = unit id - 1 with unit ids from 1 on: `estimate_phone_lm` of sequences of unit ids (order 2
            for thousands of units), or `ngram_acceptor`.
        topology: "standard", "compact", "selfless" or "minimal".

    Returns:
        The graph for `DenominatorGraph(fsa, num_units + 1)`; start state 0.

    Raises:
        ConfigError: an unknown topology.
        GraphError: the language model accepts nothing.
    """
    if topology not in get_args(CtcTopology):
        raise ConfigError(f"topology = {topology!r}; expected one of {list(get_args(CtcTopology))}")
    model = units.trim()
    if not model.num_arcs or not np.isfinite(model.final_log_prob).any():
        raise GraphError(
            f"units ({units.num_states} states, {units.num_arcs} arcs) accepts no sequence of units"
        )
    states = np.arange(model.num_states)
    if topology == "minimal":
        parts = [_arcs(states, states, BLANK), _arcs(model.src, model.dst, model.pdf + 1, model.log_prob)]
        return _graph(parts, model.final_log_prob, model.start)
    return _with_last_unit(model, topology)


def _with_last_unit(model: Fsa, topology: CtcTopology) -> Fsa:
    """States below S: the last frame was blank, or there was none. Behind them: pairs (state, unit of the last frame)."""
    num_states, states = model.num_states, np.arange(model.num_states)
    width = int(model.pdf.max()) + 1
    keys, pair_of_arc = np.unique(model.dst.astype(np.int64) * width + model.pdf, return_inverse=True)
    pair_state, pair_unit = keys // width, keys % width + 1
    pairs = num_states + np.arange(len(keys))
    units = model.pdf + 1
    spoken = num_states + pair_of_arc
    # Behind each pair, each arc that leaves its state.
    order = np.argsort(model.src, kind="stable")
    begin = np.searchsorted(model.src[order], pair_state)
    count = np.searchsorted(model.src[order], pair_state, side="right") - begin
    owner = np.repeat(np.arange(len(keys)), count)
    arc = order[np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)]
    if topology != "compact":
        differs = units[arc] != pair_unit[owner]
        owner, arc = owner[differs], arc[differs]
    parts = [
        _arcs(states, states, BLANK),
        _arcs(pairs, pair_state, BLANK),
        _arcs(model.src, spoken, units, model.log_prob),
        _arcs(pairs[owner], spoken[arc], units[arc], model.log_prob[arc]),
    ]
    if topology != "selfless":
        parts.append(_arcs(pairs, pairs, pair_unit))
    return _graph(parts, np.append(model.final_log_prob, model.final_log_prob[pair_state]), model.start)


def _arcs(
    src: np.ndarray, dst: np.ndarray, pdf: np.ndarray | int, log_prob: np.ndarray | float = 0.0
) -> list[np.ndarray]:
    """src, dst, pdf and log_prob of some arcs, all of the length of `src`."""
    return [src, dst, np.broadcast_to(pdf, src.shape), np.broadcast_to(log_prob, src.shape)]


def _graph(parts: list[list[np.ndarray]], final: np.ndarray, start: int) -> Fsa:
    """The arcs by source state; `trim` drops blank states that no path of the model needs."""
    src, dst, pdf, log_prob = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((dst, pdf, src))
    return Fsa(len(final), src[order], dst[order], pdf[order], log_prob[order], final, start).trim()
