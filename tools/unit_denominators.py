"""Print how large bigram denominators over thousands of BPE units are, under each CTC topology.

    python -m tools.unit_denominators [--units 5000] [--sentences 100000] [--batch 8] [--frames 150]

The text is drawn: units by Zipf's law, each followed by one of 200 units of its own, by Zipf's law too. The last columns
are of one `forward_backward` over random scores: its time, and by how much the process grew for it, results included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from typing import get_args

import numpy as np

from fsachain.backends.dispatch import forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.graph.algorithms import table_bytes
from fsachain.graph.ctc import CtcTopology
from fsachain.graph.denominator import ctc_denominator
from fsachain.graph.phone_lm import estimate_phone_lm

FOLLOWERS = 200
UNITS_PER_SENTENCE = 25
MEGA = 1e6


def drawn_text(num_units: int, num_sentences: int) -> list[list[int]]:
    """Sentences of unit ids."""
    rng = np.random.default_rng(0)
    first = 1 / np.arange(1, num_units + 1)
    following = np.cumsum(1 / np.arange(1, FOLLOWERS + 1))
    followers = rng.choice(num_units, size=(num_units, FOLLOWERS), p=first / first.sum())
    text = np.empty((num_sentences, UNITS_PER_SENTENCE), dtype=np.int64)
    text[:, 0] = rng.choice(num_units, size=num_sentences, p=first / first.sum())
    for place in range(1, UNITS_PER_SENTENCE):
        choice = np.searchsorted(following / following[-1], rng.random(num_sentences))
        text[:, place] = followers[text[:, place - 1], choice]
    return (text + 1).tolist()


def row(options: argparse.Namespace, topology: CtcTopology) -> str:
    """One line of the table."""
    model = estimate_phone_lm(drawn_text(options.units, options.sentences), 2, 0, 2)
    begin = time.perf_counter()
    fsa = ctc_denominator(model, topology)
    built = time.perf_counter() - begin
    graph = DenominatorGraph(fsa, options.units + 1)
    table = table_bytes(graph.table)
    shape = (options.batch, options.frames, options.units + 1)
    scores = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    forward_backward(graph.batch(options.batch), scores[:, :2], leaky_hmm_coefficient=1e-5).occupancy.sum()
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    forward_backward(graph.batch(options.batch), scores, leaky_hmm_coefficient=1e-5).occupancy.sum()
    seconds = time.perf_counter() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    sizes = (
        f"{model.num_states:,} / {model.num_arcs:,} | {fsa.num_states:,} | {fsa.num_arcs:,} | {built:.2f} s"
    )
    return f"| {topology} | {sizes} | {table / MEGA:.0f} MB | {seconds:.2f} s | {grown / MEGA:.0f} MB |"


def main() -> None:
    """Measure each topology in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("units", 5000), ("sentences", 100_000), ("batch", 8), ("frames", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(
        "| topology | bigram: states / arcs | states | arcs | built in | table | forward-backward | grown by |"
    )
    print("|---|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for topology in get_args(CtcTopology):
        with context.Pool(1) as pool:
            print(pool.apply(row, (options, topology)), flush=True)
    num_pairs = options.units**2
    print(f"(all {num_pairs:,} pairs of units would be {2 * num_pairs:,} arcs)")


if __name__ == "__main__":
    main()
