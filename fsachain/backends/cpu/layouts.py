"""How arcs stand in memory: a layout for each way to run over them. See `arcs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.numbers import Weights

# Unsigned indices spare the compiler the code for negative ones.
Index = npt.NDArray[np.uint32]


class ArcRows(NamedTuple):
    """Arcs sorted three ways, with the arcs that share a destination and a pdf summed as one pair q.

    Alpha: state j sums the pairs state_pairs[j] to state_pairs[j + 1] - 1; pair q has the pdf pair_column[q] and sums the
    arcs pair_arcs[q] to pair_arcs[q + 1] - 1, from arc_src and of arc_weight. Occupancy: pdf k sums the pairs
    column_pairs[k] to column_pairs[k + 1] - 1, which are numbered anew in this order; such a pair has the destination
    column_dst and its arcs again in column_arcs, column_src, column_weight - none if it is its destination's only pair,
    whose alpha then tells its sum. Beta: state i sums the arcs src_arcs[i] to src_arcs[i + 1] - 1, to the pairs (of the
    second numbering) src_pair and of src_weight.
    """

    state_pairs: Index
    pair_column: Index
    pair_arcs: Index
    arc_src: Index
    arc_weight: Weights
    column_pairs: Index
    column_dst: Index
    column_arcs: Index
    column_src: Index
    column_weight: Weights
    src_arcs: Index
    src_pair: Index
    src_weight: Weights


class ArcEnds(NamedTuple):
    """The arcs offsets[i] to offsets[i + 1] - 1 have one of their ends in state i, the other in `other`."""

    offsets: Index
    other: Index
    column: Index
    weight: Weights


class ArcsBothWays(NamedTuple):
    """Arcs by destination, for alphas, and by source, for betas and occupancies: for graphs without pairs worth the name.

    Where hardly two arcs share a destination and a pdf, sums of pairs would take more memory than the arcs. A leak is
    added to the alphas of all states here, since an arc of its own into each pair would double the arcs.
    """

    into: ArcEnds
    out: ArcEnds


class Rows(NamedTuple):
    """Rows of terms in groups of W, the rows of a group side by side.

    Group g has shared[g] + lengths[g] terms for each of its rows, those that have fewer being filled up with terms that are
    zero, and the sum of lane w goes to target[g W + w]. Of a shared term all lanes have one source. The terms of all arrays
    stand in the same order: group after group, term after term, lane after lane. first: where the results, or what is kept
    of the terms, begin among those of all widths. A term is a number at `source` times a weight, or times the number at
    `other`.
    """

    shared: Index
    lengths: Index
    target: Index
    first: np.uint64
    source: Index
    other: Index
    weight: Weights


class Sums(NamedTuple):
    """The four sums of a frame over rows, W of them side by side, for one W.

    into: pairs over arcs in, of `source` states; the leak's arc into each pair has `leak`, one weight for each lane or none.
    states: over pairs, `source`, times the probability of the pdf `other`. columns: pdfs over pairs, `source`, times the
    beta of the state `other`; where `weight` is not 0, `source` is a state's alpha, which has the probability in it
    already. back: states over arcs out, whose `source` are terms of `columns`.
    """

    into: Rows
    leak: Weights
    states: Rows
    columns: Rows
    back: Rows


class ArcGroups(NamedTuple):
    """The sums over rows side by side, and over those that are too unlike any others, one by one.

    Sums of pairs are kept in the rows of alphas, after the states and the leak: a zero is in row `nothing`, which is the
    first after these, and the last sum before row num_alphas. num_terms: of `columns`, for both widths.
    """

    many: Sums
    single: Sums
    nothing: int
    num_alphas: int
    num_terms: int


class OwnGroups(ArcGroups):
    """The same for a graph that one sequence has for itself: sums over all states or pdfs may take any order."""


class ArcList(NamedTuple):
    """The arcs one after another by pdf, those of pdf k from columns[k] to columns[k + 1] - 1.

    Arcs of one pdf stand by rank, the first into every state, then the second of each, because arcs that follow each other
    should have different ends.
    """

    num_states: int
    src: Index
    dst: Index
    column: Index
    columns: Index
    weight: Weights


Layout = ArcRows | ArcsBothWays | ArcGroups | ArcList
