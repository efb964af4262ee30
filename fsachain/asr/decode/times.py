"""How far times are from a reference, and boundaries that are finer than a network's frames.

A network sees half a second around each frame, so its phones may lie anywhere near where they are said, and its frames are
30 ms apart. `BoundaryModel` moves the boundaries of an alignment: each phone has a few states in a row, each state a
Gaussian of cepstra of 15 ms, 5 ms apart, learned from the alignments themselves by expectation and maximisation. Boundaries
are expected times, (7) summed over frames, on the chain of the alignment's states; phones and their order stay.

Words often reach into the silence next to them, in a network's alignment. So a pause may stand between any two words and
at the ends, whether or not the network heard one, and each that it heard may be absent.

Where one phone's states end and the other's begin, likelihood says only in part: it is the same if a state at the border of
two phones belongs to one of them or the other, as long as they stand side by side. So the boundaries of each pair of phones
are then shifted together, to where the cepstra change most in the mean over all places where the pair stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.asr.data.features import FeatureConfig, compute_features
from fsachain.asr.decode.align import OTHER, Alignment
from fsachain.asr.decode.ctm import CtmEntry, by_utterance
from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.errors import DataError, brief, counted
from fsachain.files import read_npz, replacing
from fsachain.fsa import Floats, Fsa
from fsachain.table import TransitionTable, compile_table

Samples = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
SHIFT, WINDOW = 0.005, 0.015  # seconds
STATES = 4  # of a phone
REACH = 0.1  # seconds that a boundary of two phones may move
PAUSE_REACH = 0.5  # seconds that the edge of a pause may move
PAUSE_COST = 5.0  # nats of each pause; with 0 more closures of stops pass for one
SHORTEST_PAUSE = 0.05  # seconds; what is shorter is a part of the words around it
ITERATIONS = 6
SPAN = 3  # steps before and after a time, whose cepstra are compared
FURTHEST = 5  # steps that the boundaries of a pair are shifted at most
LEAST_SECONDS, MOST_SECONDS = 60.0, 3600.0  # of speech that a model is learned from
PIECE_SECONDS = 20.0, 40.0  # of speech whose states are held at once
_FEWEST = 40.0  # frames of a state with a Gaussian of its own
_FEWEST_PAIRS = 20  # places where a pair stands whose boundaries are shifted
_FORMAT = "fsachain-boundaries-2"
BOUNDARIES = "boundaries.npz"  # beside alignments, or beside a model
_ARRAYS = "means", "precisions", "log_dets", "shifts"


class BoundaryErrors(NamedTuple):
    """Found times minus those of the reference, in seconds, of as many starts as ends."""

    starts: Floats
    ends: Floats

    def __repr__(self) -> str:
        return brief(self)

    def __str__(self) -> str:
        if not len(self.starts):
            return "none to compare"
        size = 1000.0 * np.abs(np.concatenate([self.starts, self.ends]))
        within = ", ".join(f"{100 * np.mean(size <= limit):.1f}" for limit in (10, 20, 50))
        return (
            f"{size.mean():.1f} ms off in the mean, {np.median(size):.1f} in the median, {within} % within 10, 20, 50 ms; "
            f"starts {1000 * self.starts.mean():+.1f} ms, ends {1000 * self.ends.mean():+.1f} ms ({len(self.starts)})"
        )


def boundary_errors(
    reference: Mapping[str, Iterable[CtmEntry]],
    found: Mapping[str, Iterable[CtmEntry]],
    silence: str | None = None,
) -> dict[str, BoundaryErrors]:
    """Errors of "words" and of "phones", the names of both arguments' tiers.

    Words are compared in utterances where both have the same ones; phones in these words where both have as many, whatever
    their names. `silence` is no phone.
    """
    (words, phones), (own_words, own_phones) = (
        [by_utterance(tiers.get(name, ())) for name in ("words", "phones")] for tiers in (reference, found)
    )
    pairs: dict[str, list[tuple[CtmEntry, CtmEntry]]] = {"words": [], "phones": []}
    for name, here in own_words.items():
        there = words.get(name, [])
        if [word.label for word in here] != [word.label for word in there]:
            continue
        for left, right in zip(there, here, strict=True):
            pairs["words"].append((left, right))
            inside = [_inside(left, phones.get(name, ())), _inside(right, own_phones.get(name, ()))]
            inside[1] = [phone for phone in inside[1] if phone.label != silence]
            if len(inside[0]) == len(inside[1]):
                pairs["phones"] += zip(*inside, strict=True)
    return {
        name: BoundaryErrors(
            np.array([right.start - left.start for left, right in rows]),
            np.array([right.start + right.duration - left.start - left.duration for left, right in rows]),
        )
        for name, rows in pairs.items()
    }


def _inside(word: CtmEntry, phones: Sequence[CtmEntry]) -> list[CtmEntry]:
    """The phones whose middle lies in the word."""
    return [one for one in phones if 0.0 <= one.start + 0.5 * one.duration - word.start < word.duration]


@dataclass(frozen=True)
class BoundaryModel:
    """Gaussians for the S states of each of P phones.

    Attributes:
        phones: their names; silence, and what is no phone, among them.
        sample_rate: Hz, of the samples that it was learned from.
        means, precisions, log_dets: [P, S, D], [P, S, D, D], and [P, S], the log-determinants of the precisions.
        shifts: [P, P] seconds, of the boundaries between a phone and the next.
        silence: which of the phones may stand, or not, between words; "" for none, as in files of earlier versions.
    """

    phones: tuple[str, ...]
    sample_rate: int
    means: Floats
    precisions: Floats
    log_dets: Floats
    shifts: Floats
    silence: str = ""

    __repr__ = brief

    @classmethod
    def fit(
        cls,
        spoken: Iterable[tuple[Iterable[Samples], Alignment]],
        sample_rate: int,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> BoundaryModel:
        """Learn from alignments that are `ok` and the samples [L] of each, in blocks; an hour of them is used at most.

        `progress` is called with (iterations done, iterations in all). DataError: less than a minute, from which times get
        worse: few phones have been heard in few places.
        """
        unnamed, quiet, seconds = list[_Piece](), dict[str, float](), 0.0
        for blocks, alignment in spoken:
            for label, length in _outside_words(alignment).items():
                quiet[label] = quiet.get(label, 0.0) + length
            for piece in _pieces(blocks, sample_rate, _segments(alignment)) if alignment.ok else ():
                if seconds > MOST_SECONDS:
                    break
                unnamed.append(piece)
                seconds += piece.edges[-1]
        if seconds < LEAST_SECONDS:
            raise DataError(
                f"{seconds:.1f} s of aligned speech to learn boundaries from; expected at least {LEAST_SECONDS:g}"
            )
        silence = max(quiet.keys() - {OTHER}, key=lambda label: quiet[label], default="")
        pieces = [piece._replace(segments=piece.segments.named(silence)) for piece in unnamed]
        names = sorted({label for piece in pieces for label in piece.labels})

        def learned(model: BoundaryModel | None) -> BoundaryModel:
            """From the occupancies under `model`; without one, states divide each stretch evenly."""
            sums = _Sums(len(names), pieces[0].features.shape[1])
            for piece in pieces:
                chain = np.array([names.index(label) for label in piece.labels])
                if model is None:
                    sums.add(piece.features, chain, _even(len(piece.features), piece.edges))
                elif (occupancy := model._occupancy(piece)) is not None:
                    sums.add(piece.features, chain, occupancy)
            return cls(
                tuple(names), sample_rate, *sums.gaussians(), np.zeros((len(names), len(names))), silence
            )

        model = learned(None)
        for iteration in range(ITERATIONS):
            progress(iteration + 1, 1 + ITERATIONS)
            model = learned(model)
        progress(1 + ITERATIONS, 1 + ITERATIONS)
        shifts = model._greatest_changes(pieces)
        # A sound that dies away in silence changes most before its end, which is found half way.
        shifts[:, [names.index(label) for label in quiet.keys() & {*names}]] *= 0.5
        return replace(model, shifts=shifts)

    def _greatest_changes(self, pieces: Iterable[_Piece]) -> Floats:
        """`shifts` [P, P], from the boundaries that the model itself finds; 0 for pairs that are seldom heard."""
        size, steps = len(self.phones), np.arange(-FURTHEST, FURTHEST + 1)
        sums, count = np.zeros((size, size, len(steps))), np.zeros((size, size))
        for piece in pieces:
            found = self._moved(piece)
            if found is not None:
                there, edges = found
                chain = np.array([self.phones.index(piece.labels[place]) for place in there])
                times = edges[1:-1, None] / SHIFT + steps
                change = _change(piece.features)
                np.add.at(sums, (chain[:-1], chain[1:]), np.interp(times, np.arange(len(change)), change))
                np.add.at(count, (chain[:-1], chain[1:]), 1.0)
        best = np.clip(sums.argmax(axis=2), 1, len(steps) - 2)
        left, top, right = (np.take_along_axis(sums, best[..., None] + k, 2)[..., 0] for k in (-1, 0, 1))
        known = (count >= _FEWEST_PAIRS) & (top > left) & (top > right)
        # The parabola through the greatest value and its neighbours.
        bend = np.where(known, left - 2 * top + right, 1.0)
        return np.where(known, SHIFT * (best - FURTHEST + 0.5 * (left - right) / bend), 0.0)

    def refine(self, blocks: Iterable[Samples], alignment: Alignment) -> Alignment:
        """The same alignment with boundaries moved by at most 0.1 s; samples [L] at the model's rate, in blocks of any size.

        Memory is that of half a minute. Beside what the model never heard boundaries stay; times that are no boundary of
        phones keep their place between those that are.
        """
        if not alignment.phones:
            return alignment
        segments = _segments(alignment).named(self.silence)
        moved = _Moved(segments)
        for piece in _pieces(blocks, self.sample_rate, segments):
            for part in self._heard(piece):
                found = self._moved(part)
                if found is not None:
                    moved.take(part, *found)
        return moved.alignment(alignment) if moved.any else alignment

    def _heard(self, piece: _Piece) -> Iterator[_Piece]:
        """The stretches of the piece that hold nothing but phones of the model."""
        end = 0
        for known, run in groupby(piece.labels, self.phones.__contains__):
            first, end = end, end + len(list(run))
            if known and end > first + 1:
                begin, stop = np.rint(piece.edges[[first, end]] / SHIFT).astype(int).tolist()
                frames = piece.features[begin : None if end == len(piece.labels) else stop]
                own = piece.segments.part(first, end, begin * SHIFT)
                yield _Piece(piece.start + begin * SHIFT, piece.number + first, own, frames)

    def _moved(self, piece: _Piece) -> tuple[Numbers, Floats] | None:
        """Which segments of the piece are there, in order, and their new edges, one more; None as `_occupancy`."""
        occupancy = self._occupancy(piece)
        if occupancy is None:
            return None
        lengths = SHIFT * occupancy.sum(axis=0).reshape(len(piece.labels), STATES).sum(axis=1)
        starts = piece.edges[0] + np.concatenate([[0.0], np.cumsum(lengths)])
        is_there = ~piece.optional | (lengths >= SHORTEST_PAUSE)
        there = np.flatnonzero(is_there)
        # Its neighbours share the little time of a pause that is not there.
        behind = starts[there[1:] - 1 + is_there[there[1:] - 1]]
        begin = 0.5 * (behind + starts[there[1:]])
        edges = np.concatenate([piece.edges[:1], begin, piece.edges[-1:]])
        # Something is left of every phone.
        room, old = 0.4 * np.diff(edges), piece.edges[there[1:]]
        is_pause = piece.optional[there]
        near_pause = is_pause[1:] | is_pause[:-1] | (np.diff(there) > 1)
        reach = np.where(near_pause, PAUSE_REACH, REACH)
        least, most = np.maximum(begin - room[:-1], old - reach), np.minimum(begin + room[1:], old + reach)
        chain = [self.phones.index(piece.labels[place]) for place in there]
        edges[1:-1] = np.clip(begin + self.shifts[chain[:-1], chain[1:]], least, most)
        return there, edges

    def _occupancy(self, piece: _Piece) -> Floats | None:
        """[T, K S] of the states of the piece's phones; None where one is out of reach of its edges."""
        labels, edges, features = piece.labels, piece.edges, piece.features
        chain = [self.phones.index(label) for label in labels]
        scores = np.full((len(features), len(chain), STATES), -np.inf)
        times = SHIFT * (0.5 + np.arange(len(features)))
        # A pause at an end may be absent, and then what comes next begins there.
        first_inner = 1 + int(piece.optional[0])
        last_inner = len(chain) - 2 - int(piece.optional[-1])
        reach = np.where(piece.optional, PAUSE_REACH, REACH)
        firsts = np.searchsorted(times, edges[:-1] - reach)
        lasts = np.searchsorted(times, edges[1:] + reach)
        firsts[:first_inner], lasts[last_inner + 1 :] = 0, len(times)
        for place, (phone, first, last) in enumerate(zip(chain, firsts, lasts, strict=True)):
            for state in range(STATES):
                off = features[first:last] - self.means[phone, state]
                distance = np.einsum("td,td->t", off @ self.precisions[phone, state], off)
                scores[first:last, place, state] = 0.5 * (self.log_dets[phone, state] - distance)
        flat = scores.reshape(1, len(features), -1)
        table = _chain(tuple(piece.optional.tolist()))
        found = forward_backward(TableBatch.share(table, 1), flat)
        return np.asarray(found.occupancy[0]) if bool(found.ok[0]) else None

    def save(self, path: str | os.PathLike[str]) -> None:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with replacing(path) as file:
            np.savez(
                file,
                format=_FORMAT,
                phones=np.array(self.phones),
                sample_rate=self.sample_rate,
                silence=self.silence,
                **arrays,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BoundaryModel:
        """DataError where the file is no such model."""
        names = ("format", "phones", "sample_rate", *_ARRAYS)  # earlier versions had no silence
        found = read_npz(path, (*names, "silence"))
        if set(names) - set(found) or str(found["format"]) != _FORMAT:
            raise DataError(
                f"{path}: not a model of boundaries that this fsachain wrote; `fsachain align` makes one anew"
            )
        phones, size = tuple(found["phones"].tolist()), found["means"].shape[-1:]
        shape = len(phones), STATES
        arrays = [np.asarray(found[name], np.float64) for name in names[3:]]
        if [x.shape for x in arrays] != [(*shape, *size), (*shape, *size, *size), shape, shape[:1] * 2]:
            raise DataError(
                f"{path}: arrays of {[one.shape for one in arrays]} do not fit {counted(len(phones), 'phone')}"
            )
        silence = str(found.get("silence", ""))
        if silence and silence not in phones:
            raise DataError(
                f"{path}: silence is {silence!r}; expected one of its {counted(len(phones), 'phone')}"
            )
        means, precisions, log_dets, shifts = arrays
        return cls(phones, int(found["sample_rate"]), means, precisions, log_dets, shifts, silence)

    @classmethod
    def beside(cls, model: Path | None) -> BoundaryModel | None:
        """The boundaries.npz in the folder of a model, if there is one."""
        path = None if model is None else model.with_name(BOUNDARIES)
        return cls.load(path) if path is not None and path.is_file() else None


class _Sums:
    """Sums over frames, weighted by occupancies: of ones, of features, of their products."""

    def __init__(self, num_phones: int, size: int) -> None:
        self.count = np.zeros((num_phones, STATES))
        self.first = np.zeros((num_phones, STATES, size))
        self.second = np.zeros((num_phones, STATES, size, size))

    def add(self, features: Floats, chain: npt.NDArray[np.int64], occupancy: Floats) -> None:
        for column, weights in enumerate(occupancy.T):
            frames = np.flatnonzero(weights > 1e-4)
            place = int(chain[column // STATES]), column % STATES
            own, weighted = features[frames], features[frames] * weights[frames, None]
            self.count[place] += weights[frames].sum()
            self.first[place] += weighted.sum(axis=0)
            self.second[place] += weighted.T @ own

    def gaussians(self) -> tuple[Any, Any, Any]:
        """Means, precisions and log-determinants; a tenth of each covariance is the variance of all frames."""
        total = self.count.sum()
        mean = self.first.sum(axis=(0, 1)) / total
        whole = self.second.sum(axis=(0, 1)) / total - np.outer(mean, mean)
        count = np.maximum(self.count, 1e-9)[..., None]
        means = self.first / count
        spread = self.second / count[..., None] - means[..., :, None] * means[..., None, :]
        floor = np.diag(np.diag(whole))
        covariances = 0.9 * spread + 0.1 * floor + 1e-3 * np.eye(len(mean))
        few = self.count < _FEWEST
        means[few], covariances[few] = mean, whole + 1e-3 * np.eye(len(mean))
        return means, np.linalg.inv(covariances), -np.linalg.slogdet(covariances)[1]


def _cepstra(samples: Samples, sample_rate: int) -> Floats:
    """[T, 26]: thirteen cepstra and their slopes over 40 ms, normalised over the utterance."""
    config = FeatureConfig(
        kind="mfcc",
        sample_rate=sample_rate,
        num_mel_bins=23,
        num_ceps=13,
        frame_shift_ms=1000 * SHIFT,
        frame_length_ms=1000 * WINDOW,
    )
    plain = compute_features(samples, config).astype(np.float64)
    plain = (plain - plain.mean(axis=0)) / (plain.std(axis=0) + 1e-3)
    padded = np.pad(plain, ((4, 4), (0, 0)), mode="edge")
    steps = range(1, 5)
    slopes = sum(k * (padded[4 + k :][: len(plain)] - padded[4 - k :][: len(plain)]) for k in steps)
    return np.concatenate([plain, slopes * (3.0 / (2 * sum(k * k for k in steps)))], axis=1)


def _change(features: Floats) -> Floats:
    """[T + 1]: before each frame, and after the last, how far the mean cepstra of some frames after and before are apart."""
    sums = np.concatenate([np.zeros((1, 13)), np.cumsum(features[:, :13], axis=0)])
    means = (sums[SPAN:] - sums[:-SPAN]) / SPAN
    change = np.zeros(len(sums))
    change[SPAN : len(sums) - SPAN] = np.linalg.norm(means[SPAN:] - means[:-SPAN], axis=1)
    return change


@dataclass(frozen=True)
class _Segments:
    """What stands in a row: phones, silences, and stretches without a phone.

    labels: K of them; edges [K + 1]: where they begin and end, in seconds; optional [K]: which may be absent. A pause that
    was not heard has no length, and the label `_PAUSE` as long as the name of silence is not known.
    """

    labels: list[str]
    edges: Floats
    optional: npt.NDArray[np.bool_]

    def named(self, silence: str) -> _Segments:
        """The segments in which pauses have the label `silence`; without one, no segment may be absent."""
        labels = [silence if label == _PAUSE else label for label in self.labels]
        kept = np.array([bool(label) for label in labels])
        is_silence = np.array([bool(label) and label == silence for label in labels])
        edges = np.append(self.edges[:-1][kept], self.edges[-1:])
        return _Segments([label for label in labels if label], edges, (self.optional & is_silence)[kept])

    def part(self, first: int, end: int, start: float) -> _Segments:
        """Those from `first` to before `end`, with times that count from `start`."""
        return _Segments(
            self.labels[first:end], self.edges[first : end + 1] - start, self.optional[first:end]
        )


_PAUSE = ""


def _segments(alignment: Alignment) -> _Segments:
    """Those of an alignment, with pauses between any two words that touch, and at the ends."""
    heard, times = _stretches(alignment)
    word = _word_numbers(alignment, times).tolist()
    labels: list[str] = []
    starts: list[float] = []
    is_inside: list[bool] = []

    def add(label: str, start: float, inside: bool) -> None:
        labels.append(label)
        starts.append(start)
        is_inside.append(inside)

    for place, label in enumerate(heard):
        touches = word[place] >= 0 and (
            place == 0 or (word[place - 1] >= 0 and word[place - 1] != word[place])
        )
        if touches and OTHER not in (label, heard[max(0, place - 1)]):
            add(_PAUSE, float(times[place]), False)
        add(label, float(times[place]), word[place] >= 0)
    if heard and word[-1] >= 0 and heard[-1] != OTHER:
        add(_PAUSE, float(times[-1]), False)
    # What is next to something else is not moved far.
    is_other = np.array([False, *(label == OTHER for label in labels), False])
    near_other = is_other[:-2] | is_other[1:-1] | is_other[2:]
    return _Segments(labels, np.append(starts, times[-1]), ~np.array(is_inside, np.bool_) & ~near_other)


def _stretches(alignment: Alignment) -> tuple[list[str], Floats]:
    """The labels of all stretches in order, those without a phone too, and the times between them, with both ends."""
    labels: list[str] = []
    edges = [0.0]
    for entry in alignment.phones:
        if entry.start > edges[-1] + 1e-4:
            labels.append(OTHER)
            edges.append(entry.start)
        labels.append(entry.label)
        edges.append(entry.start + entry.duration)
    if alignment.seconds > edges[-1] + 1e-4:
        labels.append(OTHER)
        edges.append(alignment.seconds)
    return labels, np.array(edges)


class _Piece(NamedTuple):
    """A stretch of a recording that begins at `start`, in seconds, and with the segment `number` of the recording.

    The edges of its `segments` count from `start`; features [T, D].
    """

    start: float
    number: int
    segments: _Segments
    features: Floats

    @property
    def labels(self) -> list[str]:
        return self.segments.labels

    @property
    def edges(self) -> Floats:
        return self.segments.edges

    @property
    def optional(self) -> npt.NDArray[np.bool_]:
        return self.segments.optional


def _pieces(blocks: Iterable[Samples], sample_rate: int, segments: _Segments) -> Iterator[_Piece]:
    """The recording in pieces of half a minute; all between the middles of two long phones or silences."""
    edges = segments.edges
    rest, heard = iter(blocks), np.zeros(0, np.float32)
    start, end, fewest, most = 0.0, float(edges[-1]), *PIECE_SECONDS
    first = 0
    while start < end:
        cut, last = end, len(segments.labels) - 1
        if end - start > most:
            # What of each label lies where a piece may end; the longest is cut in its middle.
            inside = np.clip(edges, start + fewest, min(start + most, end - fewest))
            last = int(np.diff(inside).argmax())
            cut = float(inside[last : last + 2].mean())
        count = round(cut * sample_rate) - round(start * sample_rate)
        while (cut == end or len(heard) < count) and (block := next(rest, None)) is not None:
            heard = np.concatenate([heard, block])
        own, heard = np.split(heard, [len(heard) if cut == end else count])
        labels, optional = segments.labels[first : last + 1], segments.optional[first : last + 1].copy()
        # Of a segment that is cut both parts are there.
        optional[[0, -1]] &= np.array([start == 0.0, cut == end])
        inner = np.concatenate([[start], edges[first + 1 : last + 1], [cut]]) - start
        yield _Piece(start, first, _Segments(labels, inner, optional), _cepstra(own, sample_rate))
        start, first = cut, last


class _Moved:
    """New times of the segments of an alignment."""

    def __init__(self, segments: _Segments) -> None:
        self.segments = segments
        self.starts, self.ends = segments.edges[:-1].copy(), segments.edges[1:].copy()
        self.is_there = segments.edges[1:] > segments.edges[:-1]
        self.any = False

    def take(self, piece: _Piece, there: Numbers, edges: Floats) -> None:
        """The new times of a piece: which of its segments are there, and their edges."""
        self.any = True
        count, own, times = len(piece.labels), piece.number + there, piece.start + edges
        self.is_there[piece.number : piece.number + count] = False
        self.is_there[own] = True
        # The outer edges of a piece stay, unless a pause there is absent.
        first, last = int(there[0] == 0), len(there) - int(there[-1] == count - 1)
        self.starts[own[first:]] = times[first:-1]
        self.ends[own[:last]] = times[1 : last + 1]

    def alignment(self, before: Alignment) -> Alignment:
        """The alignment with these times; times between those of segments keep their place among them."""
        labels, edges = self.segments.labels, self.segments.edges
        fixed = ~self.segments.optional
        old_starts, old_ends = edges[:-1][fixed], edges[1:][fixed]
        new_start = dict(zip(map(_key, old_starts.tolist()), self.starts[fixed].tolist(), strict=True))
        new_end = dict(zip(map(_key, old_ends.tolist()), self.ends[fixed].tolist(), strict=True))
        old = np.concatenate([old_starts, old_ends])
        shift = np.concatenate([self.starts[fixed], self.ends[fixed]]) - old
        order = np.argsort(old, kind="stable")

        def moved(time: float, known: Mapping[int, float]) -> float:
            return known.get(_key(time), time + float(np.interp(time, old[order], shift[order])))

        def at_new(entry: CtmEntry) -> CtmEntry:
            start = moved(entry.start, new_start)
            end = moved(entry.end, new_end)
            return CtmEntry.between(entry.utterance, start, end, entry.label, entry.confidence)

        heard = {(_key(phone.start), phone.label): phone for phone in before.phones}
        phones = []
        for place in np.flatnonzero(self.is_there).tolist():
            phone = heard.get((_key(edges[place]), labels[place]))
            if phone is None and labels[place] == OTHER:
                continue
            start, end = float(self.starts[place]), float(self.ends[place])
            confidence = 1.0 if phone is None else phone.confidence
            label = labels[place] if phone is None else phone.label
            phones.append(CtmEntry.between(before.utterance, start, end, label, confidence))
        words, other = tuple(map(at_new, before.words)), tuple(map(at_new, before.other))
        return replace(before, words=words, phones=tuple(phones), other=other)


def _word_numbers(alignment: Alignment, edges: Floats) -> Numbers:
    """Of each stretch between two edges the number of the word that has its middle, or -1."""
    starts = np.array([word.start for word in alignment.words])
    ends = np.array([-np.inf, *(word.start + word.duration for word in alignment.words)])
    middles = 0.5 * (edges[1:] + edges[:-1])
    number = np.searchsorted(starts, middles, side="right") - 1
    return np.where(middles < ends[number + 1], number, -1)


def _outside_words(alignment: Alignment) -> dict[str, float]:
    """The labels of stretches that no word has, with seconds."""
    labels, edges = _stretches(alignment)
    seconds: dict[str, float] = {}
    for place in np.flatnonzero(_word_numbers(alignment, edges) < 0).tolist():
        seconds[labels[place]] = seconds.get(labels[place], 0.0) + float(edges[place + 1] - edges[place])
    return seconds


def _key(time: float) -> int:
    """In steps of 0.1 ms: equal times from different sums have one."""
    return round(10_000 * time)


def _even(num_frames: int, edges: Floats) -> Floats:
    """The occupancy [T, K S] of states that divide each stretch evenly."""
    parts = [np.linspace(left, right, STATES, endpoint=False) for left, right in pairwise(edges)]
    starts = np.concatenate(parts)
    state = np.searchsorted(starts, SHIFT * (0.5 + np.arange(num_frames)), side="right") - 1
    return np.asarray(state[:, None] == np.arange(len(starts)), np.float64)


@lru_cache(maxsize=1024)
def _chain(optional: tuple[bool, ...]) -> TransitionTable:
    """A chain of states that each take one frame or more, `STATES` for each stretch; pdf k is that of state k.

    Stretches that are `optional` may be left out; to enter one costs `PAUSE_COST`.
    """
    num_states = STATES * len(optional)
    places = np.arange(num_states)
    final = np.full(num_states + 1, -np.inf)
    final[-1] = 0.0
    before = STATES * np.flatnonzero(optional)
    into = before[before + STATES < num_states] + STATES  # the first states behind them
    if optional[-1]:
        final[before[-1]] = 0.0
    src = np.concatenate([places, places + 1, into - STATES])
    dst = np.concatenate([places + 1, places + 1, into + 1])
    log_prob = np.zeros(len(src))
    log_prob[before] = -PAUSE_COST
    fsa = Fsa(num_states + 1, src, dst, np.concatenate([places, places, into]), log_prob, final)
    return compile_table(fsa, num_states)
