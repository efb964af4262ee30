"""When words and phones are said: the best path through the graph of a known transcript.

`align` and `align_utterance` take whole utterances with numerators; `LongAligner` takes recordings of any length, in
bounded memory, with graphs of transcripts that may be wrong.

Times are in seconds from the start of the utterance. Output frame t is centred on input frame
subsampling * t + time_offset, input frame k on (k + 1/2) frame shifts; a frame's cell reaches half an output
frame to either side of its centre, so that neighbouring segments touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.asr.decode.ctm import CtmEntry, ctm_lines, write_textgrid
from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    GraphError,
    ShapeError,
    brief,
    brief_of,
    counted,
)
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon, Token, bare
from fsachain.graph.numerator import STAR_PHONE, Numerator, numerator_of_phones
from fsachain.graph.spelling import NO_WORD, Way, transcript_acceptor, ways_to_say
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


TIERS = ("words", "phones", "other")


@dataclass(frozen=True)
class Alignment:
    """When the words and phones of one utterance are said.

    Attributes:
        utterance: its name.
        log_prob: of the best path; -inf where there is none.
        words: in order, without silence. A word's confidence is exp(m), m the mean over its frames of the score of the
            path's pdf minus that of the frame's best pdf: 1 where the network heard nothing but this.
        phones: in order, with silence, with confidences of the same kind.
        skipped: positions in the transcript of words that were not said.
        other: stretches where something else was said, in place of a word or between words.
        seconds: the duration of the recording, where it was read here (`Aligner.align`); else that of all frames.
        reason: why there is no alignment; "" where there is one.
        positions: for each of `words` its position in the transcript.
        normalised: for each of `words` the form in which it was looked up; empty: as it is written.
        transcript: the words of the transcript as they are written, which `skipped` and `positions` count; empty: not known.
    """

    utterance: str
    log_prob: float
    words: tuple[CtmEntry, ...] = ()
    phones: tuple[CtmEntry, ...] = ()
    skipped: tuple[int, ...] = ()
    other: tuple[CtmEntry, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    positions: tuple[int, ...] = ()
    normalised: tuple[str, ...] = ()
    transcript: tuple[str, ...] = ()

    __repr__ = brief

    @property
    def ok(self) -> bool:
        """Whether there is an alignment."""
        return not self.reason

    def as_written(self, tokens: Sequence[Token]) -> Alignment:
        """The same with the words as they are written in the transcript, whose words are `tokens`."""
        words = [
            entry._replace(label=tokens[position].written)
            for entry, position in zip(self.words, self.positions, strict=True)
        ]
        normalised = tuple(tokens[position].word for position in self.positions)
        written = tuple(token.written for token in tokens)
        return replace(self, words=tuple(words), normalised=normalised, transcript=written)

    def to_ctm(self) -> str:
        """The words as lines of a CTM file."""
        return "".join(f"{line}\n" for line in ctm_lines(self.words))

    def to_textgrid(self, path: str | Path) -> None:
        """Write words and phones as a TextGrid for Praat."""
        write_textgrid(path, {"words": self.words, "phones": self.phones}, self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts alone, for JSON: times in seconds.

        A word has its label as it is written, the form in which it was looked up ("normalised") and its position.
        """

        def row(entry: CtmEntry) -> dict[str, Any]:
            times = {"start": round(entry.start, 6), "end": entry.end}
            return {"label": entry.label, **times, "confidence": round(entry.confidence or 0.0, 4)}

        own: dict[str, Any] = {"utterance": self.utterance, "seconds": self.seconds}
        own |= {"log_prob": self.log_prob if self.ok else None, "reason": self.reason}
        rows = {name: [row(entry) for entry in getattr(self, name)] for name in TIERS}
        for word, position in zip(rows["words"], self.positions, strict=False):
            word["position"] = position
        for word, form in zip(rows["words"], self.normalised, strict=False):
            word["normalised"] = form
        if self.transcript:
            own["transcript"] = list(self.transcript)
        return {**own, "skipped": list(self.skipped), **rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alignment:
        """What `to_dict` gave."""
        name = values["utterance"]

        def entry(row: Mapping[str, Any]) -> CtmEntry:
            return CtmEntry.between(name, row["start"], row["end"], row["label"], row["confidence"])

        tiers: dict[str, Any] = {tier: tuple(map(entry, values[tier])) for tier in TIERS}
        log_prob = -math.inf if values["log_prob"] is None else values["log_prob"]
        rest: dict[str, Any] = {"seconds": values["seconds"], "reason": values["reason"]}
        for field, key in (("positions", "position"), ("normalised", "normalised")):
            rest[field] = tuple(row[key] for row in values["words"] if key in row)
        rest["transcript"] = tuple(values.get("transcript", ()))
        return cls(name, log_prob, skipped=tuple(values["skipped"]), **tiers, **rest)


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
            failed[name] = f"no path of {counted(len(np.asarray(output)), 'frame')}, {needed:.0f} are needed"
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
    if found is None:
        return None
    margins = scores[np.arange(len(scores)), numerator.fsa.pdf[found[0]]] - scores.max(axis=1)
    return alignment_of(numerator, *found, margins, phones, timing, name)


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
    margins: npt.NDArray[np.floating],
    phones: Sequence[str],
    timing: FrameTiming,
    name: str,
    filler: int | None = None,
) -> Alignment:
    """The words and phones along a path.

    `arcs` has an arc number for each frame, as `BestPath.arcs`, `margins` the score of its pdf minus the best one. `filler`
    and the next one are the pdfs of what can be anything.
    """
    starts = [timing.start_of(frame) for frame in range(len(arcs) + 1)]
    sums = np.concatenate([[0.0], np.cumsum(margins, dtype=np.float64)])

    def entry(first: int, end: int, label: str) -> CtmEntry:
        sure = math.exp(min(0.0, float(sums[end] - sums[first]) / (end - first)))
        return CtmEntry.between(name, starts[first], starts[end], label, sure)

    is_filler = np.zeros(len(arcs), np.bool_) if filler is None else numerator.fsa.pdf[arcs] >= filler
    is_other = is_filler & (numerator.arc_word[arcs] == NO_WORD)
    said = []
    segments = numerator.phone_segments(arcs)
    for segment in segments:
        first, end = segment.first_frame, segment.first_frame + segment.num_frames
        if segment.phone and not is_filler[first:end].all():
            said.append(entry(first, end, phones[segment.phone - 1]))
    # The blanks of a CTC topology belong to no word; those between two phones of a word are counted to it.
    begins = numerator.arc_begins_word
    spoken: list[list[int]] = []  # position, first frame, end
    for _, position, first, length in segments:
        if position <= NO_WORD:
            continue
        again = begins is not None and begins[arcs[first]]
        if spoken and spoken[-1][0] == position and not again:
            spoken[-1][2] = first + length
        else:
            spoken.append([position, first, first + length])
    words = [entry(first, end, numerator.words[position]) for position, first, end in spoken]
    heard = {position for position, _, _ in spoken}
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_other, [0]])))
    other = [entry(first, end, OTHER) for first, end in zip(edges[::2], edges[1::2], strict=True)]
    skipped = tuple(n for n in range(len(numerator.words)) if n not in heard)
    return Alignment(
        name,
        log_prob,
        tuple(words),
        tuple(said),
        skipped,
        tuple(other),
        round(starts[-1], 6),
        positions=tuple(position for position, _, _ in spoken),
    )


class Tolerance(NamedTuple):
    """What a transcript may be wrong in; costs are natural logs, infinity: it is not.

    With the defaults right words are seldom left out, also by a network that was trained on eight minutes of speech, and
    few words that were not spoken are missed; docs/alignment.md has the figures.

    Attributes:
        skip: of each word that was not said; at most three in a row, but see `replace`.
        repeat: of going back by one to three words.
        replace: of something else in the place of a word, beside what each of its frames costs.
        other: of each frame of something else, in the place of a word or in a silence: its score is that of the frame's
            best pdf less this.
        unknown: of a word that nobody can spell, where it was said; where it was not, it costs nothing.
    """

    skip: float = 5.0
    repeat: float = 10.0
    replace: float = 3.5
    other: float = 1.3
    unknown: float = 1.5


STRICT = Tolerance(math.inf, math.inf, math.inf, math.inf, 0.0)
# Of each frame of a word that nobody can spell; words that fit lie 0.2 below the best scores.
UNKNOWN_COST = 0.4
OTHER = "<other>"
_REACH = 3  # words that are skipped or said again at once
SHORTEST_OTHER = (
    0.15  # seconds of something that the text lacks: a person hears less as a part of its neighbours
)
LONGEST_PHONE = 1.0  # seconds; see `LongAligner`
_EDGE = 0.15  # of this at each end of a longer one: what may be a phone
_NO_PHONE = 10.0  # cost of each frame between, of all but silence and filler


def alignment_numerator(
    words: Sequence[str],
    lexicon: Lexicon,
    tree: ContextTree,
    tolerance: Tolerance = STRICT,
    *,
    shortest_other: int = 1,
    name: str | None = None,
) -> Numerator:
    """The graph of a transcript that may have unknown words, and may be wrong.

    What else is said, between words or in place of one, takes `shortest_other` frames or more.

    Of a word that the lexicon lacks other case and bare letters are tried; then it is spelled by the lexicon's own rule
    (`Lexicon.spelled`), or is `lexicon.oov`, or else anything at all. The filler has the pdf `tree.num_pdfs`, words that are
    anything the next one: columns that the scores need behind their own, both of each frame's greatest score.

    GraphError: a transcript without words. ConfigError: a cost below 0.
    """
    for option, value in tolerance._asdict().items():
        if not value >= 0:
            raise ConfigError(f"tolerance: {option} = {value}; expected at least 0, in nats")
    if not words:
        raise GraphError(f"utterance {name!r}: the transcript is empty; expected at least one word")
    count, anything = len(words), (lexicon.silence_phone or 1,)
    unknown, replaced, begins = count, 2 * count, 3 * count  # tags behind positions; the last: first phones
    ways = []
    unspelled = np.zeros(count, np.bool_)
    can_replace = max(tolerance.replace, tolerance.other) < math.inf
    for position, written in enumerate(words):
        known, word = lexicon.known_form(written), bare(written, lexicon.letters) or written
        spelling = lexicon.spelled(word) if known is None else None
        if spelling is not None:
            own = [Way(spelling, 0.0, position, position)]
        elif known is not None or lexicon.oov is not None:
            own = ways_to_say(known or word, position, lexicon)
        else:
            own = [Way(anything, -tolerance.unknown, unknown + position, 0)]
            unspelled[position] = True
        if can_replace:
            own.append(Way(anything, -tolerance.replace, replaced + position, 0))
        ways.append([way._replace(first=begins + way.first) for way in own])

    # Where a word begins, by its end; words in a row that nobody can spell are left out as one.
    before = [0, *range(count)]
    for end in range(2, count + 1):
        if unspelled[end - 2 : end].all():
            before[end] = before[end - 1]
    price = np.concatenate([[0.0], np.cumsum(np.where(unspelled, 0.0, tolerance.skip))]).tolist()

    def jumps(place: int) -> list[tuple[int, float]]:
        found = [(place, 0.0)]
        if tolerance.skip < math.inf:
            behind, begin = {*range(max(0, place - _REACH), place)}, place
            for _ in range(_REACH):
                begin = before[begin]
                behind.add(begin)
            found += [(n, price[n] - price[place]) for n in sorted(behind - {place})]
        if tolerance.repeat < math.inf:
            found += [(place + n, -tolerance.repeat) for n in range(1, min(_REACH, count - place) + 1)]
        return found

    phones, tags, *_ = transcript_acceptor(ways, lexicon, jumps)
    made = numerator_of_phones(phones, tags, tuple(words), lexicon, tree, name=name)
    begin = made.arc_word >= begins
    tag = np.where(begin, made.arc_word - begins, made.arc_word)
    pdf, log_prob = made.fsa.pdf.copy(), made.fsa.log_prob.copy()
    is_unknown = (tag >= unknown) & (tag < unknown + count)
    pdf[is_unknown] = tree.num_pdfs + 1
    log_prob[is_unknown] -= UNKNOWN_COST
    is_replaced = (tag >= replaced) & (tag < replaced + count)
    said = np.where(is_replaced, NO_WORD, np.where(is_unknown, tag - unknown, tag)).astype(np.int32)
    fsa = replace(made.fsa, pdf=pdf, log_prob=log_prob)
    plain = Numerator(fsa, made.words, made.arc_phone, said, made.arc_is_start, begin)
    if tolerance.other == math.inf:
        return plain
    is_pause = tag == NO_WORD  # silence, or the blank of a topology
    return _with_filler(plain, tag, is_replaced, is_pause, tree.num_pdfs, tolerance.other, shortest_other)


class _Arc(NamedTuple):
    src: int
    dst: int
    log_prob: float
    begins: bool


def _with_filler(
    plain: Numerator,
    tag: npt.NDArray[np.integer],
    is_replaced: npt.NDArray[np.bool_],
    is_pause: npt.NDArray[np.bool_],
    filler: int,
    cost: float,
    shortest: int,
) -> Numerator:
    """Add stretches of the filler, of `shortest` frames or more.

    Args:
        plain: the graph.
        tag: [A], the same for all arcs of one stretch, and for those of all pauses.
        is_replaced: [A], arcs that the filler takes the place of.
        is_pause: [A], arcs that it stands next to, in turns with them.
        filler: its pdf.
        cost: of each of its frames.
        shortest: its frames at least.
    """
    fsa, tags = plain.fsa, tag.tolist()
    src, dst, weights = fsa.src.tolist(), fsa.dst.tolist(), fsa.log_prob.tolist()
    entering: list[list[int]] = [[] for _ in range(fsa.num_states)]
    leaving: list[list[int]] = [[] for _ in range(fsa.num_states)]
    for arc, (before, after) in enumerate(zip(src, dst, strict=True)):
        entering[after].append(arc)
        leaving[before].append(arc)

    is_entry = (plain.arc_is_start | ((plain.arc_phone == 0) & (fsa.src != fsa.dst))).tolist()

    def ways_into(end: int, own: int) -> Iterator[tuple[int, float]]:
        """The states from which the stretch `own` is entered on the way to its state `end`, with weights."""
        inside = [end]
        for state in inside:  # grows while it is read
            for arc in entering[state]:
                if tags[arc] != own:
                    continue
                if is_entry[arc]:
                    yield src[arc], weights[arc]
                elif src[arc] not in inside:
                    inside.append(src[arc])

    num_states = fsa.num_states
    added: list[_Arc] = []
    own_arcs = np.flatnonzero(is_replaced | is_pause).tolist()
    for end, own in sorted({(dst[arc], tags[arc]) for arc in own_arcs}):
        is_inside = fsa.final_log_prob[end] == -math.inf and all(tags[arc] == own for arc in leaving[end])
        if is_inside:
            continue
        begins = dict(ways_into(end, own))
        if own == NO_WORD:
            begins[end] = 0.0  # behind a pause, which may then go on
        # All frames but the last have a state of their own; the last of these may come again.
        chain = [*range(num_states, num_states + shortest - 1), end]
        num_states += shortest - 1
        added += [_Arc(state, chain[0], weight, True) for state, weight in begins.items()]
        added += [_Arc(before, after, 0.0, False) for before, after in pairwise(chain)]
        if shortest > 1:
            added.append(_Arc(chain[-2], chain[-2], 0.0, False))
        elif own != NO_WORD:
            added.append(_Arc(end, end, 0.0, False))
    kept, count = np.flatnonzero(~is_replaced), len(added)
    new_src, new_dst, new_log_prob, is_start = (np.array(column) for column in zip(*added, strict=True))
    own_begins = plain.arc_begins_word
    assert own_begins is not None
    return Numerator(
        Fsa(
            num_states,
            np.concatenate([fsa.src[kept], new_src]),
            np.concatenate([fsa.dst[kept], new_dst]),
            np.concatenate([fsa.pdf[kept], np.full(count, filler)]),
            np.concatenate([fsa.log_prob[kept], new_log_prob - cost]),
            np.concatenate([fsa.final_log_prob, np.full(num_states - fsa.num_states, -math.inf)]),
            fsa.start,
        ),
        plain.words,
        arc_phone=np.append(plain.arc_phone[kept], np.full(count, STAR_PHONE, np.int32)),
        arc_word=np.append(plain.arc_word[kept], np.full(count, NO_WORD, np.int32)),
        arc_is_start=np.append(plain.arc_is_start[kept], is_start),
        arc_begins_word=np.append(own_begins[kept], np.zeros(count, np.bool_)),
    )


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
                f"the {counted(len(ids), 'phone')} of the lexicon"
            )
        start = round(entry.start / frame_shift)
        end = max(start + 1, round((entry.start + entry.duration) / frame_shift))
        found.append(AlignedPhone(ids[entry.label], start, end))
    return found


class LongAligner:
    """The best path of network outputs that come in blocks through one long numerator, in memory that does not grow.

    The graph of the whole text is small; its trellis would be large. So the best path is sought window by window. A window
    begins in the state, at the frame, where the last one was left; its graph is all of the text that can be said, or
    skipped at a frame for each nat, within so many frames (the last window may skip all that is left), and its path may
    end anywhere. Of this path all but the last frames, the `lookahead`, are kept. Where the whole recording's best path
    agrees with each window's up to the lookahead, the result is the whole recording's best path.

    Recordings hold more than their text: applause, music, a sentence that nobody wrote down. Between words, where silence
    may stand, the path may also take the filler: in every frame the score of the best pdf, less a cost. A network that was
    trained on speech alone takes music or noise for whatever phone, as surely as speech; but no phone lasts so long. What
    is within a phone of more than `longest` frames, or a word of twice as many that nobody can spell, is none, and the
    window is searched again.

    A recording of T frames takes the time of T / (W - L) windows, each of W frames on a graph of about W phones, and
    memory for one window, 8 bytes a frame of the recording, and the text's graph.

    `numerator` is the graph of the whole text over pdfs 0..num_pdfs - 1 and the two behind them, as of
    `alignment_numerator`; `window` W, `lookahead` L and `longest` count output frames, 1 <= L < W; `name` is for messages.
    """

    __repr__ = brief_of("name")

    def __init__(
        self,
        numerator: Numerator,
        num_pdfs: int,
        *,
        window: int = 1200,
        lookahead: int = 400,
        longest: float = math.inf,
        name: str = "recording",
    ) -> None:
        if not 1 <= lookahead < window:
            raise ConfigError(f"window is {window}, lookahead {lookahead}; expected 1 <= lookahead < window")
        self._filler = num_pdfs
        self.numerator = numerator
        self.window, self.lookahead, self.name = window, lookahead, name
        fsa = self.numerator.fsa
        # How far a window may go: an arc takes a frame, one that skips or repeats words as many as its nats, so that
        # skipping does not lead further into the text than speaking fast does. Of arcs side by side the shortest.
        frames = np.maximum(1.0, -fsa.log_prob)
        order = np.lexsort((frames, fsa.dst, fsa.src))
        pairs = np.stack([fsa.src, fsa.dst])[:, order]
        first = order[np.flatnonzero(np.any(np.diff(pairs, prepend=-1) != 0, axis=0))]
        self._adjacency = sparse.csr_array(
            (frames[first], (fsa.src[first], fsa.dst[first])), shape=(fsa.num_states,) * 2
        )
        self._state, self._log_prob, self._done = fsa.start, 0.0, 0
        self._kept = np.zeros((0, num_pdfs + 2), np.float32)
        self._no_phone = np.zeros(0, np.bool_)  # which of these frames
        self._is_phone = np.ones(num_pdfs + 2, np.bool_)
        self._is_phone[[*fsa.pdf[numerator.arc_word == NO_WORD], num_pdfs]] = False
        self._longest = longest
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
        columns = [block[:, : self._filler], *[block.max(axis=1, keepdims=True)] * 2]
        self._kept = np.concatenate([self._kept, np.concatenate(columns, axis=1)])
        self._no_phone = np.concatenate([self._no_phone, np.zeros(len(block), np.bool_)])
        while len(self._kept) > self.window:
            self._align(self._kept[: self.window], self.window - self.lookahead)

    def finish(self) -> tuple[npt.NDArray[np.int32], float]:
        """Align what is left, up to the end of the text: an arc of `self.numerator.fsa` for each frame, and the score.

        DataError as `accept`; the text may be longer than the recording.
        """
        if len(self._kept):
            self._align(self._kept, len(self._kept), last=True)
        final = float(self.numerator.fsa.final_log_prob[self._state])
        if not self._done or final == -math.inf:
            raise AlignmentError(self._no_path(0))
        return np.concatenate(self._arcs), self._log_prob + final

    def alignment(self, phones: Sequence[str], timing: FrameTiming) -> Alignment:
        """`finish`, as words and phones; `phones` are `lexicon.phones`, `timing` says where output frames lie."""
        found = *self.finish(), self.margins()
        return alignment_of(self.numerator, *found, phones, timing, self.name, self._filler)

    def margins(self) -> Float32Array:
        """For each frame aligned so far, the score of its pdf minus that of the frame's best pdf: 0 or less, [T]."""
        return np.concatenate(self._margins)

    def _align(self, scores: Float32Array, keep: int, last: bool = False) -> None:
        """Find the best path of a window and append its first `keep` frames; it may end anywhere but in the last one."""
        whole = self.numerator.fsa
        final = whole.final_log_prob if last else np.zeros(whole.num_states)
        # The part of the graph that so many frames can pass; `origin` are its arcs' numbers in the whole.
        frames = len(scores)
        distance = csgraph.dijkstra(self._adjacency, unweighted=last, indices=self._state, limit=frames)
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
        while True:
            no_phone = self._no_phone[:frames]  # a view: more may be found
            heard: npt.NDArray[np.floating] = scores
            if no_phone.any():
                heard = scores - np.float32(_NO_PHONE) * np.outer(no_phone, self._is_phone)
            found = _best_arcs(part, heard, self.name, wrong)
            if found is None:
                raise AlignmentError(self._no_path(frames))
            arcs = origin[found[0]]
            if not self._find_no_phone(arcs):
                break
        arcs = arcs[:keep]
        spent = scores[np.arange(keep), whole.pdf[arcs]]
        self._log_prob += float(spent.sum(dtype=np.float64)) + float(whole.log_prob[arcs].sum())
        self._margins.append(spent - scores[:keep, self._filler])
        self._arcs.append(arcs.astype(np.int32))
        self._state = int(whole.dst[arcs[-1]])
        self._done += keep
        self._kept, self._no_phone = self._kept[keep:].copy(), self._no_phone[keep:].copy()

    def _find_no_phone(self, arcs: npt.NDArray[np.integer]) -> bool:
        """Mark what is within long phones of a path; whether any of it was not known before."""
        known = np.count_nonzero(self._no_phone)
        for _, _, first, length in self.numerator.phone_segments(arcs):
            pdf = self.numerator.fsa.pdf[arcs[first]]
            if length > self._longest * (1 + (pdf > self._filler)) and self._is_phone[pdf]:
                edge = math.ceil(_EDGE * self._longest)
                self._no_phone[first + edge : first + length - edge] = True
        return bool(np.count_nonzero(self._no_phone) > known)

    def _no_path(self, frames: int) -> str:
        words = self.numerator.words
        leaving = np.flatnonzero(self.numerator.fsa.src == self._state)
        position = max(self.numerator.arc_word[leaving].tolist(), default=len(words) - 1)
        where = " ".join(words[max(0, position - 2) : position + 3])
        return (
            f"recording {self.name!r}: no path through the {counted(frames, 'frame')} from {self._done} on, at word "
            f"{max(0, position)} of {len(words)} (... {where} ...); expected the text of the whole recording and no more"
        )
