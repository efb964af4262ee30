"""Where the paths of a transducer's lattice go: node occupancies as heat maps, the best path on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ShapeError, require
from fsachain.plot.canvas import AMOUNT_MAP, matrix, name_ticks, new_figure, plain_text, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fsachain.loss.lattice import TransducerLattice

START = "(start)"
_PANEL_HEIGHT = 2.6
_MAX_PANEL_TICKS = 24


@dataclass(frozen=True)
class OccupancyPanel:
    """The lattice of one utterance.

    Attributes:
        node: [T, U + 1]: how often the paths pass node (t, u), weighted with their probabilities; equation (22).
        labels: the U labels; numbers are written where there are none.
        path: [M, 2] rows (t, u): the nodes of a path in order; None or empty for none.
        title: written above.
    """

    node: npt.ArrayLike
    labels: Sequence[str] = ()
    path: npt.ArrayLike | None = None
    title: str = ""


def occupancy_panels(
    lattice: TransducerLattice,
    labels: Sequence[Sequence[str]] | None = None,
    titles: Sequence[str] | None = None,
) -> list[OccupancyPanel]:
    """The panels of all N sequences of a lattice, each of its own size, with best paths (23).

    Args:
        lattice: from `rnnt_lattice` or its kin.
        labels: N sequences of U_n strings.
        titles: N strings, such as utterance ids.

    Raises:
        ShapeError: another number of labels or titles than of sequences.
    """
    count = len(lattice.scores)
    for name, given in (("labels", labels), ("titles", titles)):
        if given is not None and len(given) != count:
            raise ShapeError(f"{name}: {len(given)} entries, expected one for each of {count} sequences")
    found = lattice.occupancy()
    panels = []
    for n, alignment in enumerate(lattice.best_alignment()):
        num_frames, num_labels = lattice.sizes[n, 2:].tolist()
        title = "" if titles is None else titles[n]
        panels.append(
            OccupancyPanel(
                found.node[n, :num_frames, : num_labels + 1].cpu().numpy(),
                () if labels is None else labels[n],
                alignment.arcs[:, 1:],
                title if bool(found.ok[n]) else f"{title} (no path)",
            )
        )
    return panels


def plot_occupancy(
    panels: OccupancyPanel | Sequence[OccupancyPanel] | Mapping[str, Sequence[OccupancyPanel]],
    *,
    frame_seconds: float | None = None,
) -> Figure:
    """Node occupancies as heat maps: frames to the right, labels upwards; the white line is the best path.

    All panels share one scale, on which the square root of an occupancy makes the colour: a lattice that is spread out stays
    visible beside a sharp one.

    Args:
        panels: one utterance; several, below each other; or for each of several checkpoints the same utterances, in columns.
        frame_seconds: length of a frame, for an axis in seconds.

    Raises:
        ShapeError: no panel, columns of different lengths, labels or paths that do not fit their lattice, or
            occupancies that are not finite.
    """
    columns = _columns(panels)
    arrays = [[_checked(panel) for panel in column] for column in columns.values()]
    largest = max(float(node.max()) for column in arrays for node in column) or 1.0
    num_rows = len(arrays[0])
    figure = new_figure(0.8 + _PANEL_HEIGHT * num_rows)
    with plain_text(figure):
        grid = figure.subplots(num_rows, len(columns), squeeze=False)
        norm = require("matplotlib.colors", extra="plot").PowerNorm(0.5, vmin=0.0, vmax=largest)
        first = next(iter(columns.values()))
        for place, (name, column) in enumerate(columns.items()):
            for row, panel in enumerate(column):
                axes = grid[row, place]
                image = _draw(axes, panel, arrays[place][row], norm, frame_seconds or 1.0)
                head = name if row == 0 else ""
                axes.set_title("\n".join(filter(None, (head, shortened(panel.title, 60)))), fontsize=9)
                if place == 0:
                    axes.set_ylabel("labels emitted so far", fontsize=9)
                elif list(panel.labels) == list(first[row].labels):
                    axes.tick_params(labelleft=False)
            grid[-1, place].set_xlabel("frame" if frame_seconds is None else "time (s)", fontsize=9)
        bar = figure.colorbar(image, ax=grid, label="node occupancy (line: best path)", aspect=40)
        bar.ax.tick_params(labelsize=8)
    return figure


def _columns(panels: Any) -> dict[str, Sequence[OccupancyPanel]]:
    if isinstance(panels, OccupancyPanel):
        panels = [panels]
    columns = dict(panels) if isinstance(panels, Mapping) else {"": panels}
    counts = {name: len(column) for name, column in columns.items()}
    if not counts or 0 in counts.values() or len(set(counts.values())) > 1:
        raise ShapeError(
            f"panels: {counts or 'none'}; expected the same number, at least one, for each checkpoint"
        )
    return columns


def _checked(panel: OccupancyPanel) -> npt.NDArray[np.float64]:
    node = matrix(panel.node, f"node of {panel.title!r}")
    num_frames, width = node.shape
    if panel.labels and len(panel.labels) != width - 1:
        raise ShapeError(
            f"labels of {panel.title!r}: {len(panel.labels)}, expected {width - 1} for a lattice of {list(node.shape)}"
        )
    path = _path(panel)
    if len(path) and (path.min() < 0 or (path.max(axis=0) >= (num_frames, width)).any()):
        raise ShapeError(f"path of {panel.title!r} leaves the lattice of shape {list(node.shape)}")
    return node


def _path(panel: OccupancyPanel) -> npt.NDArray[np.int64]:
    return np.asarray([] if panel.path is None else panel.path, dtype=np.int64).reshape(-1, 2)


def _draw(axes: Axes, panel: OccupancyPanel, node: Any, norm: Any, step: float) -> Any:
    """One heat map; column t of the image is centred on t * step, row u on u."""
    num_frames, width = node.shape
    image = axes.imshow(
        node.T,
        cmap=AMOUNT_MAP,
        norm=norm,
        origin="lower",
        aspect="auto",
        extent=(-0.5 * step, (num_frames - 0.5) * step, -0.5, width - 0.5),
    )
    path = _path(panel)
    if len(path):
        effects = require("matplotlib.patheffects", extra="plot")
        fine = num_frames > 60 or width > 40
        axes.plot(
            path[:, 0] * step,
            path[:, 1],
            color="white",
            linewidth=0.7 if fine else 1.2,
            marker="" if fine else ".",
            markersize=3.5,
            label="best path",
            path_effects=[effects.withStroke(linewidth=1.5 if fine else 2.4, foreground="black", alpha=0.6)],
        )
    axes.tick_params(labelsize=8)
    if panel.labels:
        name_ticks(axes, (START, *panel.labels), limit=_MAX_PANEL_TICKS)
    else:
        axes.locator_params(axis="y", integer=True)
    return image
