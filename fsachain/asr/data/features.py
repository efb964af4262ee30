"""Acoustic features: log-mel filter banks or MFCC, by kaldi-native-fbank, equal to Kaldi's.

Frame t is centred (t + 1/2) * frame_shift_ms after the start of the utterance when `snip_edges` is off, which is the
default here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.audio import Perturbation, audio_identity, count_samples, read_audio, recorded_rate
from fsachain.asr.data.cuts import cut_features
from fsachain.asr.data.frames import (
    ContextStream,
    add_context,
    check_context,
    columns_with_context,
    stretch,
    stretched_frames,
)
from fsachain.asr.data.loudness import Loudness
from fsachain.asr.data.utterance import Cut, Fault, Utterance, UtteranceError, told_tried
from fsachain.asr.kaldi.archive import read_value
from fsachain.asr.kaldi.values import read_matrix, read_num_rows
from fsachain.errors import (
    ConfigError,
    DataError,
    added_option,
    check_choices,
    check_range,
    counted,
    require,
    warn_once,
)
from fsachain.files import read_npz, remove_partials, replacing

# Kaldi's features take samples as 16-bit integers; log energies shift by a constant otherwise.
SAMPLE_SCALE = 32768.0
FORMAT_VERSION = 1  # of cached features; raised when their meaning changes
ABANDONED_SECONDS = 86_400.0  # after so long nobody writes to a half-written file any more
UNKNOWN = -1  # number of frames
_SAMPLED = 20  # recordings whose headers tell the sample rate of all
_WIDE_BAND = 16_000  # Hz, from which on there are 80 filters
_MOST_FILTERS = 1 << 16
CHUNK = 64  # utterances per cached file: few files, and still enough pieces of work for many processes

Found = TypeVar("Found")
Progress = Callable[[int, int], None]  # told how many are done, and of how many


@dataclass(frozen=True)
class FeatureConfig:
    """How features are computed; the names are Kaldi's.

    Attributes:
        kind: "fbank" (log mel energies), "mfcc", or "archive": whatever the matrices of feats.scp hold.
        num_columns (columns): of these matrices, for "archive"; the options of other kinds do not matter then. 0: as many as
            they have.
        sample_rate (Hz): recordings at another rate are refused. 0: that of the recordings, see `fitted`.
        num_mel_bins (filters): filters of the bank. 0: 80 from 16 kHz on, 40 below.
        num_ceps (coefficients): coefficients kept for "mfcc"; Kaldi's "hires" features keep all, num_ceps = num_mel_bins.
        low_freq (Hz): lower edge of the first filter.
        high_freq (Hz): upper edge of the last filter; zero or negative counts down from half the sample rate.
        frame_length_ms (ms): analysis window.
        frame_shift_ms (ms): distance of frames; the unit of time of all frame counts.
        snip_edges: keep only frames whose window lies inside the signal. Off: ceil-like count, edges are mirrored.
        dither (amplitude of 16-bit samples): noise amplitude added to samples; 0 keeps features reproducible.
        deltas (derivatives): regression coefficients over time that are appended, as Kaldi's add-deltas does: 2 for deltas
            and delta-deltas. For features of any kind, those of feats.scp too.
        splice (frames): frames before and after each frame that stand next to it, after deltas.
    """

    kind: str = "fbank"
    num_columns: int = 0
    sample_rate: int = 0
    num_mel_bins: int = 0
    num_ceps: int = 40
    low_freq: float = 20.0
    high_freq: float = 0.0
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    snip_edges: bool = False
    dither: float = 0.0
    deltas: int = added_option(0)
    splice: tuple[int, int] = added_option((0, 0))

    def __post_init__(self) -> None:
        check_choices(self, kind=("fbank", "mfcc", "archive"))
        check_context(self.deltas, self.splice)
        check_range(self, "(0, 1e6]", "frame_length_ms", "frame_shift_ms")
        check_range(self, "[0, inf)", "sample_rate")
        check_range(self, f"[0, {_MOST_FILTERS}]", "num_mel_bins")
        check_range(self, "[0, inf)", "num_columns")
        if self.kind != "archive" and self.num_columns:
            raise ConfigError(
                f"num_columns is {self.num_columns} and kind {self.kind!r}; expected 0, or kind 'archive'"
            )
        most = self.num_mel_bins or self.num_ceps
        if self.kind == "mfcc" and not 0 < self.num_ceps <= most:
            raise ConfigError(f"num_ceps is {self.num_ceps}; expected 1 to num_mel_bins = {most}")
        if self.kind != "archive" and self.sample_rate:
            if self.sample_rate * 0.001 * self.frame_shift_ms < 1.0:  # which would never come to an end
                raise ConfigError(
                    f"frame_shift_ms is {self.frame_shift_ms}; expected a sample of {self.sample_rate} Hz or more"
                )
            self._check_filters()

    def _check_filters(self) -> None:
        """Refuse edges beyond the spectrum; tell of filters that hear nothing, whose columns never change."""
        nyquist, padded = self.sample_rate / 2, 1
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not 0 <= self.low_freq < high <= nyquist:
            raise ConfigError(
                f"low_freq is {self.low_freq:g}, high_freq {self.high_freq:g}; expected 0 <= low_freq < high_freq <= "
                f"{nyquist:g}, half the sample rate (from which a high_freq of 0 or less counts down)"
            )
        while padded < int(self.sample_rate * 0.001 * self.frame_length_ms):
            padded *= 2
        low, top = (1127.0 * math.log1p(edge / 700.0) for edge in (self.low_freq, high))
        edges = 700.0 * np.expm1(np.linspace(low, top, self.num_mel_bins + 2) / 1127.0)
        edges *= padded / self.sample_rate  # in lines of the spectrum; a filter hears those between its edges
        deaf = np.count_nonzero(np.floor(edges[:-2]) + 1 >= edges[2:])
        if deaf:
            warn_once(
                "filters",
                f"num_mel_bins is {self.num_mel_bins}, {deaf} of which lie between two lines of the spectrum, "
                f"{self.sample_rate / padded:g} Hz apart, and never change; fewer, or a longer frame_length_ms, hear more",
                UserWarning,
            )

    @property
    def num_features(self) -> int:
        """Columns of the feature matrix, deltas and spliced frames included; ConfigError as for `base_columns`."""
        return columns_with_context(self.base_columns, self.deltas, self.splice)

    @property
    def base_columns(self) -> int:
        """Columns before deltas and splicing; ConfigError where that is for recordings to say, see `fitted`."""
        if self.kind == "fbank" and not self.num_mel_bins:
            raise ConfigError("num_mel_bins is 0: expected a number, or `fitted` to recordings")
        if self.kind == "archive" and not self.num_columns:
            raise ConfigError("num_columns is 0: expected a number, or `fitted` to the matrices of feats.scp")
        return {"fbank": self.num_mel_bins, "mfcc": self.num_ceps, "archive": self.num_columns}[self.kind]

    @property
    def told(self) -> str:
        """What they are, in words: "40 fbank at 8000 Hz", or "39 columns: 13 of feats.scp, 2 deltas"."""
        base = self.base_columns
        if self.sample_rate and self.kind != "archive":
            own = f"{base} {self.kind} at {self.sample_rate} Hz"
        else:
            own = f"{base} of feats.scp"
        parts = [own]
        if self.deltas:
            parts.append(counted(self.deltas, "delta"))
        if any(self.splice):
            parts.append(f"spliced with {counted(self.splice[0], 'frame')} before and {self.splice[1]} after")
        whole = ", ".join(parts)
        if self.num_features != base:
            return f"{counted(self.num_features, 'column')}: {whole}"
        return whole if self.sample_rate and self.kind != "archive" else f"{counted(base, 'column')}"

    @property
    def loudness(self) -> Loudness | None:
        """How these features tell the level of a frame; None for "archive", whose columns may be anything."""
        if self.kind == "archive":
            return None
        base = self.base_columns
        cepstral = self.kind == "mfcc"
        scale = math.sqrt(self.num_mel_bins) if cepstral else 1.0
        return Loudness(self.num_features, cepstral, scale, base, base * (1 + self.deltas), self.splice[0])

    def fitted(self, utterances: Iterable[Utterance]) -> FeatureConfig:
        """With the sample rate that most recordings have, of some that are spread over all, and filters that suit it.

        Stored features have their own width. What is given stays; where nothing can be read, so does all.
        """
        known = self.num_columns if self.kind == "archive" else self.sample_rate and self.num_mel_bins
        if known:
            return self
        every = tuple(utterances)
        spread = range(0, len(every), max(1, len(every) // _SAMPLED))
        found: Counter[tuple[int, int]] = Counter()
        for place in dict.fromkeys([*spread, *range(len(every))]):
            if found.total() == _SAMPLED:
                break
            with suppress(ValueError, RuntimeError, OSError, EOFError):  # an UtteranceError is a ValueError
                found[self._sizes(every[place])] += 1
        if not found:
            return self
        ((rate, bins), _) = found.most_common(1)[0]
        if self.kind == "archive":
            return replace(self, num_columns=bins)
        return replace(self, sample_rate=rate, num_mel_bins=bins, num_ceps=min(self.num_ceps, bins))

    def _sizes(self, utterance: Utterance) -> tuple[int, int]:
        """Sample rate and filters for an utterance, or columns."""
        if has_stored(utterance, self):
            return self.sample_rate, self.num_mel_bins or _stored_matrix(utterance).shape[1]
        if self.kind == "archive":
            raise DataError(f"utterance {utterance.id!r} has no features in feats.scp")
        rate = self.sample_rate or recorded_rate(utterance)
        return rate, self.num_mel_bins or (80 if rate >= _WIDE_BAND else 40)

    def fingerprint(self) -> str:
        """A short hash that differs between any two configurations whose features differ before deltas and splicing."""
        options = {name: value for name, value in asdict(self).items() if name not in ("deltas", "splice")}
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def num_frames_of(num_samples: int, config: FeatureConfig) -> int:
    """Frames that `compute_features` makes of so many samples, as Kaldi counts them."""
    shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
    window = int(config.sample_rate * 0.001 * config.frame_length_ms)
    if config.snip_edges:
        return 0 if num_samples < window else 1 + (num_samples - window) // shift
    return (num_samples + shift // 2) // shift


class FeatureStream:
    """Filter banks or MFCC of one signal that comes in blocks.

    They equal those of the whole signal bit for bit, in memory that does not grow with it. Features of kind "archive" are
    not computed: ConfigError.
    """

    def __init__(self, config: FeatureConfig) -> None:
        if config.kind == "archive":
            raise ConfigError(
                "kind is 'archive': the features come from feats.scp; expected 'fbank' or 'mfcc' to use recordings"
            )
        if not (config.sample_rate and config.num_mel_bins):
            raise ConfigError(
                f"sample_rate is {config.sample_rate}, num_mel_bins {config.num_mel_bins}; expected those of the samples"
            )
        knf = require("kaldi_native_fbank", extra="recipes")
        options = knf.FbankOptions() if config.kind == "fbank" else knf.MfccOptions()
        frame, mel = options.frame_opts, options.mel_opts
        frame.samp_freq, frame.dither, frame.snip_edges = config.sample_rate, config.dither, config.snip_edges
        frame.frame_length_ms, frame.frame_shift_ms = config.frame_length_ms, config.frame_shift_ms
        mel.num_bins, mel.low_freq, mel.high_freq = config.num_mel_bins, config.low_freq, config.high_freq
        options.use_energy = False
        if config.kind == "mfcc":
            options.num_ceps = config.num_ceps
        self.config = config
        self._context = ContextStream(config.deltas, config.splice)
        self._extractor = (knf.OnlineFbank if config.kind == "fbank" else knf.OnlineMfcc)(options)
        self._returned = 0

    def accept(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next samples [L], in [-1, 1); returns the frames [T, F] that are complete now."""
        if len(samples):
            # The binding takes a list of Python floats faster than an array: 1.4 times for the whole call.
            scaled = (samples * np.float32(SAMPLE_SCALE)).tolist()
            self._extractor.accept_waveform(self.config.sample_rate, scaled)
        return self._context.accept(self._frames())

    def finish(self) -> NDArray[np.float32]:
        """The remaining frames [T, F], at the end of the signal."""
        self._extractor.input_finished()
        complete = self._context.accept(self._frames())
        return np.concatenate([complete, self._context.finish()]) if self._context.stages else complete

    def _frames(self) -> NDArray[np.float32]:
        ready = self._extractor.num_frames_ready
        frames = np.empty((ready - self._returned, self.config.base_columns), np.float32)
        for row, t in enumerate(range(self._returned, ready)):
            frames[row] = self._extractor.get_frame(t)
        self._extractor.pop(len(frames))
        self._returned = ready
        return frames


def compute_features(samples: NDArray[np.float32], config: FeatureConfig) -> NDArray[np.float32]:
    """Features float32 [T, config.num_features] of samples [L] in [-1, 1); T = 0 if L is below half a frame shift."""
    stream = FeatureStream(config)
    frames = stream.accept(samples)
    return np.concatenate([frames, stream.finish()]) if len(samples) else frames


def utterance_features(
    utterance: Utterance, config: FeatureConfig, perturbation: Perturbation | None = None
) -> NDArray[np.float32]:
    """Features of one utterance, float32 [T, F]: read from its Kaldi archive if it has one, else computed.

    Stored features of a lhotse manifest are taken for kind "archive", and where there is no recording. A change of speed
    stretches stored features in time. Volume and noise need a recording: DataError.
    """
    config = config.fitted([utterance])
    base = _base_features(utterance, config, perturbation or Perturbation())
    return add_context(base, config.deltas, config.splice)


def _base_features(
    utterance: Utterance, config: FeatureConfig, perturbation: Perturbation
) -> NDArray[np.float32]:
    """Features before deltas and splicing."""
    if not has_stored(utterance, config):
        if config.kind == "archive":
            raise utterance.unusable(
                "no recording", " has no features in feats.scp; expected some for 'archive'"
            )
        samples = read_audio(utterance, config.sample_rate)
        plain = replace(config, deltas=0, splice=(0, 0))
        return compute_features(perturbation.apply(samples, utterance.id), plain)
    for name, value, neutral in (
        ("perturbation.noise", perturbation.noise, None),
        ("perturbation.volume", tuple(perturbation.volume), (1.0, 1.0)),
    ):
        if value != neutral:
            told = "null" if neutral is None else list(neutral)
            raise DataError(
                f"utterance {utterance.id!r} comes as features, and {name} = {value} changes recordings; expected {told}, "
                "or recordings (wav.scp) without feats.scp; perturbation.speeds and the section augment work on features"
            )
    try:
        matrix = _stored_matrix(utterance)
    except (ValueError, RuntimeError, OSError, EOFError) as error:  # a DataError is a ValueError
        raise unreadable_features(utterance, error) from error
    if matrix.ndim != 2 or matrix.shape[1] != config.base_columns:
        raise utterance.unusable(
            "width of features",
            f": {utterance.feats!r} has shape {matrix.shape}, expected [frames, {config.base_columns}]",
        )
    return stretch(matrix, perturbation.speed)


def unreadable_features(utterance: Utterance, error: Exception) -> UtteranceError:
    is_missing = isinstance(error.__cause__, FileNotFoundError)
    tried = f"; {told_tried()}" if is_missing else ""
    return utterance.unusable("unreadable features", f": cannot read {utterance.feats!r}: {error}{tried}")


def has_stored(utterance: Utterance, config: FeatureConfig) -> bool:
    if utterance.feats is None:
        return False
    return utterance.feats_part is None or config.kind == "archive" or utterance.audio is None


def _stored_matrix(utterance: Utterance) -> NDArray[np.float32]:
    """The matrix of a lhotse cut, in a Shar tar, from a command, or at a Kaldi address."""
    part, address = utterance.feats_part, utterance.feats or ""
    if isinstance(part, Cut):
        return cut_features(part.text)
    if part is not None and part.kind == "npy":
        return np.load(io.BytesIO(part.read()), allow_pickle=False).astype(np.float32)
    if part is not None and part.kind == "llc":
        return np.array(require("lilcom", extra="lhotse").decompress(part.read()), np.float32)
    if part is not None:
        raise DataError("holds audio; expected features")
    if address.rstrip().endswith("|"):  # a command, which `DataDir.read` refuses unless allowed
        kaldi_native_io = require("kaldi_native_io", extra="recipes")
        return np.array(kaldi_native_io.FloatMatrix.read(address).numpy(), np.float32)
    return read_value(address, read_matrix).astype(np.float32)


# The cache: a chunk of utterances is one file, named by a hash of everything its content depends on (feature configuration,
# perturbation, identity of each recording), so no entry is ever updated. Files are renamed when all is written: any number
# of threads, processes and machines may fill one cache. A damaged file, which its CRC-32 tells, is computed anew.


def open_cache(folder: str | Path | None) -> None:
    """Make the folder, if there is to be one, and take out what killed writers left there."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        remove_partials(folder, older_than=ABANDONED_SECONDS)


def by_chunk(
    work: Callable[[tuple[Utterance, ...]], Found],
    utterances: Sequence[Utterance],
    *,
    num_workers: int,
    executor: Executor | None,
    progress: Progress | None = None,
) -> Iterator[Found]:
    """The results of `work` on chunks of the utterances, in order, by threads or the executor.

    Threads compute features mostly with the interpreter lock released.
    """
    if num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers}; expected at least 1")
    chunks = [tuple(utterances[i : i + CHUNK]) for i in range(0, len(utterances), CHUNK)]
    with nullcontext(executor) if executor is not None else ThreadPoolExecutor(num_workers) as pool:
        for number, found in enumerate(pool.map(work, chunks), start=1):
            if progress is not None:
                progress(min(number * CHUNK, len(utterances)), len(utterances))
            yield found


def load_chunk(
    utterances: tuple[Utterance, ...],
    config: FeatureConfig,
    perturbation: Perturbation,
    folder: str | Path | None,
) -> list[NDArray[np.float32]]:
    """Features of one chunk: from its file if that is sound, else computed and, with a folder, written there.

    The file holds them before deltas and splicing, which are quick to compute.
    """

    def complete(matrices: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        return [add_context(matrix, config.deltas, config.splice) for matrix in matrices]

    path, identities = None, audio_identities(utterances, config) if folder and not config.dither else None
    if folder is not None and identities is not None:
        content = (FORMAT_VERSION, config.fingerprint(), sorted(asdict(perturbation).items()), identities)
        path = Path(folder, f"{hashlib.sha256(repr(content).encode()).hexdigest()[:32]}.npz")
        frames, lengths = _kept(path, "frames", "lengths") or (np.zeros(0), np.zeros(0))
        fits = frames.ndim == 2 and lengths.ndim == 1 and lengths.sum() == len(frames)
        if fits and (lengths >= 0).all():
            return complete(np.split(frames, np.cumsum(lengths)[:-1]))
    features = [
        _base_features(utterance, config.fitted([utterance]), perturbation) for utterance in utterances
    ]
    if path is not None:
        lengths = np.array([len(one) for one in features], np.int64)
        with replacing(path) as file:
            np.savez(file, frames=np.concatenate(features), lengths=lengths)
    return complete(features)


def features_fault(utterance: Utterance, features: NDArray[np.float32]) -> Fault | None:
    """None if the features of the utterance have frames, are finite, and have something to be heard where words are."""
    if not len(features):
        return without_frames(utterance)
    if broken := not_finite(features):
        return utterance.unusable("features not finite", f": {broken}").fault
    if utterance.words and len(features) > 1 and (features == features[0]).all():
        words, place = counted(len(utterance.words), "word"), utterance.feats or utterance.audio
        reason = f": {words} in {place!r}, whose {counted(len(features), 'frame', verb='are')} all the same; expected speech"
        return utterance.unusable("digital silence", reason).fault
    return None


def without_frames(utterance: Utterance) -> Fault:
    kind = "empty audio" if utterance.feats is None else "no frames"
    return utterance.unusable(kind, f": {utterance.feats or utterance.audio!r} gives no frame").fault


def not_finite(features: NDArray[np.float32]) -> str:
    """Where features are not finite, in words; empty if they are."""
    if np.isfinite(features).all():
        return ""
    first = int(np.argmin(np.isfinite(features).all(axis=1)))
    return f"features are not finite, first in frame {first} of {len(features)}"


def audio_identities(utterances: Sequence[Utterance], config: FeatureConfig) -> list[str] | None:
    """Strings that change when the audio does; None where one is unknown (commands), and for stored features."""
    found = [None if has_stored(u, config) else audio_identity(u) for u in utterances]
    known = [identity for identity in found if identity is not None]
    return known if len(known) == len(found) else None


def _kept(path: Path, *names: str) -> list[NDArray[Any]] | None:
    """The arrays of these names in a file of the cache; None if it is not there, lacks one or is damaged."""
    try:
        content = read_npz(path)
        return [content[name] for name in names]
    except (DataError, KeyError):
        return None


def frame_counts(
    utterances: Sequence[Utterance],
    config: FeatureConfig,
    copies: Sequence[Perturbation] = (Perturbation(),),
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> tuple[NDArray[np.int32], list[Fault]]:
    """Frames of each utterance for each change of speed, int32 [copies, utterances], and faults; no features are computed.

    Segments and manifests that say where an utterance ends are believed; otherwise the header of the recording, or of the
    stored matrix, is read (by `num_workers` threads). Only a recording that a command makes is read in full. A header that
    cannot be read or another sampling rate is a fault, and its count is `UNKNOWN` (-1). `cache_dir` keeps the counts.
    """
    shape, path, config = (len(copies), len(utterances)), None, config.fitted(utterances)
    try:
        identities = None if cache_dir is None else audio_identities(utterances, config)
    except UtteranceError:
        identities = None
    if cache_dir is not None and identities is not None:
        content = repr((config.fingerprint(), [copy.speed for copy in copies])) + "".join(identities)
        path = Path(cache_dir, f"frames-{hashlib.sha256(content.encode()).hexdigest()[:32]}.npz")
        (kept,) = _kept(path, "counts") or (None,)
        if kept is not None and kept.shape == shape and kept.dtype == np.int32:
            return kept, []
    count = partial(_count_all, config=config, copies=copies)
    parts = by_chunk(count, utterances, num_workers=num_workers, executor=None, progress=progress)
    found = [pair for part in parts for pair in part]
    counts = np.array([numbers for numbers, _ in found], np.int32).reshape(shape[::-1]).T
    faults = [fault for _, fault in found if fault is not None]
    if path is not None and not faults:
        with replacing(path) as file:
            np.savez(file, counts=counts)
    return counts, faults


def _count_all(
    utterances: Sequence[Utterance], config: FeatureConfig, copies: Sequence[Perturbation]
) -> list[tuple[list[int], Fault | None]]:
    found: list[tuple[list[int], Fault | None]] = []
    for utterance in utterances:
        try:
            if has_stored(utterance, config):
                frames = _stored_frames(utterance, config)
                numbers = [stretched_frames(frames, copy.speed) for copy in copies]
            else:
                samples = count_samples(utterance, config.sample_rate)
                speeds = [Fraction(round(copy.speed * 100), 100) for copy in copies]  # as in `change_speed`
                numbers = [num_frames_of(math.ceil(samples / speed), config) for speed in speeds]
            found.append((numbers, None))
        except UtteranceError as error:
            found.append(([UNKNOWN] * len(copies), error.fault))
    return found


def _stored_frames(utterance: Utterance, config: FeatureConfig) -> int:
    part, address = utterance.feats_part, utterance.feats or ""
    if part is not None and part.num_frames is not None:
        return part.num_frames
    if part is not None or address.rstrip().endswith(("|", "]")):  # a command, or a range of rows
        return len(utterance_features(utterance, config))
    try:
        return read_value(address, read_num_rows)
    except (DataError, RuntimeError) as error:
        raise unreadable_features(utterance, error) from error
