"""Figures and recordings as data URIs, small enough to put dozens of them on one page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fsachain.data.audio import count_samples, read_audio, recorded_rate
from fsachain.data.kaldi_dir import Utterance, is_command
from fsachain.errors import DataError, require
from fsachain.plot.canvas import figure_svg, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SECONDS = 30.0
MOST_HERTZ = 16_000
MOST_PICTURE_BYTES = 2_000_000
PICTURE_TYPES = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
}


@dataclass(frozen=True)
class Picture:
    """An image as data URI; `alt` is its description for those who do not see it."""

    uri: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Clip:
    """A recording as data URI, with the seconds that play and those of the whole utterance."""

    uri: str
    seconds: float
    of_seconds: float

    @property
    def is_cut(self) -> bool:
        return self.seconds < self.of_seconds


def data_uri(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def drawing(figure: Figure, alt: str, caption: str = "") -> Picture:
    """The figure as SVG, sharp at every size."""
    return Picture(data_uri(figure_svg(figure).encode(), PICTURE_TYPES[".svg"]), alt, caption)


def bitmap(figure: Figure, alt: str, caption: str = "", *, dpi: int = 110) -> Picture:
    """The figure as lossy WebP, for heat maps: a fifth of a PNG's bytes."""
    return Picture(data_uri(rendered(figure, "webp", dpi), PICTURE_TYPES[".webp"]), alt, caption)


def picture_file(path: Path) -> Picture:
    media_type = PICTURE_TYPES.get(path.suffix.lower())
    if media_type is None:
        raise DataError(f"{path}: expected a picture that ends in {', '.join(PICTURE_TYPES)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the picture: {error.strerror}") from error
    if len(content) > MOST_PICTURE_BYTES:
        raise DataError(
            f"{path}: has {len(content)} bytes; pictures of a report have at most {MOST_PICTURE_BYTES}"
        )
    return Picture(data_uri(content, media_type), path.name, path.stem)


def samples_of(
    utterance: Utterance, sample_rate: int | None, *, allow_commands: bool
) -> tuple[NDArray[np.float32], int]:
    """The samples [L] of an utterance, and its sample rate in Hz.

    Recordings must have `sample_rate`; None takes the recording's own. A command in wav.scp runs only with `allow_commands`.
    """
    if utterance.audio is not None and is_command(utterance.audio) and not (allow_commands and sample_rate):
        reason = "; --allow-commands runs it" if sample_rate else ", and no model says its sample rate"
        raise DataError(f"utterance {utterance.id!r}: its recording is made by a command{reason}")
    rate = sample_rate or _recorded_rate(utterance)
    return read_audio(utterance, rate), rate


def seconds_of(utterance: Utterance) -> float:
    """Length of an utterance, from the header of its recording; commands that make recordings are not run."""
    if utterance.end is not None:
        return utterance.end - utterance.start
    rate = _recorded_rate(utterance)
    return count_samples(utterance, rate) / rate


def clip(samples: NDArray[np.float32], rate: int) -> Clip:
    """The first half minute of a recording as FLAC, of at most 16,000 samples a second."""
    soundfile = require("soundfile", extra="recipes")
    whole = len(samples) / rate
    heard = samples[: round(MOST_SECONDS * rate)]
    seconds = len(heard) / rate
    if rate > MOST_HERTZ:
        from scipy.signal import resample_poly  # costs 0.3 s to import

        divisor = int(np.gcd(rate, MOST_HERTZ))
        heard, rate = resample_poly(heard, MOST_HERTZ // divisor, rate // divisor), MOST_HERTZ
    file = io.BytesIO()
    soundfile.write(file, np.clip(heard, -1.0, 1.0), rate, format="FLAC", subtype="PCM_16")
    return Clip(data_uri(file.getvalue(), "audio/flac"), seconds, whole)


def _recorded_rate(utterance: Utterance) -> int:
    if utterance.audio is None or is_command(utterance.audio):
        raise DataError(f"utterance {utterance.id!r}: has no file of a recording")
    return recorded_rate(utterance)
