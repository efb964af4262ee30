"""Where Graphviz puts the states and arcs of a graph.

The pygraphviz wheel ships the library of Graphviz, so that no program `dot` needs to be installed. Only sizes go in and only
positions come out: names are drawn by us, and can neither be markup nor depend on the fonts that Graphviz finds.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.errors import GraphError, require

POINTS = 72.0  # to the inch
ROW_WIDTH = 8.0  # inches that are filled before parts of a graph that do not hang together begin another row
_GAP = 0.25
Points = npt.NDArray[np.float64]
_LOCK = threading.Lock()  # Graphviz keeps its state in global variables


@dataclass(frozen=True)
class DrawnEdge:
    """A curve in inches.

    Attributes:
        curve: [1 + 3 k, 2]: control points of k cubic Bezier pieces.
        tip: [2]: where the arrow ends.
        label: [2]: centre of its label.
    """

    curve: Points
    tip: Points
    label: Points


@dataclass(frozen=True)
class Layout:
    """A drawing, in inches.

    Attributes:
        size: width and height.
        nodes: [S, 2] centres.
        edges: in the order given.
    """

    size: tuple[float, float]
    nodes: Points
    edges: tuple[DrawnEdge, ...]


def lay_out(
    node_sizes: Sequence[float],
    edges: Sequence[tuple[int, int]],
    label_sizes: Sequence[tuple[float, float]],
    direction: Literal["LR", "TB"] = "LR",
) -> Layout:
    """Positions by Graphviz's `dot`.

    Args:
        node_sizes: diameter of each node, inches.
        edges: (from, to), numbers of nodes; parallel edges and loops are legal.
        label_sizes: width and height of each edge's label, inches.
        direction: from left to right, or from top to bottom.

    Raises:
        MissingExtraError: pygraphviz is not installed.
        GraphError: Graphviz failed.
    """
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
    found = _run_dot("\n".join([*lines, "}"]))
    nodes = np.zeros((len(node_sizes), 2))
    for node in found.get("objects", ()):
        nodes[int(node["name"])] = _point(node["pos"])
    by_place = {int(edge["place"]): edge for edge in found.get("edges", ())}
    drawn = tuple(_edge(by_place[place]) for place in range(len(edges)))
    return _packed(nodes, drawn, np.asarray(node_sizes), edges, np.asarray(label_sizes).reshape(-1, 2))


def _packed(
    nodes: Points,
    edges: tuple[DrawnEdge, ...],
    node_sizes: npt.NDArray[np.float64],
    ends: Sequence[tuple[int, int]],
    label_sizes: Points,
) -> Layout:
    """The drawing with the parts that hang together put into rows, the tallest first; Graphviz sets all in one row."""
    pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    links = sparse.csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(nodes),) * 2)
    count, part = csgraph.connected_components(links, directed=False)
    corners: list[list[Points]] = [[] for _ in range(count)]
    for node, centre in enumerate(nodes):
        corners[part[node]] += [centre - node_sizes[node] / 2, centre + node_sizes[node] / 2]
    for (src, _), edge, size in zip(ends, edges, label_sizes, strict=True):
        corners[part[src]] += [*edge.curve, edge.label - size / 2, edge.label + size / 2]
    low = np.array([np.min(points, axis=0) for points in corners])
    sizes = np.array([np.max(points, axis=0) for points in corners]) - low
    places, whole = _shelves(sizes)
    shift = places - low
    moved = tuple(
        DrawnEdge(edge.curve + by, edge.tip + by, edge.label + by)
        for edge, by in zip(edges, (shift[part[src]] for src, _ in ends), strict=True)
    )
    return Layout(whole, nodes + shift[part], moved)


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


def _run_dot(text: str) -> dict[str, Any]:
    pygraphviz = require("pygraphviz", extra="plot")
    try:
        with _LOCK, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # what Graphviz says about fonts, which are not used
            graph = pygraphviz.AGraph(string=text)
            return dict(json.loads(graph.draw(format="json", prog="dot")))
    except (OSError, ValueError, RuntimeError) as error:
        raise GraphError(f"Graphviz could not arrange the graph: {error}") from error


def _point(text: str) -> Points:
    return np.array([float(part) for part in text.split(",")[:2]]) / POINTS


def _edge(edge: dict[str, str]) -> DrawnEdge:
    """`pos` is "e,x,y x,y x,y ...": the tip, then the control points."""
    tip, *points = edge["pos"].split()
    curve = np.array([_point(point) for point in points])
    return DrawnEdge(curve, _point(tip.removeprefix("e,")), _point(edge["lp"]))
