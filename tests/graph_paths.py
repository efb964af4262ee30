"""Paths of small acceptors, scored and sampled in plain Python, for the tests of graphs."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest


def log_add(a, b):
    return float(np.logaddexp(a, b))


class Scorer:
    """Score of a pdf sequence: the best path (`max`) or the log-sum of all (`log_add`); -inf without any."""

    def __init__(self, fsa, combine=max):
        self.fsa, self.combine = fsa, combine
        self.arcs = defaultdict(list)
        for src, dst, pdf, log_prob in zip(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, strict=True):
            self.arcs[int(src), int(pdf)].append((int(dst), float(log_prob)))

    def __call__(self, pdfs):
        scores = {self.fsa.start: 0.0}
        for pdf in pdfs:
            reached = {}
            for state, score in scores.items():
                for dst, log_prob in self.arcs[state, int(pdf)]:
                    new = score + log_prob
                    reached[dst] = self.combine(reached[dst], new) if dst in reached else new
            scores = reached
        total = -math.inf
        for state, score in scores.items():
            total = self.combine(total, score + float(self.fsa.final_log_prob[state]))
        return total


def sample_paths(fsa, count, *, seed, max_frames=1000, stop_prob=0.2):
    """`count` random accepted paths, as lists of arc numbers."""
    rng = np.random.default_rng(seed)
    leaving = defaultdict(list)
    for arc, src in enumerate(fsa.src):
        leaving[int(src)].append(arc)
    paths = []
    while len(paths) < count:
        state, path = fsa.start, []
        while len(path) <= max_frames:
            final = fsa.final_log_prob[state] > -math.inf
            if final and path and (not leaving[state] or rng.random() < stop_prob):
                paths.append(path)
                break
            if not leaving[state]:
                break
            path.append(leaving[state][rng.integers(len(leaving[state]))])
            state = int(fsa.dst[path[-1]])
    return paths


def assert_same_scores(found, expected, tolerance, sequences=None, *, combine=log_add, **drawn):
    """Of these pdf sequences, or of those of random paths of both graphs, `drawn` as `sample_paths` draws them."""
    score, other = Scorer(found, combine), Scorer(expected, combine)
    if sequences is None:
        sequences = [fsa.pdf[path] for fsa in (found, expected) for path in sample_paths(fsa, **drawn)]
    for pdfs in sequences:
        assert score(pdfs) == pytest.approx(other(pdfs), abs=tolerance)


def assert_same_columns(found, expected):
    """The arrays of two acceptors, or of two transducers, are the same to the bit."""
    labels = ("pdf",) if hasattr(found, "pdf") else ("ilabel", "olabel")
    for name in ("src", "dst", *labels, "log_prob", "final_log_prob"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def scores_along(pdfs, num_pdfs, others=-20.0):
    """Scores [T, P], float32: 0 on these pdfs, `others` elsewhere."""
    scores = np.full((len(pdfs), num_pdfs), others, dtype=np.float32)
    scores[np.arange(len(pdfs)), pdfs] = 0.0
    return scores


def pdf_sequences(num_pdfs, num_frames):
    return itertools.product(range(num_pdfs), repeat=num_frames)


def join(left, right, longest):
    """Strings of both, one after the other, with their probabilities; up to so many symbols."""
    joined = {}
    for (a, p), (b, q) in itertools.product(left.items(), right.items()):
        if len(a) + len(b) <= longest:
            joined[a + b] = joined.get(a + b, 0.0) + p * q
    return joined


def linear(labels):
    """An OpenFst acceptor of these labels in a row, at no cost."""
    import pywrapfst  # which not everyone has installed

    fst = pywrapfst.VectorFst()
    fst.add_states(len(labels) + 1)
    fst.set_start(0)
    fst.set_final(len(labels))
    for place, label in enumerate(labels):
        fst.add_arc(place, pywrapfst.Arc(label, label, "0", place + 1))
    return fst


def grammar_cost(grammar, sentence):
    """Cost of the cheapest path that accepts `sentence`, of word ids."""
    import pywrapfst

    found = pywrapfst.compose(linear(sentence), grammar.copy().arcsort("ilabel"))
    return float(pywrapfst.shortestdistance(found, reverse=True)[0]) if found.num_states() else math.inf
