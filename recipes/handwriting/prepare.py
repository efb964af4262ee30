"""Lines of handwritten digits: real images by 43 people, which come with scikit-learn, put side by side.

A column of pixels is a frame, a digit is a word of one unit. The features of a frame are its pixels and the edges of strokes
in each of four directions, blurred, so that a stroke may be a little higher or lower. The last third of the images is for
test alone; its writers are not those of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fsachain.asr.data.utterance import Utterance
from fsachain.errors import require
from recipes.pipeline.corpus import write_data_dir

ROWS = 16  # pixels of a line
NUM_FEATURES = ROWS + 4 * (ROWS // 2)
WIDTH = 24  # frames of a digit before it is distorted
LINES = {"train": 3000, "dev": 100, "test": 200}
Images = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Style:
    """How digits are put onto a line: least and most of what is drawn for each of them.

    Rotation in degrees, shear in columns per row, stretch and size as factors of width and height, shift in rows, gap in
    blank columns before the digit (negative ones overlap).
    """

    rotation: float = 0.0
    shear: float = 0.0
    stretch: tuple[float, float] = (0.9, 1.1)
    size: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0
    gap: tuple[int, int] = (-2, 6)


PLAIN = Style()
DISTORTED = Style(10.0, 0.25, (0.75, 1.25), (0.85, 1.1), 1.0)


def prepare(corpus: Path | None, out: Path, seed: int, lines: Mapping[str, int] = LINES) -> None:
    """Write lexicon.txt and data directories with features to `out`; `lines` is the size of each part.

    `seed` draws digits and distortions of the training lines; dev and test are always the same. `corpus` is not used.
    """
    images, digits = _load()
    held_out = len(digits) - len(digits) // 3
    own = held_out * 7 // 8
    parts = {
        "train": (slice(0, own), DISTORTED, [seed, 0]),
        "dev": (slice(own, held_out), PLAIN, [0, 1]),
        "test": (slice(held_out, None), PLAIN, [0, 2]),
    }
    for split, (part, style, start) in parts.items():
        source, rng = (images[part], digits[part]), np.random.default_rng(start)
        made = list(_lines(split, source, lines[split], style, rng))
        write_data_dir(out / split, [one for one, _ in made], {one.id: features for one, features in made})
    (out / "lexicon.txt").write_text("".join(f"{digit} {digit}\n" for digit in range(10)), encoding="utf-8")


def _load() -> Images:
    """Images [L, 8, 8], ink from 0 to 1, and digits [L], in the order of the file."""
    datasets: Any = require("sklearn.datasets", extra="recipes")
    found = datasets.load_digits()
    return found.images / 16.0, found.target.astype(np.int64)


def _lines(
    split: str, source: Images, count: int, style: Style, rng: np.random.Generator
) -> Iterator[tuple[Utterance, NDArray[np.float32]]]:
    """Lines of 3 to 8 digits, with their features; every image is used equally often, to within one."""
    images, digits = source
    order: list[int] = []
    for number in range(count):
        length = int(rng.integers(3, 9))
        while len(order) < length:
            order += rng.permutation(len(digits)).tolist()
        chosen, order = order[:length], order[length:]
        ink = write_line([images[i] for i in chosen], style, rng)
        words = tuple(str(digits[i]) for i in chosen)
        yield Utterance(f"{split}-{number:04d}", "writers", words, None), describe(ink)


def write_line(
    digits: list[NDArray[np.float64]], style: Style, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Ink [ROWS, T] of a line, from 0 to 1."""
    pieces = [_distort(digit, style, rng) for digit in digits]
    gaps = rng.integers(*style.gap, size=len(pieces) + 1, endpoint=True)
    gaps[0], gaps[-1] = abs(gaps[0]), abs(gaps[-1])
    line = np.zeros((ROWS, sum(piece.shape[1] for piece in pieces) + int(gaps.sum())))
    begin = 0
    for gap, piece in zip(gaps, pieces, strict=False):
        begin += int(gap)
        part = line[:, begin : begin + piece.shape[1]]
        np.maximum(part, piece, out=part)
        begin += piece.shape[1]
    return line


def describe(ink: NDArray[np.float64]) -> NDArray[np.float32]:
    """Features [T, NUM_FEATURES] of a line [ROWS, T]: ink, and how steeply it rises and falls to the right and downwards."""
    slopes = [ndimage.gaussian_filter(ink, 1.0, order=order) for order in ((0, 1), (1, 0))]
    edges = [np.maximum(sign * slope, 0.0) for slope in slopes for sign in (1.0, -1.0)]
    blurred = [ndimage.gaussian_filter(edge, (1.5, 0.5))[::2] for edge in edges]
    return np.concatenate([ink, *blurred]).T.astype(np.float32)


def _distort(digit: NDArray[np.float64], style: Style, rng: np.random.Generator) -> NDArray[np.float64]:
    """One digit [8, 8] as [ROWS, about WIDTH]: rotated, sheared, scaled and moved about its centre."""
    width = round(WIDTH * rng.uniform(*style.stretch))
    angle = np.deg2rad(rng.uniform(-style.rotation, style.rotation))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[1.0, 0.0], [rng.uniform(-style.shear, style.shear), 1.0]])
    scale = np.diag([8 / ROWS / rng.uniform(*style.size), 8 / width])
    back = turn @ slant @ scale  # from a pixel of the result to one of the image
    centre = np.array([(ROWS - 1) / 2 + rng.uniform(-style.shift, style.shift), (width - 1) / 2])
    offset = np.array([3.5, 3.5]) - back @ centre
    shape = (ROWS, width)
    return np.clip(ndimage.affine_transform(digit, back, offset, shape, order=1), 0.0, 1.0)
