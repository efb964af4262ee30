"""Words with times and confidences from network outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.asr.decode.align import FrameTiming, align_utterance
from fsachain.asr.decode.decoder import Decoder
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.errors import ConfigError, DataError, brief, brief_of
from fsachain.fsa import Floats
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.open_vocabulary import WordIds, spelt_out, words_and_pieces

_SMOOTHING = 9  # frames over which silence is sought: a pause, not a stop consonant


class WordPosterior(NamedTuple):
    """A word of the best path: its id, the frame of the arc that bears it, and its confidence in [0, 1]."""

    word: int
    frame: int
    confidence: float


def word_posteriors(lattice: Lattice) -> list[WordPosterior]:
    """The words of the best path with their confidences: posteriors, by one forward and one backward pass.

    A lattice of `Decoder.lattice` holds the likely paths of the decoding graph with their scores, so that exp(score) / Z is
    a path's posterior among them. In a graph of `build_decoding_graph` a word stands on the arc where its last phone begins:
    that is its place. The confidence of a word of the best path is the expected number of times, at most 1, that the same
    word has a place nearer to this one than to the words before and after it. Other times and pronunciations of a word
    therefore count for it, other words against it. What the beam left out counts for nothing.

    A cycle, or no path to the end, is a DataError.
    """
    src, dst, words = lattice.src.tolist(), lattice.dst.tolist(), lattice.word.tolist()
    spends = (lattice.transition > 0).tolist()
    log_prob, final = -lattice.cost, -lattice.final_cost
    before: dict[int, set[int]] = {}
    for state, following in zip(src, dst, strict=True):
        before.setdefault(following, set()).add(state)
    try:
        states = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise DataError(f"lattice: the states {error.args[1]} are a cycle; expected none") from error
    rank = np.zeros(lattice.num_states, dtype=np.int64)
    rank[states] = np.arange(len(states))
    # All arcs into a state before those out of it.
    order = np.argsort(rank[lattice.src], kind="stable").tolist()
    weight = log_prob.tolist()

    def sums(found: list[float], arcs: list[int], behind: list[int], ahead: list[int]) -> Floats:
        """Log-sums by state, arc by arc."""
        for arc in arcs:
            low, high = sorted((found[ahead[arc]], found[behind[arc]] + weight[arc]))
            found[ahead[arc]] = high if low == -math.inf else high + math.log1p(math.exp(low - high))
        return np.array(found)

    begin = [-math.inf] * lattice.num_states
    begin[lattice.start] = 0.0
    forward = sums(begin, order, src, dst)
    total = float(np.logaddexp.reduce(forward + final))
    if not math.isfinite(total):
        raise DataError(f"lattice: the paths to the end have the total {total}; expected a finite one")
    backward = sums(final.tolist(), order[::-1], dst, src)
    posterior = np.exp(forward[lattice.src] + log_prob + backward[lattice.dst] - total)
    frame, choice, to_end = [0] * lattice.num_states, [-1] * lattice.num_states, final.tolist()
    for arc in order:
        frame[dst[arc]] = frame[src[arc]] + spends[arc]
    for arc in order[::-1]:
        through = to_end[dst[arc]] + weight[arc]
        if through > to_end[src[arc]]:
            to_end[src[arc]], choice[src[arc]] = through, arc
    best, arc = [], choice[lattice.start]
    while arc >= 0:
        if words[arc]:
            best.append(arc)
        arc = choice[dst[arc]]
    places = np.array(frame)[lattice.src]
    said = np.flatnonzero(lattice.word)
    middles = 0.5 * (places[best][1:] + places[best][:-1])
    nearest = np.searchsorted(middles, places[said], side="right")
    expected = np.zeros(len(best))
    for arc, which in zip(said.tolist(), nearest.tolist(), strict=True):
        if best and words[arc] == words[best[which]]:
            expected[which] += posterior[arc]
    return [
        WordPosterior(words[arc], int(places[arc]), min(1.0, float(value)))
        for arc, value in zip(best, expected, strict=True)
    ]


class RecognisedWord(NamedTuple):
    """Start and duration are in seconds, the confidence in [0, 1]."""

    word: str
    start: float
    duration: float
    confidence: float


def timed_words(
    lattice: Lattice,
    nnet_output: npt.ArrayLike,
    lexicon: Lexicon,
    tree: ContextTree,
    timing: FrameTiming,
    name: str = "recording",
) -> list[RecognisedWord]:
    """The words of the lattice's best path, in order, with confidences from `word_posteriors`.

    The times are those of the best path through the numerator of these words for `nnet_output` [T, P].
    """
    found = word_posteriors(lattice)
    # A word that is spelt has the place of its first piece, and the least confidence of any of its pieces.
    names, ids = words_and_pieces(lexicon), np.array([one.word for one in found], dtype=np.int64)
    first = np.flatnonzero(WordIds.of(lexicon).begins(ids))
    if not len(first):
        return []
    words = spelt_out(names[number - 1] for number in ids.tolist())
    least = np.minimum.reduceat([one.confidence for one in found], first).tolist()
    numerator = build_numerator(words, lexicon, tree, name=name)
    aligned = align_utterance(nnet_output, numerator, lexicon.phones, timing, name=name)
    if aligned is None:  # a path that broke off inside its last word
        spans = [(timing.start_of(found[place].frame), timing.frame_seconds) for place in first.tolist()]
    else:
        spans = [(entry.start, entry.duration) for entry in aligned.words]
    rows = zip(words, spans, least, strict=True)
    return [RecognisedWord(word, *span, confidence) for word, span, confidence in rows]


class Transcriber:
    """Words with times and confidences of recordings and their parts: `timed_words` of the decoder's lattices.

    The decoder's graph is made of the same lexicon and tree.
    """

    __repr__ = brief_of("decoder", "timing")

    def __init__(self, decoder: Decoder, lexicon: Lexicon, tree: ContextTree, timing: FrameTiming) -> None:
        self.decoder, self.lexicon, self.tree, self.timing = decoder, lexicon, tree, timing

    def recognise(
        self, nnet_output: npt.ArrayLike, *, first_frame: int = 0, name: str = "recording"
    ) -> list[RecognisedWord]:
        """The words in outputs [T, P] of a recording or a part of it, in order.

        `first_frame` is the output frame of the recording at which the outputs begin; times count from the
        recording's start.
        """
        lattice = self.decoder.lattice(nnet_output, name)
        if lattice is None:
            return []
        offset = first_frame * self.timing.frame_seconds
        words = timed_words(lattice, nnet_output, self.lexicon, self.tree, self.timing, name)
        moved = []
        for word in words:
            start, end = round(word.start + offset, 6), round(word.start + word.duration + offset, 6)
            moved.append(word._replace(start=start, duration=round(end - start, 6)))
        return moved


class Piece(NamedTuple):
    """A part of a recording: its first output frame, and scores [T, P]."""

    first_frame: int
    scores: npt.NDArray[np.float32]

    def __repr__(self) -> str:
        return brief(self)


class PauseCutter:
    """Cuts network outputs that come in blocks into pieces of at most `max_frames` >= 2 frames.

    A piece ends in its second half, where the margin of the best of `silence_pdfs` over the best other pdf, a mean over nine
    frames, is largest. Without silence pdfs every piece has `max_frames`. Memory holds one piece.
    """

    def __init__(self, silence_pdfs: Sequence[int], max_frames: int) -> None:
        if max_frames < 2:
            raise ConfigError(f"max_frames is {max_frames}; expected at least 2")
        self._silence = np.asarray(silence_pdfs, dtype=np.int64)
        self._max_frames = max_frames
        self._kept: npt.NDArray[np.float32] | None = None
        self._first = 0

    def accept(self, scores: npt.NDArray[np.float32]) -> Iterator[Piece]:
        """Take the next outputs [T, P]; yields the pieces that are complete."""
        self._kept = scores if self._kept is None else np.concatenate([self._kept, scores])
        while len(self._kept) > self._max_frames:
            end = self._pause(self._kept[: self._max_frames])
            piece, self._kept = Piece(self._first, self._kept[:end]), self._kept[end:]
            self._first += end
            yield piece

    def finish(self) -> Iterator[Piece]:
        """The last piece, unless it is empty."""
        if self._kept is not None and len(self._kept):
            yield Piece(self._first, self._kept)
        self._kept = None

    def _pause(self, scores: npt.NDArray[np.float32]) -> int:
        """The number of frames of the next piece."""
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
    """The pdfs that only the silence phone has, and the blank of a CTC topology."""
    found = {tree.blank_pdf} - {None}
    if lexicon.silence_phone is not None:
        silence = (lexicon.silence_phone,)
        found |= {pdf for pdf in range(tree.num_pdfs) if tuple(tree.describe(pdf).phones) == silence}
    return sorted(pdf for pdf in found if pdf is not None)
