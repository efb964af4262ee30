"""How a training went: the curves of train.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsachain.errors import DataError
from fsachain.plot.canvas import COLOURS, DASHES, MARKERS, new_figure, nothing_to_show, plain_text, shortened
from fsachain.train.log import read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Event = Mapping[str, Any]
Curve = tuple[str, dict[int, float]]  # name, value by epoch
Wer = Mapping[int, float]

_FROM_ZERO = ("word error rate", "gradient norm", "left out")  # panels of amounts
_MOST_MARKERS = 25
NOTHING_YET = "no epoch is finished yet"
NOT_LOGGED = "not in this log"


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """The events of a train.jsonl, which may still be written to: a last line cut short is left out.

    Raises:
        DataError: the file cannot be read, or a line before the last is not JSON.
    """
    try:
        events = list(read_log(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read the training log: {error}") from error
    return [event for event in events if isinstance(event, dict)]


def plot_training(
    events: Iterable[Event], *, wer: Wer | Mapping[str, Wer] | None = None, title: str = ""
) -> Figure:
    """objf, numerator and denominator, WER, learning rate, gradient norm, and what was left out, by epoch.

    What the log lacks is left out; its panel says so. Where a training went on after a break, the later figures of an epoch
    hold.

    Args:
        events: lines of train.jsonl, as `read_events` gives them; unknown ones are passed over.
        wer: per cent by epoch, or such a table for each of several test sets; `wer` of an epoch's `dev` figures by default.
        title: such as the folder.
    """
    epochs = {event["epoch"]: event for event in events if _is_epoch(event)}
    figure = new_figure(7.2)
    with plain_text(figure):
        grid = figure.subplots(3, 2, sharex=True)
        panels: Sequence[tuple[str, str, Sequence[Curve]]] = (
            ("objf", "objf per frame", _both(epochs, "objf")),
            ("numerator and denominator", "log Z per frame", _parts(epochs)),
            ("word error rate", "WER (%)", _wer_curves(epochs, wer)),
            ("learning rate", "learning rate", [_curve("learning rate", epochs, _top("learning_rate"))]),
            ("gradient norm", "norm before clipping", _norms(epochs)),
            ("left out", "count per epoch", _left_out(epochs)),
        )
        for axes, (head, unit, curves) in zip(grid.flat, panels, strict=True):
            axes.set_title(head, fontsize=9)
            _draw(axes, unit, curves, NOT_LOGGED if epochs else NOTHING_YET)
            if head in _FROM_ZERO and axes.lines:
                largest = max(max(curve.values(), default=0.0) for _, curve in curves)
                axes.set_ylim(0.0, 1.08 * largest or 1.0)
        for axes in grid[-1]:
            axes.set_xlabel("epoch", fontsize=9)
        if epochs:
            margin = 0.03 * max(epochs) + 0.2
            grid[0, 0].set_xlim(min(epochs) - margin, max(epochs) + margin)
            grid[0, 0].locator_params(axis="x", integer=True)
        figure.suptitle(shortened(title), fontsize=10)
    return figure


def _is_epoch(event: Event) -> bool:
    return event.get("event") == "epoch" and isinstance(event.get("epoch"), int)


def _number(value: Any) -> float | None:
    """The value if it is a number; null stands for NaN and infinities in the log."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _curve(name: str, epochs: Mapping[int, Event], pick: Callable[[Event], Any]) -> Curve:
    values = ((number, _number(pick(event))) for number, event in sorted(epochs.items()))
    return name, {number: value for number, value in values if value is not None}


def _top(key: str) -> Callable[[Event], Any]:
    return lambda event: event.get(key)


def _inside(part: str, key: str) -> Callable[[Event], Any]:
    """`event[part][key]`; None where either is absent: without a development set `dev` is null."""
    return lambda event: (event.get(part) or {}).get(key)


def _both(epochs: Mapping[int, Event], key: str) -> list[Curve]:
    return [_curve(part, epochs, _inside(part, key)) for part in ("train", "dev")]


def _parts(epochs: Mapping[int, Event]) -> list[Curve]:
    return [
        _curve(f"{name}, {part}", epochs, _inside(part, key))
        for part in ("train", "dev")
        for name, key in (("numerator", "num"), ("denominator", "den"))
    ]


def _norms(epochs: Mapping[int, Event]) -> list[Curve]:
    """Mean and largest over the batches of an epoch."""
    return [
        _curve(name, epochs, _inside("train", key))
        for name, key in (("mean", "grad_norm"), ("largest", "max_grad_norm"))
    ]


def _wer_curves(epochs: Mapping[int, Event], wer: Any) -> list[Curve]:
    if wer is None:
        return _both(epochs, "wer")
    tables = wer if all(isinstance(table, Mapping) for table in wer.values()) else {"WER": wer}
    return [(name, dict(sorted(table.items()))) for name, table in tables.items()]


def _left_out(epochs: Mapping[int, Event]) -> list[Curve]:
    return [
        _curve("utterances excluded", epochs, _inside("train", "excluded")),
        _curve("batches skipped", epochs, _inside("train", "skipped_batches")),
    ]


def _draw(axes: Axes, unit: str, curves: Sequence[Curve], why_empty: str) -> None:
    """The curves of one panel, each with a colour, dash and marker of its own."""
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    drawn = [(name, values) for name, values in curves if values]
    if not drawn:
        nothing_to_show(axes, why_empty)
        return
    for place, (name, values) in enumerate(drawn):
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
    if len(drawn) > 1:
        axes.legend(fontsize=7, handlelength=3.5)
