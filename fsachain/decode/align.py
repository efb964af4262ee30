"""When words and phones are said: the best path through the numerator of a known transcript, as CTM.

`align` and `align_utterance` take whole utterances, `LongAligner` recordings of any length in bounded memory.

Times are in seconds from the start of the utterance. Output frame t is centred on input frame
subsampling * t + time_offset, input frame k on (k + 1/2) frame shifts; a frame's cell reaches half an output
frame to either side of its centre, so that neighbouring segments touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.decode.ctm import CtmEntry
from fsachain.errors import ConfigError, DataError, ShapeError
from fsachain.fsa import Fsa
from fsachain.graph.numerator import Numerator, Segment
from fsachain.graph.spelling import NO_WORD
from fsachain.graph.supervision import AlignedPhone
from fsachain.table import compile_table

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FrameTiming:
    """Where output frames lie in time.

    `subsampling` counts input frames per output frame, `time_offset` is the input frame on which output frame 0 is centred,
    `frame_shift` the seconds between input frames.
    """

    subsampling: int
    time_offset: int
    frame_shift: float

    def __post_init__(self) -> None:
        if self.subsampling < 1 or not self.frame_shift > 0:
            raise ConfigError(
                f"subsampling {self.subsampling}, frame_shift {self.frame_shift}: expected positive numbers"
            )

    @property
    def frame_seconds(self) -> float:
        """Length of an output frame."""
        return self.subsampling * self.frame_shift

    def start_of(self, frame: int) -> float:
        """Where the cell of an output frame begins, in seconds; never before the utterance."""
        centre = self.subsampling * frame + self.time_offset + 0.5
        return max(0.0, (centre - 0.5 * self.subsampling) * self.frame_shift)


@dataclass(frozen=True)
class Alignment:
    """`words` are in order without silence, `phones` in order with silence; `log_prob` is that of the best path."""

    utterance: str
    log_prob: float
    words: tuple[CtmEntry, ...]
    phones: tuple[CtmEntry, ...]


def align(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    numerators: Mapping[str, Numerator],
    phones: Sequence[str],
    timing: FrameTiming,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Alignment], dict[str, str]]:
    """Align every utterance with its transcript: alignments by utterance id, and for those that have none the reason.

    `nnet_outputs` [T, P] and `numerators`, the graphs of the transcripts, are by utterance id; numerators built without
    normalization weigh no phone language model in. `phones` are `lexicon.phones`, `timing` says where output frames lie,
    `progress` is called with (utterances done, utterances in all).
    """
    found: dict[str, Alignment] = {}
    failed: dict[str, str] = {}
    for done, (name, output) in enumerate(nnet_outputs.items(), start=1):
        numerator = numerators.get(name)
        if numerator is None:
            failed[name] = "has no numerator"
        elif result := align_utterance(output, numerator, phones, timing, name=name):
            found[name] = result
        else:
            needed = numerator.required_frames
            failed[name] = f"no path of {len(np.asarray(output))} frames, {needed:.0f} are needed"
        if progress is not None:
            progress(done, len(nnet_outputs))
    return found, failed


def align_utterance(
    nnet_output: npt.ArrayLike,
    numerator: Numerator,
    phones: Sequence[str],
    timing: FrameTiming,
    *,
    name: str = "utterance",
) -> Alignment | None:
    """The best path of one utterance with outputs [T, P]; None where there is no path of its length.

    ShapeError where there are fewer columns than pdfs, DataError for NaN or +inf among the scores.
    """
    scores = np.asarray(nnet_output)
    if scores.ndim != 2:
        raise ShapeError(f"nnet_output of {name!r}: expected [T, P], got shape {list(scores.shape)}")
    found = _best_arcs(numerator.fsa, scores, name, f"nnet_output of {name!r}: NaN or +inf among the scores")
    return None if found is None else alignment_of(numerator, *found, phones, timing, name)


def _best_arcs(
    fsa: Fsa, scores: npt.NDArray[np.floating], name: str, not_a_number: str
) -> tuple[npt.NDArray[np.integer], float] | None:
    """An arc for each frame of the best path, and its score; None where there is no path."""
    batch = TableBatch.pack([compile_table(fsa, scores.shape[1], name=name)], [name])
    path = best_path(batch, scores[None])
    score = float(path.score[0])
    if np.isnan(score):
        raise DataError(not_a_number)
    return None if score == -np.inf else (path.arcs[0], score)


def alignment_of(
    numerator: Numerator,
    arcs: npt.NDArray[np.integer],
    log_prob: float,
    phones: Sequence[str],
    timing: FrameTiming,
    name: str,
) -> Alignment:
    """The words and phones along a path; `arcs` has an arc number for each frame, as `BestPath.arcs`."""

    def entry(first: Segment, last: Segment, label: str) -> CtmEntry:
        start = timing.start_of(first.first_frame)
        end = timing.start_of(last.first_frame + last.num_frames)
        return CtmEntry(name, round(start, 6), round(end - start, 6), label)

    segments = numerator.phone_segments(arcs)
    said = [entry(segment, segment, phones[segment.phone - 1]) for segment in segments if segment.phone]
    words = []
    # The blanks of a CTC topology belong to no word; those between two phones of a word are counted to it.
    in_words = (segment for segment in segments if segment.word != NO_WORD)
    for position, group in groupby(in_words, key=lambda segment: segment.word):
        parts = list(group)
        words.append(entry(parts[0], parts[-1], numerator.words[position]))
    return Alignment(name, log_prob, tuple(words), tuple(said))


def aligned_phones(
    entries: Sequence[CtmEntry], phones: Sequence[str], frame_shift: float
) -> list[AlignedPhone]:
    """The phones of one utterance in input frames, as `build_supervision` takes them; frame k begins at k frame shifts.

    Entries come from `Alignment.phones` or a CTM file. Times of a copy at speed s are those of the original divided by s:
    give s times the frame shift for it. A phone shorter than half a frame gets a frame of its own.
    """
    ids = {phone: index + 1 for index, phone in enumerate(phones)}
    found = []
    for position, entry in enumerate(entries):
        if entry.label not in ids:
            raise DataError(
                f"utterance {entry.utterance!r}: aligned phone {position} is {entry.label!r}, which is not among "
                f"the {len(ids)} phones of the lexicon"
            )
        start = round(entry.start / frame_shift)
        end = max(start + 1, round((entry.start + entry.duration) / frame_shift))
        found.append(AlignedPhone(ids[entry.label], start, end))
    return found


class LongAligner:
    """The best path of network outputs that come in blocks through one long numerator, in memory that does not grow.

    The graph of the whole text is small; its trellis would be large. So the best path is sought window by window. A window
    begins in the state, at the frame, where the last one was left; its graph is all that the text allows within so many
    frames, and its path may end anywhere. Of this path all but the last frames, the `lookahead`, are kept. Where the whole
    recording's best path agrees with each window's up to the lookahead, the result is the whole recording's best path.

    Recordings hold more than their text: applause, music, a sentence that nobody wrote down. Between words, where silence
    may stand, the path may also take the filler: in every frame the score of the best pdf, less a cost.

    A recording of T frames takes the time of T / (W - L) windows, each of W frames on a graph of about W phones, and
    memory for one window, 8 bytes a frame of the recording, and the text's graph.

    `numerator` is the graph of the whole text; `window` W and `lookahead` L count output frames, 1 <= L < W;
    `filler_cost` is that of a frame of the filler in natural logs, at least 0 (infinity: no filler); `name` is for
    messages.
    """

    def __init__(
        self,
        numerator: Numerator,
        *,
        window: int = 1200,
        lookahead: int = 400,
        filler_cost: float = math.inf,
        name: str = "recording",
    ) -> None:
        if not filler_cost >= 0:
            raise ConfigError(f"filler_cost is {filler_cost}; expected at least 0")
        if not 1 <= lookahead < window:
            raise ConfigError(f"window is {window}, lookahead {lookahead}; expected 1 <= lookahead < window")
        self._filler = int(numerator.fsa.pdf.max()) + 1  # its column, behind those of the numerator's pdfs
        self.numerator = with_filler(numerator, self._filler, filler_cost)
        self.window, self.lookahead, self.name = window, lookahead, name
        fsa = self.numerator.fsa
        ones = np.ones(fsa.num_arcs)
        self._adjacency = sparse.csr_array((ones, (fsa.src, fsa.dst)), shape=(fsa.num_states,) * 2)
        self._state, self._log_prob, self._done = fsa.start, 0.0, 0
        self._kept = np.zeros((0, self._filler + 1), np.float32)
        self._arcs = [np.zeros(0, np.int32)]
        self._margins = [np.zeros(0, np.float32)]

    def accept(self, scores: npt.ArrayLike) -> None:
        """Take the next network outputs [T, P].

        ShapeError: not two axes, or fewer columns than the numerator has pdfs. DataError: NaN or +inf among the scores, or
        no path.
        """
        block = np.asarray(scores, dtype=np.float32)
        if block.ndim != 2 or block.shape[1] < self._filler:
            raise ShapeError(
                f"scores of {self.name!r}: expected [T, P] with P at least {self._filler}, got shape {list(block.shape)}"
            )
        columns = [block[:, : self._filler], block.max(axis=1, keepdims=True)]
        self._kept = np.concatenate([self._kept, np.concatenate(columns, axis=1)])
        ends = np.zeros(self.numerator.fsa.num_states)  # a path may end in every state
        while len(self._kept) > self.window:
            self._align(self._kept[: self.window], self.window - self.lookahead, ends)

    def finish(self) -> tuple[npt.NDArray[np.int32], float]:
        """Align what is left, up to the end of the text: an arc of `self.numerator.fsa` for each frame, and the score.

        DataError as `accept`; the text may be longer than the recording.
        """
        if len(self._kept):
            self._align(self._kept, len(self._kept), self.numerator.fsa.final_log_prob)
        final = float(self.numerator.fsa.final_log_prob[self._state])
        if not self._done or final == -math.inf:
            raise DataError(self._no_path(0))
        return np.concatenate(self._arcs), self._log_prob + final

    def margins(self) -> Float32Array:
        """For each frame aligned so far, the score of its pdf minus that of the frame's best pdf: 0 or less, [T]."""
        return np.concatenate(self._margins)

    def _align(self, scores: Float32Array, keep: int, final: npt.NDArray[np.float64]) -> None:
        """Find the best path of a window and append its first `keep` frames."""
        whole = self.numerator.fsa
        # The part of the graph that so many frames can pass; `origin` are its arcs' numbers in the whole.
        frames = len(scores)
        distance = csgraph.dijkstra(self._adjacency, unweighted=True, indices=self._state, limit=frames)
        near = distance <= frames
        origin = np.flatnonzero((distance[whole.src] < frames) & near[whole.dst])
        number = np.cumsum(near) - 1
        part = Fsa(
            int(near.sum()),
            number[whole.src[origin]],
            number[whole.dst[origin]],
            whole.pdf[origin],
            whole.log_prob[origin],
            final[near],
            int(number[self._state]),
        )
        wrong = f"scores of {self.name!r}: NaN or +inf among frames {self._done} and following"
        found = _best_arcs(part, scores, self.name, wrong)
        if found is None:
            raise DataError(self._no_path(frames))
        arcs = origin[found[0][:keep]]
        spent = scores[np.arange(keep), whole.pdf[arcs]]
        self._log_prob += float(spent.sum(dtype=np.float64)) + float(whole.log_prob[arcs].sum())
        self._margins.append(spent - scores[:keep, self._filler])
        self._arcs.append(arcs.astype(np.int32))
        self._state = int(whole.dst[arcs[-1]])
        self._done += keep
        self._kept = self._kept[keep:].copy()

    def _no_path(self, frames: int) -> str:
        words = self.numerator.words
        leaving = np.flatnonzero(self.numerator.fsa.src == self._state)
        position = max(self.numerator.arc_word[leaving].tolist(), default=len(words) - 1)
        where = " ".join(words[max(0, position - 2) : position + 3])
        return (
            f"recording {self.name!r}: no path through the {frames} frames from {self._done} on, at word "
            f"{max(0, position)} of {len(words)} (... {where} ...); expected the text of the whole recording and no more"
        )


def with_filler(numerator: Numerator, pdf: int, cost: float) -> Numerator:
    """The numerator with the filler `pdf` beside every pdf that belongs to no word.

    `cost` is that of a frame; infinity leaves the numerator as it is. Only a lexicon with silence or a topology with a blank
    has such pdfs.
    """
    if cost == math.inf:
        return numerator
    fsa = numerator.fsa
    beside = np.flatnonzero(numerator.arc_word == NO_WORD)
    arcs = np.concatenate([np.arange(fsa.num_arcs), beside])
    pdfs, log_probs = fsa.pdf[arcs], fsa.log_prob[arcs]
    pdfs[fsa.num_arcs :] = pdf
    log_probs[fsa.num_arcs :] -= cost
    return Numerator(
        Fsa(fsa.num_states, fsa.src[arcs], fsa.dst[arcs], pdfs, log_probs, fsa.final_log_prob, fsa.start),
        numerator.words,
        numerator.arc_phone[arcs],
        numerator.arc_word[arcs],
        numerator.arc_is_start[arcs],
    )
