"""Random acceptors and scores, for hypothesis and for plain seeds."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from fsachain import Fsa, compile_table

weights = st.one_of(st.floats(-3.0, 3.0), st.sampled_from([0.0, -math.inf, -20.0, 5.0]))


@st.composite
def graphs(draw, max_states=4, max_arcs=7, num_pdfs=3, weights=weights, finals=weights):
    """Any acceptor: cycles, self-loops, parallel arcs, several finals or none, any start, no arcs, dead states."""
    states = draw(st.integers(1, max_states))
    state = st.integers(0, states - 1)
    arcs = draw(st.lists(st.tuples(state, state, st.integers(0, num_pdfs - 1), weights), max_size=max_arcs))
    src, dst, pdf, log_prob = (
        (list(column) for column in zip(*arcs, strict=True)) if arcs else ([], [], [], [])
    )
    final = draw(st.lists(finals, min_size=states, max_size=states))
    return Fsa(states, src, dst, pdf, log_prob, final, draw(state))


@st.composite
def score_matrices(draw, num_frames, num_pdfs=3):
    values = st.one_of(st.floats(-5.0, 5.0), st.sampled_from([0.0, -math.inf, 30.0, -30.0]))
    flat = draw(st.lists(values, min_size=num_frames * num_pdfs, max_size=num_frames * num_pdfs))
    return np.array(flat, dtype=np.float64).reshape(num_frames, num_pdfs)


@st.composite
def leaking_tables(draw, fsa, num_pdfs=3):
    """The acceptor's table with a leak that may land in any state, in some of them with probability 0."""
    shares = draw(st.lists(st.floats(0.0, 1.0), min_size=fsa.num_states, max_size=fsa.num_states))
    init = np.array(shares)
    init[0] += 0.25
    with np.errstate(divide="ignore"):
        return replace(compile_table(fsa, num_pdfs), leaky_log_prob=np.log(init / init.sum()))


def connected_graph(seed, num_states=12, num_arcs=40, num_pdfs=9):
    """A cycle through all states and random arcs beside it; start 0 with a self-loop; every third state is final."""
    rng = np.random.default_rng(seed)
    ring = np.arange(num_states)
    extra = num_arcs - num_states - 1
    src = np.concatenate([ring, [0], rng.integers(num_states, size=extra)])
    dst = np.concatenate([(ring + 1) % num_states, [0], rng.integers(num_states, size=extra)])
    final = np.where(ring % 3 == 0, rng.normal(size=num_states) - 1.0, -math.inf)
    pdf = np.arange(num_arcs) % num_pdfs
    return Fsa(num_states, src, dst, rng.permutation(pdf), rng.normal(size=num_arcs) - 1.5, final, 0)


def left_to_right_graph(seed, num_states=6, num_pdfs=9):
    """A numerator: each state but the last has a self-loop and an arc forward; the last is final."""
    rng = np.random.default_rng(seed)
    stay, step = np.arange(1, num_states), np.arange(num_states - 1)
    src, dst = np.concatenate([step, stay]), np.concatenate([step + 1, stay])
    pdfs = rng.integers(num_pdfs, size=num_states - 1)
    final = np.full(num_states, -math.inf)
    final[-1] = 0.0
    return Fsa(num_states, src, dst, np.tile(pdfs, 2), -rng.random(2 * (num_states - 1)), final)


def two_lobes():
    """Two rings that never meet: state 1 spends pdf 0, state 2 pdf 1; the start leads to both by pdf 2."""
    return Fsa(3, [0, 0, 1, 2], [1, 2, 1, 2], [2, 2, 0, 1], np.zeros(4), [-np.inf, 0.0, 0.0])


def twin_graph(seed=0, num_states=20, num_arcs=200, num_pdfs=9):
    """Two of each state of a connected graph, with arcs from and to the same states and pdfs, of other weights."""
    fsa = connected_graph(seed, num_states, num_arcs, num_pdfs)
    src, dst, pdf = (np.tile(values, 4) for values in (fsa.src, fsa.dst, fsa.pdf))
    src[len(src) // 2 :] += num_states
    dst.reshape(4, -1)[1::2] += num_states
    rng = np.random.default_rng(seed)
    return Fsa(2 * num_states, src, dst, pdf, -3.0 * rng.random(len(src)), np.tile(fsa.final_log_prob, 2))


def renumbered(fsa, states, arcs, pdfs=None):
    """The same acceptor with states (and pdfs) of other numbers, arcs in another order: three permutations."""
    final = np.empty(fsa.num_states)
    final[states] = fsa.final_log_prob
    columns = states[fsa.src], states[fsa.dst], fsa.pdf if pdfs is None else pdfs[fsa.pdf], fsa.log_prob
    return Fsa(fsa.num_states, *(column[arcs] for column in columns), final, int(states[fsa.start]))
