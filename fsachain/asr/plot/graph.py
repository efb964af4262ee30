"""An acceptor as a picture: symbols, weights, and how much each arc is used as the width of its line."""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.asr.plot.canvas import (
    COLOURS,
    FIGURE_WIDTH,
    figure_svg,
    new_picture,
    nothing_to_show,
    shortened,
)
from fsachain.errors import ConfigError, FsachainError, GraphError, ShapeError, counted, require
from fsachain.fsa import Fsa, Ints
from fsachain.graph.algorithms import cheapest_steps, graph_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The part of a graph that is drawn, and its labels.

MOST_ARCS = 1000  # a picture of more is black, and takes Graphviz minutes
THINNEST, WIDEST = 0.7, 6.0  # points
_STEP = 1e-6  # what each arc costs more, so that it is farther than those on the way to it


@dataclass(frozen=True)
class Part:
    states: Ints  # their numbers in the graph, ascending
    arcs: Ints  # likewise
    labels: tuple[str, ...]  # one for each arc
    widths: npt.NDArray[np.float64]  # [arcs] of the lines, points
    unused: npt.NDArray[np.bool_]  # [arcs] True where an occupancy is known and zero
    is_cut: npt.NDArray[np.bool_]  # [states] True where arcs of the state are left out
    numbers: tuple[str, ...]  # in each state: its number, and its final weight where that is not 0


def checked_occupancy(occupancy: npt.ArrayLike, num_arcs: int) -> npt.NDArray[np.float64]:
    values = np.asarray(occupancy, dtype=np.float64)
    if values.shape != (num_arcs,):
        raise ShapeError(
            f"occupancy: shape {list(values.shape)}, expected [{num_arcs}], one entry for each arc"
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ShapeError(
            f"occupancy[{bad[0]}] = {values[bad[0]]}: expected finite numbers that are not negative"
        )
    return values


def symbols(fsa: Fsa, names: Sequence[str] | None, arc_names: Sequence[str] | None) -> Callable[[int], str]:
    """Function from an arc's number to its text: its own name, that of its pdf, or the pdf."""
    if arc_names is not None:
        if len(arc_names) != fsa.num_arcs:
            raise ShapeError(f"arc_names: {len(arc_names)}, expected {fsa.num_arcs}, one for each arc")
        return arc_names.__getitem__
    largest = int(fsa.pdf.max(initial=-1))
    if names is not None and largest >= len(names):
        raise ShapeError(f"names: {len(names)}; the graph has pdfs up to {largest}")
    return lambda arc: str(int(fsa.pdf[arc])) if names is None else names[int(fsa.pdf[arc])]


def chosen(fsa: Fsa, used: npt.NDArray[np.float64] | None, max_arcs: int) -> Ints:
    if fsa.num_arcs <= max_arcs:
        return np.arange(fsa.num_arcs)
    if used is not None:
        return np.sort(np.argsort(-used, kind="stable")[:max_arcs])
    # Those at the end of the most probable ways from the start, weights above one counted as one.
    cost = np.maximum(0.0, -fsa.log_prob) + _STEP
    distance = csgraph.dijkstra(cheapest_steps(fsa, cost), indices=fsa.start)
    total = distance[fsa.src] + cost
    nearest = np.argsort(total, kind="stable")[:max_arcs]
    return np.sort(nearest[np.isfinite(total[nearest])])


def make_part(
    fsa: Fsa, arcs: Ints, used: npt.NDArray[np.float64] | None, symbol: Callable[[int], str]
) -> Part:
    """`symbol` names an arc by its number; `used` is the occupancy [A], which gives the widths."""
    whole = len(arcs) == fsa.num_arcs
    ends = np.concatenate([fsa.src[arcs], fsa.dst[arcs], [fsa.start]])
    states = np.arange(fsa.num_states) if whole and fsa.num_states <= MOST_ARCS else np.unique(ends)
    drawn = np.bincount(np.searchsorted(states, fsa.src[arcs]), minlength=len(states))
    drawn += np.bincount(np.searchsorted(states, fsa.dst[arcs]), minlength=len(states))
    every = np.bincount(fsa.src, minlength=fsa.num_states) + np.bincount(fsa.dst, minlength=fsa.num_states)
    labels = tuple(f"{shortened(symbol(arc), 16)} / {fsa.log_prob[arc] + 0.0:.3g}" for arc in arcs.tolist())
    widths, unused = np.full(len(arcs), 1.2), np.zeros(len(arcs), dtype=np.bool_)
    if used is not None:
        largest = used.max(initial=0.0) or 1.0
        widths, unused = THINNEST + (WIDEST - THINNEST) * used[arcs] / largest, used[arcs] == 0
    final = fsa.final_log_prob[states]
    numbers = tuple(
        f"{state}\n{weight:.3g}" if weight > -np.inf and weight != 0 else str(state)
        for state, weight in zip(states.tolist(), final.tolist(), strict=True)
    )
    return Part(states, arcs, labels, widths, unused, drawn < every[states], numbers)


# Summary of a graph that is too large to be drawn whole.


def draw_summary(figure: Any, fsa: Fsa, used: npt.NDArray[np.float64] | None, shape: tuple[int, int]) -> None:
    """Panels, `shape` of them: facts in words, arcs per state, and cumulative occupancy of the arcs.

    Without an occupancy the third panel counts arcs by weight.
    """
    words, degrees, third = figure.subplots(*shape).flat
    facts = graph_facts(fsa)
    lines = [
        "the whole graph",
        f"{counted(facts.num_states, 'state', ',')}, {facts.num_finals:,} final",
        f"{counted(facts.num_arcs, 'arc', ',')}, {counted(facts.num_pdfs, 'pdf', ',')}",
        counted(facts.num_self_loops, "self-loop", ","),
        f"{counted(facts.num_cyclic_states, 'state', ',')} on cycles",
        f"{counted(facts.num_states - facts.num_useful_states, 'state', ',')} on no path",
        f"shortest path {counted(facts.min_frames, 'frame', 'g')}",
        "deterministic" if facts.is_deterministic else "not deterministic",
        f"compiled: {facts.table_bytes / 1000:,.0f} kB",
    ]
    words.set_axis_off()
    words.text(0, 1, "\n".join(lines), va="top", fontsize=8, linespacing=1.5, transform=words.transAxes)

    def plain(value: float, _: float = 0.0) -> str:  # a tick of a logarithmic axis without a formula
        return f"{value:,.0f}"

    # States by the number of their arcs, in bins that double.
    degrees.set_title("arcs that leave a state", fontsize=8)
    leaving = np.bincount(fsa.src, minlength=fsa.num_states)
    edges = np.concatenate([[0, 1], 2 ** np.arange(1, int(max(leaving.max(), 1)).bit_length() + 1)])
    counts = np.histogram(leaving, edges)[0]
    names = [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in pairwise(edges)]
    degrees.bar(np.arange(len(counts)), counts, color=COLOURS[0], edgecolor="black", linewidth=0.5)
    degrees.set_xticks(np.arange(len(counts)), names, rotation=45, ha="right")
    degrees.set_ylabel("states", fontsize=8)
    degrees.set_yscale("symlog", linthresh=1.0)
    degrees.yaxis.set_major_formatter(plain)
    degrees.set_ylim(0.0, max(counts.max() * 2, 1))

    weights = fsa.log_prob[fsa.log_prob > -np.inf]
    third.set_title("weights of the arcs" if used is None else "the most used arcs together", fontsize=8)
    if used is None and weights.size:
        third.hist(weights, bins=30, color=COLOURS[0], edgecolor="black", linewidth=0.3)
        third.set_xlabel("log weight", fontsize=8)
        third.set_ylabel("arcs", fontsize=8)
    elif used is not None and used.sum() > 0:
        shares = 100 * np.cumsum(-np.sort(-used)) / used.sum()
        third.plot(np.arange(1, len(shares) + 1), shares, color=COLOURS[0])
        third.set_xscale("log")
        third.xaxis.set_major_formatter(plain)
        third.set_ylim(0.0, 105.0)
        third.set_xlabel("arcs", fontsize=8)
        third.set_ylabel("% of the occupancy", fontsize=8)
        third.grid(color="#dddddd", linewidth=0.5)
    else:
        nothing_to_show(third, "no arc can be taken" if used is None else "no arc is used")
        third.set_xticks([])
    for axes in (degrees, third):
        axes.tick_params(labelsize=7)


# Layout by Graphviz.
#
# The pygraphviz wheel ships the library of Graphviz, so that no program `dot` needs to be installed. Only
# sizes go in and only positions come out: names are drawn by us, and can neither be markup nor depend on the
# fonts that Graphviz finds.

POINTS = 72.0  # to the inch
ROW_WIDTH = 8.0  # inches of connected components side by side, before another row begins
_GAP = 0.25
Points = npt.NDArray[np.float64]
_LOCK = threading.Lock()  # Graphviz keeps its state in global variables


class DrawnEdge(NamedTuple):
    """A curve in inches."""

    curve: Points  # [1 + 3 k, 2]: control points of k cubic Bezier pieces
    tip: Points  # [2]: where the arrow ends
    label: Points  # [2]: centre of its label


class Layout(NamedTuple):
    """A drawing, in inches."""

    size: tuple[float, float]  # width and height
    nodes: Points  # [S, 2] centres
    edges: tuple[DrawnEdge, ...]  # in the order given


def lay_out(
    node_sizes: Sequence[float],
    edges: Sequence[tuple[int, int]],
    label_sizes: Sequence[tuple[float, float]],
    direction: Literal["LR", "TB"] = "LR",
) -> Layout:
    """Positions by Graphviz's `dot`; sizes in inches, those of nodes are diameters. Parallel edges and loops are legal."""
    lines = [
        "digraph {",
        f"rankdir={direction}; nodesep=0.15; ranksep=0.3;",
        'node [shape=circle, fixedsize=true, label=""];',
    ]
    lines += [f"{node} [width={size:.4f}];" for node, size in enumerate(node_sizes)]
    for place, ((src, dst), (width, height)) in enumerate(zip(edges, label_sizes, strict=True)):
        # An empty table of fixed size keeps the label's place free.
        box = f'width="{width * POINTS:.0f}" height="{height * POINTS:.0f}"'
        table = f'<table border="0" fixedsize="true" {box}><tr><td></td></tr></table>'
        lines.append(f"{src} -> {dst} [place={place}, label=<{table}>];")
    pygraphviz = require("pygraphviz", extra="plot")
    try:
        with _LOCK, warnings.catch_warnings():
            # What Graphviz says about fonts, which are not used.
            warnings.simplefilter("ignore", RuntimeWarning)
            graph = pygraphviz.AGraph(string="\n".join([*lines, "}"]))
            found = json.loads(graph.draw(format="json", prog="dot"))
    except (OSError, ValueError, RuntimeError) as error:
        raise GraphError(f"Graphviz could not arrange the graph: {error}") from error

    def point(text: str) -> Points:
        return np.array([float(part) for part in text.split(",")[:2]]) / POINTS

    nodes = np.zeros((len(node_sizes), 2))
    for node in found.get("objects", ()):
        nodes[int(node["name"])] = point(node["pos"])
    drawn: dict[int, DrawnEdge] = {}
    for edge in found.get("edges", ()):
        tip, *points = edge["pos"].split()  # "e,x,y x,y x,y ...": the tip, then the control points
        curve = np.array([point(place) for place in points])
        drawn[int(edge["place"])] = DrawnEdge(curve, point(tip.removeprefix("e,")), point(edge["lp"]))

    # Connected components in rows, the tallest first; Graphviz sets all in one row.
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    links = sparse.csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(nodes),) * 2)
    count, part = csgraph.connected_components(links, directed=False)
    corners: list[list[Points]] = [[] for _ in range(count)]
    for centre, size, own in zip(nodes, node_sizes, part, strict=True):
        corners[own] += [centre - size / 2, centre + size / 2]
    for place, ((src, _), label_size) in enumerate(zip(edges, np.asarray(label_sizes), strict=True)):
        label = drawn[place].label
        corners[part[src]] += [*drawn[place].curve, label - label_size / 2, label + label_size / 2]
    low = np.array([np.min(points, axis=0) for points in corners])
    places, whole = _shelves(np.array([np.max(points, axis=0) for points in corners]) - low)
    shift = (places - low)[part]
    moved = (DrawnEdge(*(points + shift[src] for points in drawn[n])) for n, (src, _) in enumerate(edges))
    return Layout(whole, nodes + shift, tuple(moved))


def _shelves(sizes: Points) -> tuple[Points, tuple[float, float]]:
    """Lower left corners of boxes [C, 2] set in rows from the top, and the size of them all."""
    limit = max(float(sizes[:, 0].max()), ROW_WIDTH)
    places = np.zeros_like(sizes)
    across = down = row_height = widest = 0.0
    for box in np.lexsort((np.arange(len(sizes)), -sizes[:, 1])).tolist():
        width, height = sizes[box].tolist()
        if across and across + width > limit:
            across, down, row_height = 0.0, down + row_height + _GAP, 0.0
        places[box] = across, -down - height
        row_height = max(row_height, height)
        across += width + _GAP
        widest = max(widest, across - _GAP)
    total = down + row_height
    return places + np.array([0.0, total]), (widest, total)


MAX_ARCS = 60
_MOST_SHOWN = 1_000_000  # arcs of a graph that a notebook shows unasked: a larger one takes seconds
_FONT = 9.0  # points
_LEGIBLE = 6.0 / _FONT  # the least scale
_LINE, _SPACE = 1.3 * _FONT / POINTS, 0.9 * _FONT / POINTS  # inches
_NODE = 0.42  # inches, the least diameter
_SUMMARY_HEIGHT, _SUMMARY_WIDTH = 2.4, 3.0
_WIDTHS = (5.0, 9.0)  # inches of a page, the least and the most
_MAX_HEIGHT, _TALLEST = 10.0, 24.0  # inches of a page; of one whose letters would be too small otherwise
_MOST_LEGIBLE = 120  # arcs: the letters of more would be too small on any page
_SMALL = 0.8  # a drawing that must shrink more than this is also tried from top to bottom


def plot_graph(
    fsa: Fsa,
    *,
    names: Sequence[str] | None = None,
    arc_names: Sequence[str] | None = None,
    occupancy: npt.ArrayLike | None = None,
    max_arcs: int = MAX_ARCS,
    title: str = "",
) -> Figure:
    """The acceptor with the symbol and log weight of each arc, from left to right or, if it is long, downwards.

    States are numbered; the start is grey, final states have two circles, and their weight where it is not 0.
    With an occupancy the lines of arcs grow with it from 0.7 to 6 points; arcs of occupancy zero are dashed.
    The loops of a state are one line with all their labels. Of a graph with more than `max_arcs` arcs, or of fewer where
    its letters would be smaller than 6 points, those with the largest occupancy are drawn; without one those on the most
    probable ways from the start. The whole is summarised beside it, and states with arcs left out have a dotted outline.

    Args:
        fsa: of any size.
        names: what to write for each pdf; its number by default.
        arc_names: what to write for each arc instead, such as phones.
        occupancy: [A], not negative, for example `ForwardBackward.arc_occupancy(n).sum(axis=0)`.
        max_arcs: 1 to 1000.
        title: above the picture.

    Raises:
        ShapeError: names or occupancies that do not fit the graph.
        ConfigError: `max_arcs` is not 1 to 1000.
        MissingExtraError: pygraphviz or matplotlib is not installed.
    """
    if not 1 <= max_arcs <= MOST_ARCS:
        raise ConfigError(f"max_arcs = {max_arcs}: expected 1 to {MOST_ARCS}")
    used = None if occupancy is None else checked_occupancy(occupancy, fsa.num_arcs)
    symbol, count = symbols(fsa, names, arc_names), min(max_arcs, fsa.num_arcs, _MOST_LEGIBLE)
    while True:
        part = make_part(fsa, chosen(fsa, used, count), used, symbol)
        layout = _layout(fsa, part)
        scale = _scale(layout)
        if scale >= _LEGIBLE or count <= 1:
            break
        count = max(1, int(count * min(0.8, scale / _LEGIBLE)))
    clipped = len(part.arcs) < fsa.num_arcs
    width = max(layout.size[0] * scale + 0.3, _WIDTHS[0])
    height = max(layout.size[1] * scale, 0.8) + 0.5
    if not clipped:
        with new_picture(height, width, title) as figure:
            _draw(figure.subplots(), fsa, part, layout, scale)
        return figure
    note = f"{len(part.arcs)} of {counted(fsa.num_arcs, 'arc', ',')}"
    if used is not None and used.sum() > 0:
        note += f", with {100 * used[part.arcs].sum() / used.sum():.1f} % of the occupancy"
    size = height + _SUMMARY_HEIGHT, max(width, FIGURE_WIDTH)
    if beside := width + _SUMMARY_WIDTH < _WIDTHS[1] and height > 2 * _SUMMARY_HEIGHT:
        size = height, width + _SUMMARY_WIDTH
    with new_picture(*size, f"{title}: {note}" if title else note) as figure:
        parts: Any
        if beside:
            parts = figure.subfigures(1, 2, width_ratios=[width, _SUMMARY_WIDTH])
        else:
            parts = figure.subfigures(2, 1, height_ratios=[height, _SUMMARY_HEIGHT])
        draw_summary(parts[1], fsa, used, (3, 1) if beside else (1, 3))
        _draw(parts[0].subplots(), fsa, part, layout, scale)
    return figure


def graph_svg(fsa: Fsa) -> str | None:
    """SVG for `Fsa._repr_svg_`; None where no picture can be made: notebooks show the text then."""
    if fsa.num_arcs > _MOST_SHOWN:
        return None
    try:
        return figure_svg(plot_graph(fsa, max_arcs=40))
    except FsachainError:
        return None


def _layout(fsa: Fsa, part: Part) -> Layout:
    def places(numbers: Ints) -> list[int]:
        return np.searchsorted(part.states, numbers).tolist()

    ends = list(zip(places(fsa.src[part.arcs]), places(fsa.dst[part.arcs]), strict=True))
    # Loops of a state share an edge, whose label has a line for each: Graphviz would set labels on the lines of others.
    together: dict[tuple[int, int, int], list[int]] = {}
    for arc, (src, dst) in enumerate(ends):
        together.setdefault((src, dst, -1 if src == dst else arc), []).append(arc)
    groups = list(together.values())
    edges = [ends[group[0]] for group in groups]
    widths = _text_widths(part.labels)
    thick = part.widths / POINTS  # so that no label touches a thick line or its head
    sizes = [
        (max(widths[arc] + 2 * thick[arc] for arc in group) + _SPACE, _LINE * len(group)) for group in groups
    ]
    nodes = _diameters(part)
    found = lay_out(nodes, edges, sizes)
    if _scale(found) <= _SMALL:
        found = max(found, lay_out(nodes, edges, sizes, "TB"), key=_scale)
    drawn: dict[int, DrawnEdge] = {}
    for group, edge in zip(groups, found.edges, strict=True):
        for row, arc in enumerate(group):
            above = 0.5 * (len(group) - 1) - row
            drawn[arc] = edge._replace(label=edge.label + np.array([0.0, above * _LINE]))
    return found._replace(edges=tuple(drawn[arc] for arc in range(len(ends))))


def _diameters(part: Part) -> list[float]:
    """Inches: of states, around what stands in them."""
    lines = [text.split("\n") for text in part.numbers]
    return [max(_NODE, math.hypot(max(_text_widths(rows)), 0.8 * _LINE * len(rows)) + 0.16) for rows in lines]


def _text_widths(labels: Sequence[str]) -> list[float]:
    """Inches, in the font of the pictures."""
    measure = require("matplotlib.textpath", extra="plot").TextToPath().get_text_width_height_descent
    font = require("matplotlib.font_manager", extra="plot").FontProperties(size=_FONT)
    return [measure(label, font, ismath=False)[0] / POINTS for label in labels]


def _scale(layout: Layout) -> float:
    """The factor that fits a drawing on a page, which is taller where letters would be too small."""
    width, height = layout.size
    fits = min(1.0, (_WIDTHS[1] - 0.3) / width, _MAX_HEIGHT / height)
    return max(fits, min(_LEGIBLE, (_WIDTHS[1] - 0.3) / width, _TALLEST / height))


def _draw(axes: Axes, fsa: Fsa, part: Part, layout: Layout, scale: float) -> None:
    axes.set_axis_off()
    axes.set_aspect("equal")
    margin = 0.1
    axes.set_xlim(-margin, layout.size[0] + margin)
    axes.set_ylim(-margin, layout.size[1] + margin)
    for place, edge in enumerate(layout.edges):
        _draw_arc(axes, part, place, edge, scale)
    patches = require("matplotlib.patches", extra="plot")
    for place, (state, diameter) in enumerate(zip(part.states.tolist(), _diameters(part), strict=True)):
        centre = layout.nodes[place]
        inner = (diameter / 2 - 0.04,) if fsa.final_log_prob[state] > -np.inf else ()
        for radius in (diameter / 2, *inner):
            axes.add_patch(
                patches.Circle(
                    centre,
                    radius,
                    facecolor="#d9d9d9" if state == fsa.start else "white",
                    edgecolor="black",
                    linewidth=(2.0 if state == fsa.start else 1.0) * max(scale, 0.5),
                    linestyle=":" if part.is_cut[place] else "-",
                    zorder=3,
                    gid=f"state-{state}",
                )
            )
        text: dict[str, Any] = {"fontsize": _FONT * scale, "linespacing": 1.0, "zorder": 4}
        axes.text(centre[0], centre[1], part.numbers[place], ha="center", va="center", **text)


def _draw_arc(axes: Axes, part: Part, place: int, edge: DrawnEdge, scale: float) -> None:
    patches = require("matplotlib.patches", extra="plot")
    path = require("matplotlib.path", extra="plot").Path
    codes = [path.MOVETO] + [path.CURVE4] * (len(edge.curve) - 1) + [path.LINETO]
    width, unused = part.widths[place], bool(part.unused[place])
    axes.add_patch(
        patches.FancyArrowPatch(
            path=path(np.vstack([edge.curve, edge.tip]), codes),
            arrowstyle="-|>",
            mutation_scale=(6.5 + 1.2 * width) * scale,
            linewidth=width * scale,
            linestyle="--" if unused else "-",
            color="#888888" if unused else "#222222",
            shrinkA=0.0,
            shrinkB=0.0,
            capstyle="butt",
            joinstyle="miter",
            zorder=1,
            gid=f"arc-{part.arcs[place]}",
        )
    )
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
    text: dict[str, Any] = {"fontsize": _FONT * scale, "ha": "center", "va": "center", "zorder": 2}
    axes.text(
        edge.label[0], edge.label[1], part.labels[place], bbox=box, gid=f"label-{part.arcs[place]}", **text
    )
