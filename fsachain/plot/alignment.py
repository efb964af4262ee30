"""A recording's spectrogram, or any features, over the words and phones that an alignment found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fsachain.brief import brief
from fsachain.errors import ConfigError, ShapeError
from fsachain.plot.canvas import headline, matrix, new_figure, nothing_to_show, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fsachain.decode.ctm import CtmEntry

DYNAMIC_RANGE = 70.0  # dB below the loudest cell that still have a shade
_SHADES = ("#ffffff", "#e3e3e3")
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
            f"window_seconds {window_seconds}, shift_seconds {shift_seconds}: {window} and {shift} samples, "
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
    figure = new_figure(3.2 + 0.55 * len(tiers))
    with plain_text(figure):
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
        if title:
            headline(figure, title)
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
        # A frame's cell, so that neighbours differ without colour.
        axes.axvspan(
            entry.start,
            entry.start + entry.duration,
            facecolor=_SHADES[position % 2],
            edgecolor="#555555",
            linewidth=0.6,
            gid=name,
        )
        axes.text(entry.start + 0.5 * entry.duration, 0.5, entry.label, **_fitted(entry, inches_per_second))


def _fitted(entry: CtmEntry, inches_per_second: float) -> dict[str, Any]:
    width = 0.075 * len(entry.label)  # inches of a text in size 9, roughly
    narrow = width > 0.85 * entry.duration * inches_per_second
    return {
        "ha": "center",
        "va": "center",
        "fontsize": 6 if narrow else 9,
        "rotation": 90 if narrow and len(entry.label) > 1 else 0,
        "clip_on": True,
    }
