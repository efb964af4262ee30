"""What numerator and denominator expect of each frame, and their difference: the gradient of LF-MMI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, ShapeError, require
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.numerator import Numerator
from fsachain.plot.canvas import AMOUNT_MAP, SIGNED_MAP, matrix, name_ticks, new_figure, plain_text, shortened
from fsachain.table import compile_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = 0.2  # differences beyond this share of the largest are hatched; smaller ones are pale anyway
FAINTEST = (
    0.01  # the scale of differences ends here at least, so that rounding errors do not look like gradients
)
INVISIBLE = 0.01  # rows that never exceed this are left out
_LITTLE = 0.05  # frames of the numerator; rows with less are not ordered by time
_HATCHES = {1: ("////", "-"), -1: ("....", "--")}  # sign: hatch, edge


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
    scores = np.asarray(nnet_output)
    if scores.ndim != 2 or scores.shape[1] != denominator.num_pdfs:
        raise ShapeError(
            f"nnet_output: {list(scores.shape)}, expected [T, {denominator.num_pdfs}] as the denominator has"
        )
    fsa = numerator.fsa if isinstance(numerator, Numerator) else numerator
    table = compile_table(fsa, scores.shape[1], name="numerator")
    num = forward_backward(TableBatch.pack([table]), scores[None])
    den = forward_backward(denominator.batch(1), scores[None], leaky_hmm_coefficient=leaky_hmm_coefficient)
    sums = (float(num.log_prob[0]), float(den.log_prob[0]))
    return TrellisPair(num.occupancy[0], den.occupancy[0], tuple(names), sums)


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
        numerator, denominator, leaky_hmm_coefficient: as for `pdf_trellis`.
        tree: says which phones a pdf stands for.

    Raises:
        ShapeError: as `pdf_trellis`.
    """
    pair = pdf_trellis(nnet_output, numerator, denominator, leaky_hmm_coefficient=leaky_hmm_coefficient)
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
    parts = _checked(pair)
    if max_rows < 1:
        raise ConfigError(f"max_rows = {max_rows}: expected at least 1")
    names = pair.names or [str(k) for k in range(parts[0].shape[1])]
    rows = _shown_rows(parts[0], parts[1], max_rows)
    figure = new_figure(1.6 + 3 * max(0.9, 0.125 * len(rows)))
    with plain_text(figure):
        grid = figure.subplots(3, 1, sharex=True, sharey=True)
        step = frame_seconds or 1.0
        bound = max(float(np.abs(parts[2]).max()), FAINTEST)
        scales: tuple[dict[str, Any], ...] = (
            {"cmap": AMOUNT_MAP, "vmin": 0.0, "vmax": 1.0},
            {"cmap": AMOUNT_MAP, "vmin": 0.0, "vmax": 1.0},
            # The darkest shades stay unused: hatches could not be seen on them.
            {"cmap": SIGNED_MAP, "vmin": -1.4 * bound, "vmax": 1.4 * bound},
        )
        for axes, part, scale, head in zip(grid, parts, scales, _heads(pair.log_probs), strict=True):
            image = _heat_map(axes, part[:, rows], step, scale)
            axes.set_title(head, fontsize=9)
            name_ticks(axes, [names[k] for k in rows])
            axes.tick_params(labelsize=8)
            figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=8)
        mark_signs(grid[2], parts[2][:, rows], MARKED * bound, step)
        grid[2].set_xlabel("output frame" if frame_seconds is None else "time (s)", fontsize=9)
        figure.suptitle(shortened(_title(title, parts, rows)), fontsize=10)
    return figure


def mark_signs(axes: Axes, values: npt.NDArray[np.float64], limit: float, step: float = 1.0) -> None:
    """Hatch the runs of cells beyond +-`limit`, strokes for positive ones, dots for negative ones.

    Args:
        axes: with cell (t, k) centred on (t * step, k).
        values: [T, K].
        limit: positive.
        step: width of a cell.
    """
    patches = require("matplotlib.patches", extra="plot")
    for sign, (hatch, edge) in _HATCHES.items():
        for first, last, row in _runs(sign * values > limit):
            axes.add_patch(
                patches.Rectangle(
                    ((first - 0.5) * step, row - 0.5),
                    (last - first) * step,
                    1.0,
                    fill=False,
                    hatch=hatch,
                    linestyle=edge,
                    linewidth=0.6,
                    edgecolor="#222222",
                    gid="raise" if sign > 0 else "lower",
                )
            )


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """(first frame, frame after the last, column) of each run of True along time in mask [T, K]."""
    edges = np.diff(np.pad(mask.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, firsts = np.nonzero(edges == 1)
    lasts = np.nonzero(edges == -1)[1]
    return list(zip(firsts.tolist(), lasts.tolist(), rows.tolist(), strict=True))


def _checked(pair: TrellisPair) -> tuple[npt.NDArray[np.float64], ...]:
    numerator, denominator = matrix(pair.numerator, "numerator"), matrix(pair.denominator, "denominator")
    if numerator.shape != denominator.shape:
        raise ShapeError(
            f"numerator {list(numerator.shape)}, denominator {list(denominator.shape)}: expected one shape"
        )
    if pair.names and len(pair.names) != numerator.shape[1]:
        raise ShapeError(f"names: {len(pair.names)}, expected {numerator.shape[1]}, one for each column")
    return numerator, denominator, numerator - denominator


def _shown_rows(numerator: Any, denominator: Any, max_rows: int) -> list[int]:
    """The columns with the largest occupancy; first those of the numerator in the order of their times."""
    total = numerator.sum(axis=0) + denominator.sum(axis=0)
    largest = np.maximum(numerator.max(axis=0), denominator.max(axis=0))
    kept = np.argsort(-total, kind="stable")[:max_rows]
    kept = np.sort(kept[largest[kept] > INVISIBLE] if largest.max() > INVISIBLE else kept[:1])
    mass = numerator[:, kept].sum(axis=0)
    times = np.arange(len(numerator)) @ numerator[:, kept]
    centre = np.where(mass > _LITTLE, times / np.maximum(mass, _LITTLE), np.inf)
    return [int(k) for k in kept[np.lexsort((-total[kept], centre))]]


def _heat_map(axes: Axes, part: Any, step: float, scale: dict[str, Any]) -> Any:
    num_frames, num_rows = part.shape
    extent = (-0.5 * step, (num_frames - 0.5) * step, -0.5, num_rows - 0.5)
    return axes.imshow(part.T, origin="lower", aspect="auto", extent=extent, interpolation="nearest", **scale)


def _heads(log_probs: tuple[float, float] | None) -> tuple[str, str, str]:
    num, den, objf = ("", "", "")
    if log_probs is not None:
        num, den = (f", log Z = {value:.2f}" for value in log_probs)
        objf = f", objf = {log_probs[0] - log_probs[1]:.2f}"
    return (
        f"numerator occupancy{num}",
        f"denominator occupancy{den}",
        f"numerator - denominator: the gradient{objf} (strokes: raise, dots: lower)",
    )


def _title(title: str, parts: Sequence[Any], rows: Sequence[int]) -> str:
    hidden = parts[0].shape[1] - len(rows)
    if not hidden:
        return title
    share = 1.0 - (parts[0] + parts[1])[:, rows].sum() / max((parts[0] + parts[1]).sum(), 1e-300)
    note = f"{hidden} rows with {100 * share:.1f} % of the occupancy are not shown"
    return f"{title} ({note})" if title else note


def _phones_of_pdfs(tree: ContextTree) -> list[str]:
    """For each pdf the phones that have it, joined by strokes."""
    found: list[set[int]] = [set() for _ in range(tree.num_pdfs)]
    if tree.decisions is None:
        for pdf in range(tree.num_pdfs):
            found[pdf] |= set(tree.describe(pdf).phones)
    else:  # one pass over the leaves; `describe` would make one for each pdf
        for leaf, path in tree.contexts():
            found[leaf] |= path[tree.central_position]
    return ["/".join(tree.phones[phone - 1] for phone in sorted(ids)) or "blank" for ids in found]
