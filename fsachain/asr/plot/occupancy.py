"""Occupancies as heat maps: nodes of a transducer's lattice, and pdfs or phones of numerator and denominator."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.asr.plot.canvas import AMOUNT_MAP, SIGNED_MAP, matrix, name_ticks, new_picture
from fsachain.backends.dispatch import forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, ShapeError, brief, counted, require
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.numerator import Numerator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fsachain.loss.rnnt import TransducerLattice

START = "(start)"
_PANEL_HEIGHT = 2.6
_MAX_PANEL_TICKS = 24
MARKED = 0.2  # differences beyond this share of the largest are hatched; smaller ones are pale anyway
FAINTEST = 0.01  # the least scale of differences, so that rounding errors do not look like gradients
INVISIBLE = 0.01  # rows that never exceed this are left out
_LITTLE = 0.05  # frames of the numerator; rows with less are not ordered by time
_HATCHES = {1: ("////", "-"), -1: ("....", "--")}  # sign: hatch, edge


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

    __repr__ = brief


def occupancy_panels(
    lattice: TransducerLattice,
    labels: Sequence[Sequence[str]] | None = None,
    titles: Sequence[str] | None = None,
) -> list[OccupancyPanel]:
    """The panels of all N sequences of a lattice, each of its own size, with best paths (23).

    Args:
        lattice: from `rnnt_lattice`, `hat_lattice` or another function that returns a `TransducerLattice`.
        labels: N sequences of U_n strings.
        titles: N strings, such as utterance ids.

    Raises:
        ShapeError: another number of labels or titles than of sequences.
    """
    count = len(lattice.scores)
    for name, given in (("labels", labels), ("titles", titles)):
        if given is not None and len(given) != count:
            raise ShapeError(
                f"{name}: {counted(len(given), 'entry')}, expected one for each of {counted(count, 'sequence')}"
            )
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
    with new_picture(0.8 + _PANEL_HEIGHT * num_rows) as figure:
        grid = figure.subplots(num_rows, len(columns), squeeze=False)
        norm = require("matplotlib.colors", extra="plot").PowerNorm(0.5, vmin=0.0, vmax=largest)
        first = next(iter(columns.values()))
        for place, (name, column) in enumerate(columns.items()):
            for row, panel in enumerate(column):
                axes = grid[row, place]
                image = _draw(axes, panel, arrays[place][row], norm, frame_seconds or 1.0)
                head = name if row == 0 else ""
                own = textwrap.fill(panel.title, int(13 * figure.get_figwidth() / len(columns)))
                axes.set_title("\n".join(filter(None, (head, own))), fontsize=9)
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
    num_frames, width = node.shape
    image = _heat_map(axes, node, step, cmap=AMOUNT_MAP, norm=norm)
    path = _path(panel)
    if len(path):
        effects = require("matplotlib.patheffects", extra="plot")
        thin, thick, marker = (0.7, 1.5, "") if num_frames > 60 or width > 40 else (1.2, 2.4, ".")
        shade = effects.withStroke(linewidth=thick, foreground="black", alpha=0.6)
        line = axes.plot(path[:, 0] * step, path[:, 1], color="white", linewidth=thin, marker=marker)[0]
        line.set(markersize=3.5, label="best path", path_effects=[shade])
    axes.tick_params(labelsize=8)
    if panel.labels:
        name_ticks(axes, (START, *panel.labels), limit=_MAX_PANEL_TICKS)
    else:
        axes.locator_params(axis="y", integer=True)
    return image


def _heat_map(axes: Axes, values: Any, step: float, **scale: Any) -> Any:
    """Values [T, K]: column t of the image is centred on t * step, row k on k."""
    num_frames, num_rows = values.shape
    extent = (-0.5 * step, (num_frames - 0.5) * step, -0.5, num_rows - 0.5)
    return axes.imshow(values.T, origin="lower", aspect="auto", extent=extent, **scale)


# Occupancies of numerator and denominator, and their difference, the gradient of LF-MMI.


@dataclass(frozen=True)
class TrellisPair:
    """Occupancies of one utterance.

    Attributes:
        numerator, denominator: [T, K]: the share of the paths that spends frame t on column k (a pdf, phone or state).
        names: K strings; numbers by default.
        log_probs: log Z of numerator and denominator; None where they are not known.
    """

    numerator: npt.ArrayLike
    denominator: npt.ArrayLike
    names: Sequence[str] = ()
    log_probs: tuple[float, float] | None = None

    __repr__ = brief

    @property
    def gradient(self) -> npt.NDArray[np.float64]:
        """[T, K]: numerator - denominator, d objf / d nnet_output where the columns are pdfs."""
        return np.asarray(self.numerator, np.float64) - np.asarray(self.denominator, np.float64)


def sum_columns(occupancy: npt.ArrayLike, group: npt.ArrayLike, num_groups: int) -> npt.NDArray[np.float64]:
    """Occupancies [T, num_groups] of groups of columns: arcs added up to phones, states to words.

    Args:
        occupancy: [T, K], for example `ForwardBackward.arc_occupancy(n)`.
        group: [K]: the group of each column, for example `Numerator.arc_phone`; negative: of none.
        num_groups: how many there are.

    Raises:
        ShapeError: another number of groups than columns, or a group beyond `num_groups`.
    """
    values = np.asarray(occupancy, dtype=np.float64)
    groups = np.asarray(group, dtype=np.int64)
    if values.ndim != 2 or groups.shape != values.shape[1:]:
        raise ShapeError(
            f"group: shape {list(groups.shape)}, occupancy {list(values.shape)}; expected [K] and [T, K]"
        )
    if groups.size and groups.max() >= num_groups:
        raise ShapeError(f"group: holds {groups.max()}, expected groups below {num_groups}")
    sums = np.zeros((len(values), num_groups))
    kept = groups >= 0
    np.add.at(sums.T, groups[kept], values.T[kept])
    return sums


def pdf_trellis(
    nnet_output: npt.ArrayLike,
    numerator: Numerator | Fsa,
    denominator: DenominatorGraph,
    *,
    leaky_hmm_coefficient: float = 1e-5,
    names: Sequence[str] = (),
) -> TrellisPair:
    """Occupancies of pdfs, equation (7), for one utterance.

    Args:
        nnet_output: [T, P].
        numerator: graph of its transcript.
        denominator: of P pdfs.
        leaky_hmm_coefficient: of the denominator, as in the loss.
        names: P strings.

    Raises:
        ShapeError: the network output does not fit the denominator.
    """
    return trellises([nnet_output], [numerator], denominator, leaky_hmm_coefficient, names)[0]


def trellises(
    nnet_outputs: Sequence[npt.ArrayLike],
    numerators: Sequence[Numerator | Fsa],
    denominator: DenominatorGraph,
    leaky_hmm_coefficient: float,
    names: Sequence[str] = (),
) -> list[TrellisPair]:
    """`pdf_trellis` of several utterances in one batch, which takes the kernels of a training."""
    outputs = [np.asarray(nnet_output) for nnet_output in nnet_outputs]
    for output in outputs:
        if output.ndim != 2 or output.shape[1] != denominator.num_pdfs:
            raise ShapeError(
                f"nnet_output: {list(output.shape)}, expected [T, {denominator.num_pdfs}] as the denominator has"
            )
    if not outputs:
        return []
    lengths = [len(output) for output in outputs]
    padded = [np.pad(output, ((0, max(lengths) - len(output)), (0, 0))) for output in outputs]
    scores = np.stack(padded)
    num = forward_backward(numerators, scores, lengths)
    den = forward_backward(
        denominator.batch(len(outputs)), scores, lengths, leaky_hmm_coefficient=leaky_hmm_coefficient
    )
    return [
        TrellisPair(
            num.occupancy[n, :length],
            den.occupancy[n, :length],
            tuple(names),
            (float(num.log_prob[n]), float(den.log_prob[n])),
        )
        for n, length in enumerate(lengths)
    ]


def phone_trellis(
    nnet_output: npt.ArrayLike,
    numerator: Numerator | Fsa,
    denominator: DenominatorGraph,
    tree: ContextTree,
    *,
    leaky_hmm_coefficient: float = 1e-5,
) -> TrellisPair:
    """Occupancies of phones: those of their pdfs added up. Phones that share a pdf are one row, named after all of them.

    Args:
        nnet_output: [T, P].
        numerator: graph of its transcript.
        denominator: of P pdfs.
        leaky_hmm_coefficient: of the denominator, as in the loss.
        tree: says which phones a pdf stands for.

    Raises:
        ShapeError: the network output does not fit the denominator.
    """
    pair = pdf_trellis(nnet_output, numerator, denominator, leaky_hmm_coefficient=leaky_hmm_coefficient)
    return by_phone(pair, tree)


def by_phone(pair: TrellisPair, tree: ContextTree) -> TrellisPair:
    """A pair by pdf, added up by phone."""
    phones = _phones_of_pdfs(tree)
    names = tuple(dict.fromkeys(phones))
    group = [names.index(name) for name in phones]
    num, den = (sum_columns(side, group, len(names)) for side in (pair.numerator, pair.denominator))
    return TrellisPair(num, den, names, pair.log_probs)


def pdf_names(tree: ContextTree) -> tuple[str, ...]:
    """A name for each pdf: its phones, and its number where several pdfs have the same, as "AH (7)"."""
    phones = _phones_of_pdfs(tree)
    count = Counter(phones)
    return tuple(name if count[name] == 1 else f"{name} ({pdf})" for pdf, name in enumerate(phones))


def plot_trellis(
    pair: TrellisPair, *, frame_seconds: float | None = None, title: str = "", max_rows: int = 40
) -> Figure:
    """Numerator, denominator and their difference over time, below each other.

    The difference is the gradient. Where it is positive (the network should raise its output) and beyond a fifth of the
    largest it is hatched by strokes in a solid frame, where it is negative by dots in a dashed one: the sign shows without
    colour.

    Args:
        pair: from `pdf_trellis`, `phone_trellis`, or any two occupancies, such as those of states.
        frame_seconds: length of an output frame, for an axis in seconds.
        title: such as the utterance id.
        max_rows: so many columns of the pair at most are drawn, those with the largest occupancy; ordered by when the
            numerator has them. Columns that neither side ever gives more than 0.01 are left out, and counted in the title.

    Raises:
        ShapeError: matrices of different shapes, or another number of names than columns.
        ConfigError: `max_rows` below 1.
    """
    numerator, denominator = matrix(pair.numerator, "numerator"), matrix(pair.denominator, "denominator")
    if numerator.shape != denominator.shape:
        raise ShapeError(
            f"numerator {list(numerator.shape)}, denominator {list(denominator.shape)}: expected one shape"
        )
    if pair.names and len(pair.names) != numerator.shape[1]:
        raise ShapeError(f"names: {len(pair.names)}, expected {numerator.shape[1]}, one for each column")
    parts = numerator, denominator, numerator - denominator
    if max_rows < 1:
        raise ConfigError(f"max_rows = {max_rows}: expected at least 1")
    names = pair.names or [str(k) for k in range(numerator.shape[1])]
    rows = _shown_rows(numerator, denominator, max_rows)
    num, den, objf = ("", "", "")
    if pair.log_probs is not None:
        num, den = (f", log Z = {value:.2f}" for value in pair.log_probs)
        objf = f", objf = {pair.log_probs[0] - pair.log_probs[1]:.2f}"
    heads = (
        f"numerator occupancy{num}",
        f"denominator occupancy{den}",
        f"numerator - denominator: the gradient{objf} (strokes: raise, dots: lower)",
    )
    if hidden := numerator.shape[1] - len(rows):
        both = numerator + denominator
        share = 100.0 * (1.0 - both[:, rows].sum() / max(both.sum(), 1e-300))
        if share >= 0.05:
            note = f"{counted(hidden, 'row')} with {share:.1f} % of the occupancy are not shown"
            title = f"{title} ({note})" if title else note
    with new_picture(1.6 + 3 * max(0.9, 0.125 * len(rows)), title=title) as figure:
        grid = figure.subplots(3, 1, sharex=True, sharey=True)
        step = frame_seconds or 1.0
        bound = max(float(np.abs(parts[2]).max()), FAINTEST)
        # The darkest shades of the third stay unused: hatches could not be seen on them.
        scales = *[(AMOUNT_MAP, 0.0, 1.0)] * 2, (SIGNED_MAP, -1.4 * bound, 1.4 * bound)
        for axes, part, (colours, low, high), head in zip(grid, parts, scales, heads, strict=True):
            limits: dict[str, Any] = {"cmap": colours, "vmin": low, "vmax": high}
            image = _heat_map(axes, part[:, rows], step, interpolation="nearest", **limits)
            axes.set_title(head, fontsize=9)
            name_ticks(axes, [names[k] for k in rows])
            axes.tick_params(labelsize=8)
            figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=8)
        mark_signs(grid[2], parts[2][:, rows], MARKED * bound, step)
        for axes in grid[1:]:
            axes.yaxis.set_in_layout(False)  # it has the names of the first
        grid[2].set_xlabel("output frame" if frame_seconds is None else "time (s)", fontsize=9)
    return figure


def mark_signs(axes: Axes, values: npt.NDArray[np.float64], limit: float, step: float = 1.0) -> None:
    """Hatch runs of cells beyond +-`limit`: strokes for positive ones, dots for negative ones.

    Cell (t, k) of the values [T, K] is centred on (t * step, k).
    """
    patches = require("matplotlib.patches", extra="plot")
    for sign, (hatch, edge) in _HATCHES.items():
        beyond = (sign * values > limit).T.astype(np.int8)
        steps = np.diff(np.pad(beyond, ((0, 0), (1, 1))), axis=1)
        rows, firsts = np.nonzero(steps == 1)
        lasts = np.nonzero(steps == -1)[1]
        style: dict[str, Any] = {"hatch": hatch, "linestyle": edge, "gid": "raise" if sign > 0 else "lower"}
        style |= {"fill": False, "linewidth": 0.6, "edgecolor": "#222222"}
        for row, first, last in zip(rows.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            corner, width = ((first - 0.5) * step, row - 0.5), (last - first) * step
            axes.add_patch(patches.Rectangle(corner, width, 1.0, **style))


def _shown_rows(numerator: Any, denominator: Any, max_rows: int) -> list[int]:
    """Columns with the largest occupancy: first those of the numerator in order of their mean times, then the others."""
    total = numerator.sum(axis=0) + denominator.sum(axis=0)
    largest = np.maximum(numerator.max(axis=0), denominator.max(axis=0))
    kept = np.argsort(-total, kind="stable")[:max_rows]
    kept = np.sort(kept[largest[kept] > INVISIBLE] if largest.max() > INVISIBLE else kept[:1])
    mass = numerator[:, kept].sum(axis=0)
    times = np.arange(len(numerator)) @ numerator[:, kept]
    centre = np.where(mass > _LITTLE, times / np.maximum(mass, _LITTLE), np.inf)
    return [int(k) for k in kept[np.lexsort((-total[kept], centre))]]


def _phones_of_pdfs(tree: ContextTree) -> list[str]:
    every = [tree.describe(pdf).phones for pdf in range(tree.num_pdfs)]
    return ["/".join(tree.phones[phone - 1] for phone in phones) or "blank" for phones in every]
