"""Who is recognised badly, and whether long utterances are: word error rates by speaker and by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fsachain.errors import DataError
from fsachain.plot.canvas import COLOURS, new_figure, nothing_to_show, plain_text, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fsachain.decode.wer import WerReport

MAX_SPEAKERS = 30
MAX_BINS = 8
_KINDS = ("substitutions", "deletions", "insertions")
_HATCHES = ("", "////", "....")


@dataclass(frozen=True)
class _Bar:
    """Errors of a group of utterances by kind, and what they are a share of."""

    name: str
    counts: tuple[int, ...]
    words: int
    utterances: int

    @property
    def shares(self) -> list[float]:
        return [100.0 * count / self.words if self.words else 0.0 for count in self.counts]


def plot_wer(report: WerReport | Mapping[str, Any], *, title: str = "") -> Figure:
    """Word error rates by speaker, the worst first, and by the number of words in the reference.

    Args:
        report: from `fsachain.decode.wer.score`; or the object of a wer.json, which has no utterances: the panel of lengths
            is left out then.
        title: the rate of all utterances is written after it.

    Raises:
        DataError: the object is not that of a wer.json.
    """
    if isinstance(report, Mapping):
        speakers, total, lengths = *_from_json(report), None
    else:
        speakers = [_bar(name, [counts]) for name, counts in report.by_speaker.items()]
        total = _bar("all", [report.total])
        lengths = _by_length(report)
    worst = sorted(speakers, key=lambda bar: (-sum(bar.shares), bar.name))[:MAX_SPEAKERS]
    head = 1.1 + 0.24 * max(4, len(worst))
    figure = new_figure(head + (0.0 if lengths is None else 2.8))
    with plain_text(figure):
        ratios = [head] if lengths is None else [head, 2.8]
        grid = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
        _draw_speakers(grid[0], worst, len(speakers))
        if lengths is not None:
            _draw_lengths(grid[1], lengths)
        handles, labels = grid[-1].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, fontsize=8, ncols=len(labels), loc="outside lower center")
        rate = f"{sum(total.shares):.2f} %" if total.words else "not defined"
        overall = f"WER {rate} (errors: {sum(total.counts)}, words: {total.words})"
        figure.suptitle(shortened(f"{title}: {overall}" if title else overall), fontsize=10)
    return figure


def _bar(name: str, parts: Sequence[Any]) -> _Bar:
    """Of some `ErrorCounts`."""
    return _Bar(
        name,
        tuple(sum(getattr(part, kind) for part in parts) for kind in _KINDS),
        sum(part.num_words for part in parts),
        sum(part.num_utterances for part in parts),
    )


def _from_json(report: Mapping[str, Any]) -> tuple[list[_Bar], _Bar]:
    def bar(name: str, counts: Mapping[str, Any]) -> _Bar:
        return _Bar(
            name, tuple(int(counts[kind]) for kind in _KINDS), int(counts["words"]), int(counts["utterances"])
        )

    try:
        return [bar(name, counts) for name, counts in report["speakers"].items()], bar("all", report["total"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"report: expected the object of a wer.json, {error!r} is wrong in it") from error


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
        bars.append(_bar(name, [report.utterances[n].counts for n in np.flatnonzero(inside)]))
    return bars


def _draw_speakers(axes: Axes, bars: Sequence[_Bar], num_speakers: int) -> None:
    axes.set_title(
        "by speaker" if len(bars) == num_speakers else f"by speaker: the worst {len(bars)} of {num_speakers}",
        fontsize=9,
    )
    if not bars:
        nothing_to_show(axes, "no speakers are known")
        axes.set_xticks([])
        return
    left = np.zeros(len(bars))
    for kind, colour, hatch, share in _stacked(bars):
        axes.barh(np.arange(len(bars)), share, left=left, color=colour, hatch=hatch, label=kind, **_EDGE)
        left += share
    for place, (bar, end) in enumerate(zip(bars, left, strict=True)):
        axes.annotate(
            f"{end:.1f} % of {bar.words} words",
            (end, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(np.arange(len(bars)), [shortened(bar.name, 24) for bar in bars], fontsize=8)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0.0, max(float(left.max()) * 1.25, 1.0))
    axes.set_xlabel("errors per hundred words (%)", fontsize=9)
    axes.tick_params(labelsize=8)


def _draw_lengths(axes: Axes, bars: Sequence[_Bar]) -> None:
    axes.set_title("by length", fontsize=9)
    if not bars:
        nothing_to_show(axes, "no reference has words")
        axes.set_xticks([])
        return
    bottom = np.zeros(len(bars))
    for kind, colour, hatch, share in _stacked(bars):
        axes.bar(np.arange(len(bars)), share, bottom=bottom, color=colour, hatch=hatch, label=kind, **_EDGE)
        bottom += share
    for place, (bar, end) in enumerate(zip(bars, bottom, strict=True)):
        axes.annotate(
            f"{end:.1f} %\n{bar.utterances} utt.",
            (place, end),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    axes.set_xticks(np.arange(len(bars)), [bar.name for bar in bars], fontsize=8)
    axes.set_ylim(0.0, max(float(bottom.max()) * 1.35, 1.0))
    axes.set_xlabel("words in the reference", fontsize=9)
    axes.set_ylabel("errors per\nhundred words (%)", fontsize=9)
    axes.tick_params(labelsize=8)


_EDGE: dict[str, Any] = {"edgecolor": "#222222", "linewidth": 0.6}


def _stacked(bars: Sequence[_Bar]) -> list[tuple[str, str, str, Any]]:
    """(kind, colour, hatch, shares of the bars) of each kind of error."""
    shares = np.array([bar.shares for bar in bars])
    shades = ("#666666", "#ffffff", COLOURS[5])
    return [(kind, shades[k], _HATCHES[k], shares[:, k]) for k, kind in enumerate(_KINDS)]
