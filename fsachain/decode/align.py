"""When words and phones are said: the best path through the numerator of a known transcript, as CTM.

Times are in seconds from the start of the utterance. Output frame t is centred on input frame
subsampling * t + time_offset, input frame k on (k + 1/2) frame shifts; a frame's cell reaches half an output
frame to either side of its centre, so that neighbouring segments touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.decode.ctm import CtmEntry
from fsachain.errors import ConfigError, DataError, ShapeError
from fsachain.graph.numerator import NO_WORD, Numerator, Segment
from fsachain.graph.supervision import AlignedPhone
from fsachain.table import compile_table


@dataclass(frozen=True)
class FrameTiming:
    """Where output frames lie in time.

    Attributes:
        subsampling: Input frames per output frame.
        time_offset: Input frame on which output frame 0 is centred.
        frame_shift: Seconds between input frames.
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
    """One utterance, aligned.

    Attributes:
        utterance: Its id.
        log_prob: Score of the best path.
        words: Words in order, without silence.
        phones: Phones in order, silence included.
    """

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
    """Align every utterance with its transcript.

    Args:
        nnet_outputs: [T, P] network outputs by utterance id.
        numerators: Graph of the transcript by utterance id; those built without normalization weigh no phone
            language model in.
        phones: Phone of id 1, 2, ...: `lexicon.phones`.
        timing: Where output frames lie.
        progress: Called with (utterances done, utterances in all).

    Returns:
        Alignments by utterance id, and for utterances that have none the reason.

    Raises:
        ShapeError: an output is not [T, P], or has fewer columns than a numerator has pdfs.
    """
    found: dict[str, Alignment] = {}
    failed: dict[str, str] = {}
    for done, (name, output) in enumerate(nnet_outputs.items(), start=1):
        numerator = numerators.get(name)
        if numerator is None:
            failed[name] = "has no numerator"
        else:
            result = align_utterance(output, numerator, phones, timing, name=name)
            if result is None:
                frames = len(np.asarray(output))
                failed[name] = f"no path of {frames} frames, {numerator.required_frames:.0f} are needed"
            else:
                found[name] = result
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
    """The best path of one utterance; None where there is no path of its length.

    Args:
        nnet_output: [T, P].
        numerator: Graph of the transcript.
        phones: Phone of id 1, 2, ...
        timing: Where output frames lie.
        name: Utterance id for the entries and messages.

    Raises:
        ShapeError: `nnet_output` is not [T, P], or has fewer columns than the numerator has pdfs.
        DataError: NaN or +inf among the scores.
    """
    scores = np.asarray(nnet_output)
    if scores.ndim != 2:
        raise ShapeError(f"nnet_output of {name!r}: expected [T, P], got shape {list(scores.shape)}")
    batch = TableBatch.pack([compile_table(numerator.fsa, scores.shape[1], name=name)], [name])
    path = best_path(batch, scores[None])
    log_prob = float(path.score[0])
    if np.isnan(log_prob):
        raise DataError(f"nnet_output of {name!r}: NaN or +inf among the scores")
    if log_prob == -np.inf:
        return None
    return alignment_of(numerator, path.arcs[0], log_prob, phones, timing, name)


def alignment_of(
    numerator: Numerator,
    arcs: npt.NDArray[np.integer],
    log_prob: float,
    phones: Sequence[str],
    timing: FrameTiming,
    name: str,
) -> Alignment:
    """The words and phones along a path through a numerator.

    Args:
        numerator: Graph of the transcript.
        arcs: Arc number of each frame, as in `BestPath.arcs`.
        log_prob: Score of the path.
        phones: Phone of id 1, 2, ...
        timing: Where output frames lie.
        name: Utterance id for the entries.
    """
    segments = numerator.phone_segments(arcs)
    spoken = [
        _entry(name, segment.first_frame, segment.num_frames, phones[segment.phone - 1], timing)
        for segment in segments
        if segment.phone
    ]
    words = [
        _entry(name, first, length, numerator.words[position], timing)
        for position, first, length in _word_spans(segments)
    ]
    return Alignment(name, log_prob, tuple(words), tuple(spoken))


def aligned_phones(
    entries: Sequence[CtmEntry], phones: Sequence[str], frame_shift: float
) -> list[AlignedPhone]:
    """The phones of one utterance in input frames; frame k lasts from k to k + 1 frame shifts.

    Args:
        entries: its phones in order: `Alignment.phones`, or from a CTM file.
        phones: phone of id 1, 2, ...: `lexicon.phones`.
        frame_shift: seconds between input frames. Times of a copy at speed s are those of the original
            divided by s: give s times the frame shift for it.

    Returns:
        What `build_supervision` takes. A phone shorter than half a frame gets a frame of its own.

    Raises:
        DataError: a phone that is not among `phones`; the message has the utterance.
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


def _word_spans(segments: Iterable[Segment]) -> list[tuple[int, int, int]]:
    """(position in the transcript, first frame, frames) of each word.

    The blanks of a CTC topology belong to no word; those between two phones of a word are counted to it.
    """
    spoken = [segment for segment in segments if segment.word != NO_WORD]
    spans = []
    for position, group in groupby(spoken, key=lambda segment: segment.word):
        parts = list(group)
        first, last = parts[0], parts[-1]
        spans.append((position, first.first_frame, last.first_frame + last.num_frames - first.first_frame))
    return spans


def _entry(name: str, first: int, length: int, label: str, timing: FrameTiming) -> CtmEntry:
    start = timing.start_of(first)
    end = timing.start_of(first + length)
    return CtmEntry(name, round(start, 6), round(end - start, 6), label)
