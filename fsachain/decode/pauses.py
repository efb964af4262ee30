"""Long recordings in pieces: cut where the network hears silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon

_SMOOTHING = 9  # frames: a pause, not a stop consonant


class Piece(NamedTuple):
    """A part of a recording's network outputs: the first output frame, and scores [T, P]."""

    first_frame: int
    scores: npt.NDArray[np.float32]


class PauseCutter:
    """Network outputs that come in blocks, given on in pieces of at most so many frames.

    A piece ends in its second half, where the network prefers silence most: where the margin of the best of `silence_pdfs`
    over the best other pdf, a mean over nine frames, is largest. Memory holds a piece.

    Args:
        silence_pdfs: pdfs of silence; see `silence_pdfs`. Without any, pieces have the most frames.
        max_frames: at least 2.

    Raises:
        ConfigError: max_frames below 2.
    """

    def __init__(self, silence_pdfs: Sequence[int], max_frames: int) -> None:
        if max_frames < 2:
            raise ConfigError(f"max_frames is {max_frames}; expected at least 2")
        self._silence = np.asarray(silence_pdfs, dtype=np.int64)
        self._max_frames = max_frames
        self._kept: npt.NDArray[np.float32] | None = None
        self._first = 0

    def accept(self, scores: npt.NDArray[np.float32]) -> Iterator[Piece]:
        """Take the next outputs [T, P]; the pieces that end."""
        self._kept = scores if self._kept is None else np.concatenate([self._kept, scores])
        while len(self._kept) > self._max_frames:
            end = self._pause(self._kept[: self._max_frames])
            piece, self._kept = Piece(self._first, self._kept[:end]), self._kept[end:]
            self._first += end
            yield piece

    def finish(self) -> Iterator[Piece]:
        """The last piece, unless there is nothing."""
        if self._kept is not None and len(self._kept):
            yield Piece(self._first, self._kept)
        self._kept = None

    def _pause(self, scores: npt.NDArray[np.float32]) -> int:
        """How many frames the piece takes."""
        silent = np.zeros(scores.shape[1], dtype=bool)
        silent[self._silence] = True
        if not silent.any() or silent.all():
            return len(scores)
        margin = scores[:, silent].max(axis=1) - scores[:, ~silent].max(axis=1)
        margin = np.nan_to_num(margin.astype(np.float64), nan=0.0, posinf=1e3, neginf=-1e3)
        width = min(_SMOOTHING, len(margin))
        mean = np.convolve(margin, np.ones(width) / width, mode="same")
        half = len(scores) // 2
        return half + int(np.argmax(mean[half:]))


def silence_pdfs(lexicon: Lexicon, tree: ContextTree) -> list[int]:
    """The pdfs that the silence phone alone has, and the blank of a CTC topology."""
    found = {pdf for pdf in range(tree.num_pdfs) if _is_silence(tree, pdf, lexicon.silence_phone)}
    return sorted(found | ({tree.blank_pdf} if tree.blank_pdf is not None else set()))


def _is_silence(tree: ContextTree, pdf: int, silence: int | None) -> bool:
    return silence is not None and tuple(tree.describe(pdf).phones) == (silence,)
