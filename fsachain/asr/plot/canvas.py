"""Figures without pyplot, the colours that all pictures share, and files.

A `Figure` is made directly, never through pyplot: no global state changes, and threads may draw at once. Amounts have the
map "cividis", whose lightness rises evenly: it reads in greyscale and with every kind of colour vision. Lines differ by
dash and marker as well as by colour (Okabe and Ito's, which are told apart with colour blindness).
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, ShapeError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AMOUNT_MAP = "cividis"
SIGNED_MAP = "PuOr"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")
MARKERS = ("o", "s", "^", "D", "v", "x")
SUFFIXES = ("png", "svg", "pdf", "webp")
FIGURE_WIDTH = 8.0  # inches: 800 pixels at the resolution of a screen
MAX_TICKS = 40
LONGEST_NAME = 24  # letters beside an axis
_LONGEST_TITLE = 1000  # characters: an utterance of a minute
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@contextmanager
def new_picture(height: float, width: float = FIGURE_WIDTH, title: str | None = None) -> Iterator[Figure]:
    """A new figure to be drawn inside; sizes in inches.

    The whole title comes above the picture at the end, on as many lines as it takes; the figure grows by them. All texts
    are then taken literally: a dollar sign in a word begins no formula.
    """
    figure: Figure = require("matplotlib.figure", extra="plot").Figure(
        figsize=(width, height), layout="constrained", facecolor="white"
    )
    # matplotlib teaches notebooks to show figures when pyplot starts, which these do without: they show themselves.
    figure._repr_png_ = partial(figure_png, figure)  # type: ignore[attr-defined]
    yield figure
    if title is not None:
        lines = textwrap.wrap(shortened(title, _LONGEST_TITLE), int(12 * width)) or [""]
        figure.set_figheight(height + 0.17 * (len(lines) - 1))
        figure.suptitle("\n".join(lines), fontsize=10)
    for text in figure.findobj(require("matplotlib.text", extra="plot").Text):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.label.get_text():
            axis.set_label_coords(0, 0)  # else all names at the ticks are measured once more to place it


def save_figure(figure: Figure, path: str | Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG, SVG, PDF or WebP, by the suffix of `path`; folders are made if need be.

    Args:
        figure: any of this package.
        path: ends in .png, .svg, .pdf or .webp.
        dpi: pixels per inch of a PNG or WebP, and of heat maps inside the others.

    Raises:
        ConfigError: another suffix.
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in SUFFIXES:
        expected = ", ".join(f".{name}" for name in SUFFIXES)
        raise ConfigError(f"{target}: a picture's name ends in one of {expected}, got {target.suffix!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(rendered(figure, kind, dpi))


def figure_png(figure: Figure, *, dpi: int = 100) -> bytes:
    """The figure as a PNG file."""
    return rendered(figure, "png", dpi)


def figure_svg(figure: Figure, *, dpi: int = 100) -> str:
    """The figure as one <svg> element, without an XML header; names in it cannot become markup.

    Args:
        dpi: pixels per inch of heat maps inside.
    """
    text = rendered(figure, "svg", dpi).decode("utf-8")
    return text[text.index("<svg") :]


# The same figure gives the same file; other methods of WebP take twice as long for 4 % fewer bytes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
    "webp": {"pil_kwargs": {"method": 2}},
}


def rendered(figure: Figure, kind: str, dpi: int) -> bytes:
    """The figure as a file of one of the `SUFFIXES`, drawn once: `Figure.savefig` draws twice where it places axes."""
    buffer, canvas, given = io.BytesIO(), figure.canvas, figure.dpi
    backends = require("matplotlib.backend_bases", extra="plot")
    try:
        figure.dpi = dpi
        own = backends.get_registered_canvas_class(kind)(figure)
        getattr(own, f"print_{kind}")(buffer, **_OPTIONS.get(kind, {}))
    finally:
        figure.set_canvas(canvas)
        figure.dpi = given
    # matplotlib writes names into comments, where XML allows no control character at all.
    return _CONTROLS.sub(b"", buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def matrix(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    """The values as a float64 matrix, checked: neither axis empty, all numbers finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(
            f"{name}: expected a matrix with at least one row and column, got {list(array.shape)}"
        )
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0].tolist()
        raise ShapeError(
            f"{name}[{row}, {column}] = {array[row, column]}: expected finite numbers ({len(bad)} are not)"
        )
    return array


def name_ticks(axes: Axes, names: Iterable[str], limit: int = MAX_TICKS) -> None:
    """Names at 0, 1, 2, ... of the vertical axis; of many every second or third one."""
    labels = [shortened(name, LONGEST_NAME) for name in names]
    shown = range(0, len(labels), max(1, -(-len(labels) // limit)))
    axes.set_yticks(shown, [labels[position] for position in shown], fontsize=8)


def nothing_to_show(axes: Axes, message: str) -> None:
    """An empty panel with a message; its horizontal axis, which others may share, stays."""
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes, color="#555555")
    axes.set_yticks([])


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
