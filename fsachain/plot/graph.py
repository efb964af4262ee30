"""An acceptor as a picture: symbols, weights, and how much each arc is used as the width of its line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, FsachainError, require
from fsachain.fsa import Fsa, Ints
from fsachain.plot.canvas import FIGURE_WIDTH, figure_svg, new_figure, plain_text, shortened
from fsachain.plot.graph_part import MOST_ARCS, Part, checked_occupancy, chosen, make_part, symbols
from fsachain.plot.graph_summary import draw_summary
from fsachain.plot.layout import DrawnEdge, Layout, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ARCS = 60
_MOST_SHOWN = (
    1_000_000  # arcs of a graph that a notebook shows unasked: the summary of a larger one takes seconds
)
_FONT = 9.0  # points
_CHARACTER, _LINE = 0.62 * _FONT / 72, 1.3 * _FONT / 72  # inches
_NODE = 0.42  # inches
_SUMMARY_HEIGHT, _SUMMARY_WIDTH = 2.4, 3.0
_WIDTHS = (5.0, 9.0)  # inches of a page, the least and the most
_MAX_HEIGHT = 10.0
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
    Of a graph with more than `max_arcs` arcs those with the largest occupancy are drawn; without one those on the most
    probable ways from the start. The whole is summarised beside it, and states with arcs left out have a dotted outline.

    Args:
        fsa: of any size.
        names: what to write for each pdf; its number by default.
        arc_names: what to write for each arc instead, such as phones.
        occupancy: [A], not negative, for example `ForwardBackward.arc_occupancy(n).sum(axis=0)`.
        max_arcs: at most 1000.
        title: above the picture.

    Raises:
        ShapeError: names or occupancies that do not fit the graph.
        ConfigError: `max_arcs` out of range.
        MissingExtraError: pygraphviz or matplotlib is not installed.
    """
    if not 1 <= max_arcs <= MOST_ARCS:
        raise ConfigError(f"max_arcs = {max_arcs}: expected 1 to {MOST_ARCS}")
    used = None if occupancy is None else checked_occupancy(occupancy, fsa.num_arcs)
    part = make_part(fsa, chosen(fsa, used, max_arcs), used, symbols(fsa, names, arc_names))
    layout = _layout(fsa, part)
    scale = _scale(layout)
    clipped = len(part.arcs) < fsa.num_arcs
    width = max(layout.size[0] * scale + 0.3, _WIDTHS[0])
    height = max(layout.size[1] * scale, 0.8) + 0.5
    with _page(width, height, fsa if clipped else None, used) as (figure, place):
        axes = place.subplots()
        _draw(axes, fsa, part, layout, scale)
        head = shortened(_head(title, fsa, part, used), 160)
        figure.suptitle(textwrap.fill(head, int(12 * figure.get_figwidth())), fontsize=10)
    return figure


@contextmanager
def _page(
    width: float, height: float, summarised: Fsa | None, used: npt.NDArray[np.float64] | None
) -> Iterator[tuple[Figure, Any]]:
    """A figure, and the part of it for a drawing of that size; the summary goes beside a narrow one, below others."""
    if summarised is None:
        figure = new_figure(height, width)
        with plain_text(figure):
            yield figure, figure
        return
    beside = width + _SUMMARY_WIDTH < _WIDTHS[1] and height > 2 * _SUMMARY_HEIGHT
    if beside:
        figure = new_figure(height, width + _SUMMARY_WIDTH)
        parts = figure.subfigures(1, 2, width_ratios=[width, _SUMMARY_WIDTH])
    else:
        figure = new_figure(height + _SUMMARY_HEIGHT, max(width, FIGURE_WIDTH))
        parts = figure.subfigures(2, 1, height_ratios=[height, _SUMMARY_HEIGHT])
    with plain_text(figure):
        draw_summary(parts[1], summarised, used, (3, 1) if beside else (1, 3))  # type: ignore[index]
        yield figure, parts[0]  # type: ignore[index]


def graph_svg(fsa: Fsa) -> str | None:
    """What `Fsa._repr_svg_` shows in a notebook; None where no picture can be made, so that the text stands."""
    if fsa.num_arcs > _MOST_SHOWN:
        return None
    try:
        return figure_svg(plot_graph(fsa, max_arcs=40))
    except FsachainError:
        return None


def _layout(fsa: Fsa, part: Part) -> Layout:
    def places(numbers: Ints) -> list[int]:
        return np.searchsorted(part.states, numbers).tolist()

    edges = list(zip(places(fsa.src[part.arcs]), places(fsa.dst[part.arcs]), strict=True))
    sizes = [(len(label) * _CHARACTER, _LINE) for label in part.labels]
    nodes = [_NODE] * len(part.states)
    across = lay_out(nodes, edges, sizes)
    if _scale(across) > _SMALL:
        return across
    return max(across, lay_out(nodes, edges, sizes, "TB"), key=_scale)


def _scale(layout: Layout) -> float:
    """What a drawing is multiplied with to fit on a page."""
    return min(1.0, (_WIDTHS[1] - 0.3) / layout.size[0], _MAX_HEIGHT / layout.size[1])


def _head(title: str, fsa: Fsa, part: Part, used: npt.NDArray[np.float64] | None) -> str:
    if len(part.arcs) == fsa.num_arcs:
        return title
    note = f"{len(part.arcs)} of {fsa.num_arcs:,} arcs"
    if used is not None and used.sum() > 0:
        note += f", with {100 * used[part.arcs].sum() / used.sum():.1f} % of the occupancy"
    return f"{title}: {note}" if title else note


def _draw(axes: Axes, fsa: Fsa, part: Part, layout: Layout, scale: float) -> None:
    axes.set_axis_off()
    axes.set_aspect("equal")
    margin = 0.1
    axes.set_xlim(-margin, layout.size[0] + margin)
    axes.set_ylim(-margin, layout.size[1] + margin)
    for place, edge in enumerate(layout.edges):
        _draw_arc(axes, part, place, edge, scale)
    patches = require("matplotlib.patches", extra="plot")
    for place, (state, centre) in enumerate(zip(part.states.tolist(), layout.nodes, strict=True)):
        final = fsa.final_log_prob[state]
        radii = (_NODE / 2, _NODE / 2 - 0.04) if final > -np.inf else (_NODE / 2,)
        for radius in radii:
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
        weight = f"\n{final:.3g}" if final > -np.inf and final != 0 else ""
        size = 6.0 if weight or state >= 1000 else _FONT
        axes.text(
            centre[0],
            centre[1],
            f"{state}{weight}",
            fontsize=size * scale,
            ha="center",
            va="center",
            zorder=4,
        )


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
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8}
    axes.text(
        edge.label[0],
        edge.label[1],
        part.labels[place],
        fontsize=_FONT * scale,
        ha="center",
        va="center",
        bbox=box,
        zorder=2,
    )
