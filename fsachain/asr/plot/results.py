"""What came of an experiment: the curves of train.jsonl, word error rates by speaker and length, words in a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.asr.decode.wer import ErrorCounts
from fsachain.asr.plot.canvas import (
    COLOURS,
    DASHES,
    LONGEST_NAME,
    MARKERS,
    matrix,
    new_picture,
    nothing_to_show,
    shortened,
)
from fsachain.asr.train.log import number, read_log
from fsachain.errors import ConfigError, DataError, ShapeError, brief, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fsachain.asr.decode.ctm import CtmEntry
    from fsachain.asr.decode.wer import WerReport

Event = Mapping[str, Any]
Curve = dict[int, float]  # by epoch
Wer = Mapping[int, float]

# The panels of a training: unit, and where the events of epochs have each curve.
_PANELS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "objf": ("objf per frame", {"train": ("train", "objf"), "dev": ("dev", "objf")}),
    "numerator and denominator": (
        "log Z per frame",
        {
            "numerator, train": ("train", "num"),
            "denominator, train": ("train", "den"),
            "numerator, dev": ("dev", "num"),
            "denominator, dev": ("dev", "den"),
        },
    ),
    "word error rate": ("WER (%)", {"train": ("train", "wer"), "dev": ("dev", "wer")}),
    "learning rate": ("learning rate", {"learning rate": ("learning_rate",)}),
    "gradient norm": (
        "norm before clipping",
        {"mean": ("train", "grad_norm"), "largest": ("train", "max_grad_norm")},
    ),
    "left out": (
        "count per epoch",
        {"utterances excluded": ("train", "excluded"), "batches skipped": ("train", "skipped_batches")},
    ),
}
_FROM_ZERO = ("word error rate", "gradient norm", "left out")  # panels of amounts
_MOST_MARKERS = 25
MAX_SPEAKERS = 30
MAX_BINS = 8
_KINDS = ("substitutions", "deletions", "insertions")
_SHADES = ("#666666", "#ffffff", COLOURS[5])
_HATCHES = ("", "////", "....")


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """The events of a train.jsonl, which may still be written to: a last line cut short is left out.

    Raises:
        DataError: the file cannot be read, or a line before the last is not JSON.
    """
    return [event for event in read_log(path) if isinstance(event, dict)]


def plot_training(
    events: Iterable[Event], *, wer: Wer | Mapping[str, Wer] | None = None, title: str = ""
) -> Figure:
    """objf, numerator and denominator, WER, learning rate, gradient norm, and what was left out, by epoch.

    What the log lacks is left out, with its panel. Where a training went on after a break, the later figures of an epoch
    hold.

    Args:
        events: lines of train.jsonl, as `read_events` gives them; unknown ones are passed over.
        wer: per cent by epoch, or such a table for each of several test sets; `wer` of an epoch's `dev` figures by default.
        title: such as the folder.
    """
    epochs = {
        event["epoch"]: event
        for event in events
        if event.get("event") == "epoch" and isinstance(event.get("epoch"), int)
    }
    panels = []
    for head, (unit, places) in _PANELS.items():
        curves: dict[str, Curve] = {name: {} for name in places}
        for name, place in places.items():
            for epoch, event in sorted(epochs.items()):
                if (value := number(event, *place)) is not None:
                    curves[name][epoch] = value
        if head == "word error rate" and wer is not None:
            tables: Any = wer if all(isinstance(table, Mapping) for table in wer.values()) else {"WER": wer}
            curves = {name: dict(sorted(table.items())) for name, table in tables.items()}
        if head == "left out":
            curves = {name: values for name, values in curves.items() if any(values.values())}
        if any(curves.values()):
            panels.append((head, unit, curves))
    rows = max(1, -(-len(panels) // 2))
    with new_picture(2.4 * rows, title=title) as figure:
        grid = figure.subplots(rows, 2 if len(panels) > 1 else 1, squeeze=False, sharex=True)
        if not panels:
            nothing_to_show(grid[0, 0], "no epoch is finished yet")
            grid[0, 0].set_xticks([])
        for axes, (head, unit, curves) in zip(grid.flat, panels, strict=False):
            axes.set_title(head, fontsize=9)
            axes.set_xlabel("epoch", fontsize=9)
            axes.tick_params(labelbottom=True)
            _draw_curves(axes, unit, curves)
            if head in _FROM_ZERO:
                largest = max(max(curve.values(), default=0.0) for curve in curves.values())
                axes.set_ylim(0.0, 1.08 * largest or 1.0)
        for axes in grid.flat[max(1, len(panels)) :]:
            axes.remove()
        if epochs:
            margin = 0.03 * max(epochs) + 0.2
            grid[0, 0].set_xlim(min(epochs) - margin, max(epochs) + margin)
            grid[0, 0].locator_params(axis="x", integer=True)
    return figure


def _draw_curves(axes: Axes, unit: str, curves: Mapping[str, Curve]) -> None:
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    shown = {name: values for name, values in curves.items() if values}
    for place, (name, values) in enumerate(shown.items()):
        axes.plot(
            list(values),
            list(values.values()),
            label=name,
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=3.5,
            markevery=max(1, len(values) // _MOST_MARKERS),
            linewidth=1.4,
        )
    axes.grid(color="#dddddd", linewidth=0.5)
    if len(shown) > 1:
        axes.legend(fontsize=7, handlelength=3.5)


_Bar = tuple[str, ErrorCounts]  # errors of a group of utterances, and its name


def _shares(counts: ErrorCounts) -> list[float]:
    """In per cent of the words, by kind."""
    return [100.0 * getattr(counts, kind) / counts.num_words if counts.num_words else 0.0 for kind in _KINDS]


def plot_wer(report: WerReport | Mapping[str, Any], *, title: str = "") -> Figure:
    """Word error rates by speaker, the worst first, and by the number of words in the reference.

    Args:
        report: from `fsachain.asr.decode.wer.score`; or the object of a wer.json, which has no utterances. A panel without
            speakers or lengths is left out.
        title: the rate of all utterances is written after it.

    Raises:
        DataError: the object is not that of a wer.json.
    """
    if isinstance(report, Mapping):
        given = report.get("speakers")
        if not isinstance(given, Mapping):
            raise DataError(f"report: expected the object of a wer.json, its speakers are {given!r:.80}")
        speakers = [(name, ErrorCounts.from_dict(one, f"report, {name}")) for name, one in given.items()]
        total, lengths = ErrorCounts.from_dict(report.get("total"), "report, total"), []
    else:
        speakers, total, lengths = list(report.by_speaker.items()), report.total, _by_length(report)
    worst = sorted(speakers, key=lambda bar: (-sum(_shares(bar[1])), bar[0]))[:MAX_SPEAKERS]
    head = "by speaker"
    if len(worst) < len(speakers):
        head += f": the worst {len(worst)} of {len(speakers)}"
    panels = [(head, worst, 1.1 + 0.24 * max(4, len(worst))), ("by length", lengths, 2.8)]
    panels = [panel for panel in panels if panel[1]] or panels[:1]
    heights = [height for _, _, height in panels]
    rate = f"{total.wer:.2f} %" if total.num_words else "not defined"
    overall = f"WER {rate} (errors: {total.errors}, words: {total.num_words})"
    with new_picture(sum(heights), title=f"{title}: {overall}" if title else overall) as figure:
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (head, bars, _) in zip(grid, panels, strict=True):
            _draw_bars(axes, head, bars, sideways=bars is worst)
        handles, labels = grid[-1].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, fontsize=8, ncols=len(labels), loc="outside lower center")
    return figure


def _by_length(report: WerReport) -> list[_Bar]:
    """Groups of about as many utterances each, by words of the reference; empty references, which have no rate, left out."""
    lengths = np.array([utterance.counts.num_words for utterance in report.utterances], dtype=np.int64)
    present = np.unique(lengths[lengths > 0])
    if not len(present):
        return []
    if len(present) > MAX_BINS:
        edges = np.unique(np.quantile(lengths[lengths > 0], np.arange(MAX_BINS) / MAX_BINS, method="higher"))
    else:
        edges = present.astype(np.float64)
    bars = []
    for first, after in zip(edges, [*edges[1:], np.inf], strict=True):
        inside = (lengths >= first) & (lengths < after)
        last = int(lengths[inside].max())
        name = str(last) if first == last else f"{first:g}-{last}"
        some = (report.utterances[n].counts for n in np.flatnonzero(inside))
        bars.append((name, sum(some, ErrorCounts())))
    return bars


def _draw_bars(axes: Axes, head: str, bars: Sequence[_Bar], *, sideways: bool) -> None:
    """Bars with the kinds of error stacked; `sideways` ones lie, one below the other."""
    axes.set_title(head, fontsize=9)
    if not bars:
        nothing_to_show(axes, "no reference has words")
        axes.set_xticks([])
        return
    places, ends = np.arange(len(bars)), np.zeros(len(bars))
    shares = np.array([_shares(counts) for _, counts in bars])
    for k, kind in enumerate(_KINDS):
        style: dict[str, Any] = {"color": _SHADES[k], "hatch": _HATCHES[k], "label": kind}
        style |= {"edgecolor": "#222222", "linewidth": 0.6, "left" if sideways else "bottom": ends}
        (axes.barh if sideways else axes.bar)(places, shares[:, k], **style)
        ends += shares[:, k]
    near: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7}
    for place, ((_, counts), end) in enumerate(zip(bars, ends, strict=True)):
        if sideways:
            text = f"{end:.1f} % of {counted(counts.num_words, 'word')}"
            axes.annotate(text, (end, place), (3, 0), va="center", **near)
        else:
            text = f"{end:.1f} %\n{counts.num_utterances} utt."
            axes.annotate(text, (place, end), (0, 3), ha="center", **near)
    if sideways:
        axes.set_yticks(places, [shortened(name, LONGEST_NAME) for name, _ in bars], fontsize=8)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0.0, max(float(ends.max()) * 1.25, 1.0))
        axes.set_xlabel("errors per hundred words (%)", fontsize=9)
    else:
        axes.set_xticks(places, [name for name, _ in bars], fontsize=8)
        axes.set_ylim(0.0, max(float(ends.max()) * 1.35, 1.0))
        axes.set_xlabel("words in the reference", fontsize=9)
        axes.set_ylabel("errors per\nhundred words (%)", fontsize=9)
    axes.tick_params(labelsize=8)


# What was said when: segments below a spectrogram.

DYNAMIC_RANGE = 70.0  # dB below the loudest cell that still have a shade
_GREYS = ("#ffffff", "#e3e3e3")
_EMPTY = "(nothing)"


@dataclass(frozen=True)
class Spectrogram:
    """Energies over time and frequency.

    Attributes:
        values: [T, F] in dB.
        frame_shift: seconds between frames; frame t is centred on (t + 1/2) frame shifts.
        max_frequency: of the last column, Hz; the first one is 0.
    """

    values: npt.NDArray[np.float64]
    frame_shift: float
    max_frequency: float

    __repr__ = brief


def spectrogram(
    samples: npt.ArrayLike, sample_rate: float, *, window_seconds: float = 0.025, shift_seconds: float = 0.005
) -> Spectrogram:
    """The spectrogram of a recording, with Hann windows.

    Args:
        samples: [n], of any scale.
        sample_rate: Hz.
        window_seconds: long windows separate frequencies, short ones moments.
        shift_seconds: between frames.

    Raises:
        ShapeError: `samples` is no vector, or empty.
        ConfigError: windows or shifts of less than a sample.
    """
    wave = np.asarray(samples, dtype=np.float64)
    if wave.ndim != 1 or not wave.size:
        raise ShapeError(f"samples: shape {list(wave.shape)}, expected [n] with n > 0")
    window, shift = (round(seconds * sample_rate) for seconds in (window_seconds, shift_seconds))
    if window < 2 or shift < 1:
        raise ConfigError(
            f"window_seconds {window_seconds}, shift_seconds {shift_seconds}: {window} and {counted(shift, 'sample')}, "
            "expected at least 2 and 1"
        )
    # Frame t covers the samples around (t + 1/2) shifts, so that it is centred on its own cell.
    num_frames = -(-len(wave) // shift)
    before = (window - shift) // 2
    padded = np.pad(wave, (max(before, 0), num_frames * shift + window - len(wave)))[max(-before, 0) :]
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::shift][:num_frames]
    size = max(256, 1 << (window - 1).bit_length())
    power = np.abs(np.fft.rfft(frames * np.hanning(window + 1)[:-1], size)) ** 2
    floor = max(power.max(), 1e-300) * 10 ** (-DYNAMIC_RANGE / 10)
    return Spectrogram(10 * np.log10(np.maximum(power, floor)), shift / sample_rate, sample_rate / 2)


def plot_alignment(
    values: Spectrogram | npt.ArrayLike,
    tiers: Mapping[str, Sequence[CtmEntry]],
    *,
    frame_shift: float | None = None,
    title: str = "",
) -> Figure:
    """A spectrogram with tiers of segments below it, on one axis in seconds.

    Args:
        values: a spectrogram, or features [T, F].
        tiers: entries in order of time, for example {"words": ..., "phones": ...}; any number of tiers, drawn downwards.
        frame_shift: seconds between frames; needed for features.
        title: such as the utterance id.

    Raises:
        ConfigError: features without a frame shift.
        ShapeError: `values` is no matrix of finite numbers.
    """
    if isinstance(values, Spectrogram):
        cells, shift, top, unit = values.values, values.frame_shift, values.max_frequency, "frequency (Hz)"
    elif frame_shift is None or not frame_shift > 0:
        raise ConfigError(f"frame_shift = {frame_shift}: expected seconds between the frames of the features")
    else:
        cells, shift, unit = matrix(values, "values"), frame_shift, "feature"
        top = float(cells.shape[1])
    with new_picture(3.2 + 0.55 * len(tiers), title=title or None) as figure:
        heights = [3.0] + [0.5] * len(tiers)
        grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        image = grid[0].imshow(
            cells.T, origin="lower", aspect="auto", cmap="Greys", extent=(0.0, len(cells) * shift, 0.0, top)
        )
        figure.colorbar(image, ax=list(grid), pad=0.01, label="dB" if unit.endswith("(Hz)") else "value")
        grid[0].set_ylabel(unit, fontsize=9)
        for axes, (name, entries) in zip(grid[1:], tiers.items(), strict=True):
            _draw_tier(axes, name, entries, figure.get_figwidth() / max(len(cells) * shift, 1e-9))
            for entry in entries:
                for place in (grid[0], axes):
                    place.axvline(entry.start, color="#D55E00", linewidth=0.6, linestyle=":", zorder=1)
        grid[-1].set_xlabel("time (s)", fontsize=9)
        grid[0].set_xlim(0.0, len(cells) * shift)
        for axes in grid:
            axes.tick_params(labelsize=8)
    return figure


def _draw_tier(axes: Axes, name: str, entries: Sequence[CtmEntry], inches_per_second: float) -> None:
    """A row of boxes with their labels; a label too wide for its box is rotated."""
    axes.set_ylabel(name, fontsize=9, rotation=0, ha="right", va="center")
    if not entries:
        nothing_to_show(axes, _EMPTY)
        return
    axes.set_ylim(0.0, 1.0)
    axes.set_yticks([])
    for position, entry in enumerate(entries):
        # Greys in turn, so that neighbours differ without colour.
        box: dict[str, Any] = {"facecolor": _GREYS[position % 2], "edgecolor": "#555555", "linewidth": 0.6}
        axes.axvspan(entry.start, entry.start + entry.duration, gid=name, **box)
        width = 0.075 * len(entry.label)  # inches of a text in size 9, roughly
        narrow = width > 0.85 * entry.duration * inches_per_second
        fitted: dict[str, Any] = {"fontsize": 6 if narrow else 9, "clip_on": True}
        fitted["rotation"] = 90 if narrow and len(entry.label) > 1 else 0
        middle = entry.start + 0.5 * entry.duration
        axes.text(middle, 0.5, entry.label, ha="center", va="center", **fitted)
