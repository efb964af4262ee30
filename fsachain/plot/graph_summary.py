"""What a graph too large to be drawn whole is like: its sizes in words, and two distributions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Fsa
from fsachain.graph.facts import GraphFacts, graph_facts
from fsachain.plot.canvas import COLOURS, nothing_to_show

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_summary(figure: Any, fsa: Fsa, used: npt.NDArray[np.float64] | None, shape: tuple[int, int]) -> None:
    """Facts, arcs per state, and the share of the occupancy (or of the arcs, by weight) in three panels.

    Args:
        figure: a figure or subfigure.
        fsa: the whole graph.
        used: [A] occupancies; None where they are not known.
        shape: rows and columns of the three panels.
    """
    words, degrees, third = figure.subplots(*shape).flat
    words.set_axis_off()
    words.text(
        0.0, 1.0, _facts(graph_facts(fsa)), va="top", fontsize=8, linespacing=1.5, transform=words.transAxes
    )
    _draw_degrees(degrees, fsa)
    if used is not None:
        _draw_shares(third, used)
    else:
        _draw_weights(third, fsa)
    for axes in (degrees, third):
        axes.tick_params(labelsize=7)


def _facts(facts: GraphFacts) -> str:
    unused = facts.num_states - facts.num_useful_states
    return "\n".join(
        [
            "the whole graph",
            f"{facts.num_states:,} states, {facts.num_finals:,} final",
            f"{facts.num_arcs:,} arcs, {facts.num_pdfs:,} pdfs",
            f"{facts.num_self_loops:,} self-loops",
            f"{facts.num_cyclic_states:,} states on cycles",
            f"{unused:,} states on no path",
            f"shortest path {facts.min_frames:g} frames",
            "deterministic" if facts.is_deterministic else "not deterministic",
            f"compiled: {facts.table_bytes / 1000:,.0f} kB",
        ]
    )


def _draw_degrees(axes: Axes, fsa: Fsa) -> None:
    """States by the number of their arcs, in bins that double."""
    axes.set_title("arcs that leave a state", fontsize=8)
    degrees = np.bincount(fsa.src, minlength=fsa.num_states)
    edges = np.concatenate([[0, 1], 2 ** np.arange(1, int(max(degrees.max(), 1)).bit_length() + 1)])
    counts = np.histogram(degrees, edges)[0]
    names = [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in pairwise(edges)]
    axes.bar(np.arange(len(counts)), counts, color=COLOURS[0], edgecolor="black", linewidth=0.5)
    axes.set_xticks(np.arange(len(counts)), names, rotation=45, ha="right")
    axes.set_ylabel("states", fontsize=8)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.yaxis.set_major_formatter(_plain)
    axes.set_ylim(0.0, max(counts.max() * 2, 1))


def _draw_shares(axes: Axes, used: npt.NDArray[np.float64]) -> None:
    axes.set_title("the most used arcs together", fontsize=8)
    if not used.sum() > 0:
        nothing_to_show(axes, "no arc is used")
        axes.set_xticks([])
        return
    shares = 100 * np.cumsum(-np.sort(-used)) / used.sum()
    axes.plot(np.arange(1, len(shares) + 1), shares, color=COLOURS[0])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.set_ylim(0.0, 105.0)
    axes.set_xlabel("arcs", fontsize=8)
    axes.set_ylabel("% of the occupancy", fontsize=8)
    axes.grid(color="#dddddd", linewidth=0.5)


def _plain(value: float, _: float = 0.0) -> str:
    """A tick of a logarithmic axis without a formula."""
    return f"{value:,.0f}"


def _draw_weights(axes: Axes, fsa: Fsa) -> None:
    axes.set_title("weights of the arcs", fontsize=8)
    weights = fsa.log_prob[fsa.log_prob > -np.inf]
    if not weights.size:
        nothing_to_show(axes, "no arc can be taken")
        axes.set_xticks([])
        return
    axes.hist(weights, bins=30, color=COLOURS[0], edgecolor="black", linewidth=0.3)
    axes.set_xlabel("log weight", fontsize=8)
    axes.set_ylabel("arcs", fontsize=8)
