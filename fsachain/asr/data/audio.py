"""Recordings as arrays, read by soundfile: utterances of a corpus, and recordings of any length, block by block.

Samples are float32 in [-1, 1). Utterances are cut out, speed, volume and noise are changed; one at another rate than
the features are configured for is an error. A `Recording`, which a model is used on, is resampled; memory holds one block.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.cuts import MAX_SECONDS, cut_identity, cut_rate, cut_samples
from fsachain.asr.data.utterance import Cut, Member, Utterance, UtteranceError, is_command, told_tried
from fsachain.errors import ConfigError, DataError, as_number, counted, require

_BLOCK = 1 << 17  # samples of all channels that are read at once
BLOCK_SECONDS = 30.0  # of a `Recording`
_LARGEST_BLOCK = 1 << 23  # samples of all channels
RATES = (1_000, 768_000)  # Hz, lowest and highest: a header can claim any, and the filter grows with it
_ADDRESS = re.compile(r"(.+):\d+", re.DOTALL)
_CUT_SHORT = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_STREAMED = 0x7F000000  # bytes that a header claims which was written before the length was known, or more
_STEPS = 32768  # of a 16-bit file, from 0 to 1
_HALF_WIDTH = 10  # of the resampling filter, in samples of the lower rate: that of scipy.signal.resample_poly
_KAISER_BETA = 5.0


@dataclass(frozen=True)
class Perturbation:
    """A change made to the audio before features are computed; the default changes nothing.

    Attributes:
        speed: playing speed; 0.9 is slower, longer and lower in pitch (Ko et al., Interspeech 2015). Up to
            two decimals.
        volume: the gain is drawn once per utterance, uniformly on a log scale, between these two.
        seed: seed of what is drawn; it also depends on the utterance id, the speed and whether there is noise, and on
            nothing else.
        noise: the signal-to-noise ratio of an utterance is drawn between these two, in dB, uniformly; None: none is
            added. See `add_noise`.
    """

    speed: float = 1.0
    volume: tuple[float, float] = (1.0, 1.0)
    seed: int = 0
    noise: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= as_number("speed", self.speed) <= 2.0:
            raise ConfigError(f"speed is {self.speed}; expected 0.5 to 2.0")
        if len(self.volume) != 2 or not 0.0 < self.volume[0] <= self.volume[1]:
            raise ConfigError(f"volume is {self.volume}; expected a positive lowest and highest gain")
        if self.noise is not None and not (len(self.noise) == 2 and self.noise[0] <= self.noise[1]):
            raise ConfigError(
                f"noise is {self.noise}; expected a lowest and a highest ratio in dB, or neither"
            )

    @property
    def prefix(self) -> str:
        """What the ids of perturbed copies begin with: '' or, for instance, 'sp0.9-' or 'sp0.9-noisy-'."""
        return ("" if self.speed == 1.0 else f"sp{self.speed:g}-") + ("noisy-" if self.noise else "")

    def apply(self, samples: NDArray[np.float32], utterance_id: str) -> NDArray[np.float32]:
        """Change speed, noise and volume of the samples [L] of one utterance; L becomes ceil(L / speed)."""
        samples = change_speed(samples, self.speed)
        low, high = self.volume
        if low == high == 1.0 and not self.noise:
            return samples
        generator = seeded_generator(self.seed, self.prefix + utterance_id)
        draw = generator.uniform(np.log(low), np.log(high))
        if self.noise and len(samples):
            samples = add_noise(samples, float(generator.uniform(*self.noise)), generator)
        return samples * np.float32(np.exp(draw))


def seeded_generator(*key: int | str) -> np.random.Generator:
    """A random generator that depends on the key alone: the same in every process and resumed run."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def change_speed(samples: NDArray[np.float32], speed: float) -> NDArray[np.float32]:
    """Samples [L] as float32 [ceil(L / speed)] by polyphase resampling, which changes the pitch too.

    `speed` is rounded to two decimals.
    """
    ratio = Fraction(round(speed * 100), 100)
    if ratio == 1 or len(samples) == 0:
        return samples
    from scipy.signal import resample_poly  # costs 0.3 s to import and few callers need it

    return resample_poly(samples, ratio.denominator, ratio.numerator).astype(np.float32)


def add_noise(
    samples: NDArray[np.float32], ratio: float, generator: np.random.Generator
) -> NDArray[np.float32]:
    """Samples [L] with Gaussian noise, whose power is `ratio` dB below theirs, as float32 [L].

    Its spectrum is a straight line in dB over the logarithm of frequency; the slope is drawn between -6 dB an octave,
    as of wind or traffic, and 6, as of hiss.
    """
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    bins = np.maximum(1, np.arange(len(spectrum)))
    noise = np.fft.irfft(spectrum * bins ** generator.uniform(-1.0, 1.0), len(samples))
    power = np.mean(np.square(noise))
    scale = np.sqrt(np.mean(np.square(samples, dtype=np.float64)) / power) * 10 ** (-ratio / 20)
    return (samples + scale * noise).astype(np.float32)


def read_audio(utterance: Utterance, sample_rate: int) -> NDArray[np.float32]:
    """Samples of one utterance, float32 [L]; the mean of the channels where there are several and none is chosen.

    An UtteranceError says that the recording cannot be read or was cut short, has another rate (Hz), ends more than 0.1 s
    before `utterance.end`, or is longer than `MAX_SECONDS`.
    """
    if isinstance(utterance.audio_part, Cut):
        _check_seconds(utterance, utterance.end or 0.0)
        try:
            return cut_samples(utterance.audio_part.text, sample_rate)
        except (DataError, OSError) as error:
            raise unreadable(utterance, error) from error
    with _opened(utterance, sample_rate) as file:
        start = round(utterance.start * sample_rate)
        stop = file.frames if utterance.end is None else round(utterance.end * sample_rate)
        # Times in segments are rounded.
        if start >= file.frames > 0 or stop > file.frames + sample_rate // 10:
            raise utterance.unusable(
                "segment",
                f" is the part from {utterance.start} to {utterance.end} s of {utterance.audio!r}, which has "
                f"{file.frames / sample_rate:.3f} s",
            )
        count, channel = min(stop, file.frames) - start, utterance.channel
        _check_seconds(utterance, count / sample_rate)
        if channel is not None and channel >= file.channels:
            raise DataError(
                f"has {counted(file.channels, 'channel')}, channel {channel} is asked for (counted from 0)"
            )
        parts, step = [], max(1, _BLOCK // file.channels)  # a header can claim any number of samples
        if file.seekable():
            file.seek(start)
        else:  # GSM 6.10 and some kinds of ADPCM are decoded from their start alone
            before = start
            while before > 0 and (skipped := len(file.read(min(before, step), dtype="float32"))):
                before -= skipped
        while count > 0 and len(block := file.read(min(count, step), dtype="float32", always_2d=True)):
            parts.append(block.mean(axis=1) if channel is None else block[:, channel].copy())
            count -= len(block)
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def count_samples(utterance: Utterance, sample_rate: int) -> int:
    """How many samples `read_audio` gives, by the utterance's times, which are believed, or the recording's header.

    Only a recording that a command makes is read in full.
    """
    start = round(utterance.start * sample_rate)
    if utterance.audio is not None and utterance.end is not None:
        _check_seconds(utterance, utterance.end - utterance.start)
        return max(0, round(utterance.end * sample_rate) - start)
    if utterance.audio is not None and is_command(utterance.audio):
        return len(read_audio(utterance, sample_rate))
    with _opened(utterance, sample_rate) as file:
        _check_seconds(utterance, file.frames / sample_rate)
        return max(0, file.frames - start)


def recorded_rate(utterance: Utterance) -> int:
    """The rate of an utterance's recording in Hz; errors as `read_audio`."""
    if isinstance(utterance.audio_part, Cut):
        try:
            return cut_rate(utterance.audio_part.text)
        except (DataError, OSError) as error:
            raise unreadable(utterance, error) from error
    with _opened(utterance, None) as file:
        return int(file.samplerate)


@contextmanager
def _opened(utterance: Utterance, sample_rate: int | None) -> Iterator[Any]:
    """The recording as a `SoundFile`, of this rate if one is given; an error, also inside the block, names the utterance."""
    audio = utterance.audio
    if audio is None:
        raise utterance.unusable("no recording", " has no recording")
    soundfile = require("soundfile", extra="recipes")
    try:
        if isinstance(utterance.audio_part, Member):
            source: Any = io.BytesIO(utterance.audio_part.read())
        elif is_command(audio):
            source = io.BytesIO(_run(utterance, audio.rstrip().removesuffix("|")))
        elif not Path(audio).exists():
            within = _ADDRESS.fullmatch(audio)
            is_within = within is not None and Path(within[1]).is_file()
            reason = "a recording within an archive" if is_within else f"no such file; {told_tried()}"
            raise utterance.unusable("missing file", f": cannot read {audio!r}: {reason}")
        elif not Path(audio).is_file():  # opening or reading a pipe or a device may never end
            raise unreadable(utterance, "not a regular file")
        else:
            source = audio
        with soundfile.SoundFile(source) as file:
            if sample_rate is not None and file.samplerate != sample_rate:
                raise utterance.unusable(
                    "sampling rate",
                    f": {audio} has {file.samplerate} Hz, expected {sample_rate} Hz; convert the recording or change "
                    "features.sample_rate",
                )
            if sample_rate is not None and source is audio:
                _check_whole(utterance, file)
            yield file
    except UtteranceError:
        raise
    except (OSError, RuntimeError, DataError) as error:  # soundfile's own error is a RuntimeError
        raise unreadable(utterance, error) from error


def _check_whole(utterance: Utterance, file: Any) -> None:
    """An error for a WAV file that was cut short: libsndfile reads what is there, and notes what its header claims."""
    found = _CUT_SHORT.search(file.extra_info)
    claimed, there = map(int, found.groups()) if found else (0, 0)
    missing = (claimed / max(1, there) - 1) * file.frames / file.samplerate
    if claimed < _STREAMED and missing > 0.1:
        raise unreadable(
            utterance,
            f"{counted(claimed, 'byte')} of samples in its header and {there} in the file, which was cut short",
        )


def _run(utterance: Utterance, command: str) -> bytes:
    """Standard output of a shell command, which `DataDir.read` has refused unless the caller allows commands."""
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    if done.returncode != 0:
        reason = "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
        message = f": {command!r} failed with status {done.returncode}: {reason}"
        raise utterance.unusable("unreadable audio", message)
    return done.stdout


def unreadable(utterance: Utterance, reason: object) -> UtteranceError:
    return utterance.unusable("unreadable audio", f": cannot read {utterance.audio!r}: {reason}")


def _check_seconds(utterance: Utterance, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        reason = f"{seconds:.0f} s long, expected at most {MAX_SECONDS:.0f}; cut it by segments"
        raise unreadable(utterance, reason)


def audio_identity(utterance: Utterance) -> str | None:
    """A string that changes when the audio does, or None where that cannot be known (a command).

    Path, size and modification time stand for the content: hashing every recording would cost as much as its
    features.
    """
    if utterance.audio is None or is_command(utterance.audio):
        return None
    part = utterance.audio_part
    try:
        if isinstance(part, Cut):
            return cut_identity(part.text)
        status = Path(utterance.audio).stat()
    except OSError as error:
        kind = "missing file" if isinstance(error, FileNotFoundError) else "unreadable audio"
        tried = f"; {told_tried()}" if kind == "missing file" else ""
        raise utterance.unusable(
            kind, f": cannot read {utterance.audio!r}: {error.strerror}{tried}"
        ) from error
    path = Path(utterance.audio).absolute()
    known = f"{utterance.id}|{path}|{status.st_size}|{status.st_mtime_ns}|{utterance.start}|{utterance.end}"
    rest = (utterance.channel, None if part is None else (part.offset, part.size))
    return known if rest == (None, None) else f"{known}|{rest}"


class Recording:
    """A recording in any format that soundfile reads, as mono samples at `sample_rate` (Hz).

    `native_rate` and `seconds` are those of the file's header.
    """

    def __init__(self, path: str | Path, sample_rate: int) -> None:
        if sample_rate < 1:
            raise ConfigError(
                f"sample_rate is {sample_rate}; expected a positive number: a model that was trained on features from "
                "feats.scp takes no recordings"
            )
        self.path, self.sample_rate = Path(path), sample_rate
        if not self.path.is_file():  # a pipe would be waited for, for ever
            reason = "not a regular file" if self.path.exists() else "no such file"
            raise DataError(f"recording {str(path)!r}: {reason}")
        with self._opened() as file:
            self.native_rate = int(file.samplerate)
            if not RATES[0] <= self.native_rate <= RATES[1]:
                raise DataError(
                    f"recording {str(path)!r}: {self.native_rate} Hz; expected {RATES[0]} to {RATES[1]}"
                )
            self.seconds = file.frames / file.samplerate

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The samples in order, float32 [L] in [-1, 1) as a rule; the mean of the channels where there are several.

        Together the blocks have ceil(samples x sample_rate / native_rate) samples, and equal `scipy.signal.resample_poly` of
        the whole up to rounding. A damaged file, NaN and infinite samples raise DataError.
        """
        resampler = Resampler(self.native_rate, self.sample_rate)
        with self._opened() as file:
            count = max(1, min(round(BLOCK_SECONDS * self.native_rate), _LARGEST_BLOCK // file.channels))
            while len(block := file.read(count, dtype="float32", always_2d=True)):
                if not np.isfinite(block).all():
                    raise DataError(f"recording {str(self.path)!r}: NaN or infinite samples")
                yield resampler.accept(block.mean(axis=1))
        yield resampler.finish()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with require("soundfile", extra="recipes").SoundFile(self.path) as file:
                yield file
        except (OSError, RuntimeError, UnicodeError) as error:  # soundfile's own; a name of another encoding
            raise DataError(f"recording {str(self.path)!r}: cannot be read: {error}") from error


class Resampler:
    """Polyphase resampling from `rate` to `wanted` Hz of a signal that comes in blocks.

    Equal to `scipy.signal.resample_poly` of the whole signal, up to rounding to steps of 16 bits. Without it the bands
    that a lower rate lacks would be silent as they are in no file, and networks are trained on files.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        ratio = Fraction(wanted, rate)
        self.up, self.down = ratio.numerator, ratio.denominator
        factor = max(self.up, self.down)
        half = _HALF_WIDTH * factor
        self._filter = None
        if factor > 1:
            from scipy.signal import firwin  # costs 0.3 s to import

            self._filter = firwin(2 * half + 1, 1.0 / factor, window=("kaiser", _KAISER_BETA))
        # Blocks begin at multiples of `down`, where an input sample and an output sample fall together.
        self._around = self.down * math.ceil((half // self.up + 1) / self.down)
        self._kept = np.zeros(0, np.float32)
        self._first = self._returned = 0  # input sample at which _kept begins; output samples returned

    def accept(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next samples [L]; returns the output samples that no later input changes."""
        if self._filter is None:
            return samples
        self._kept = np.concatenate([self._kept, samples])
        settled = self._first + len(self._kept) - self._around
        return self._outputs(max(0, settled) * self.up // self.down)

    def finish(self) -> NDArray[np.float32]:
        return self._outputs(-(-(self._first + len(self._kept)) * self.up // self.down))

    def _outputs(self, end: int) -> NDArray[np.float32]:
        """The output samples from the first one not yet returned up to `end`."""
        if end <= self._returned:
            return np.zeros(0, np.float32)
        from scipy.signal import resample_poly

        offset = self._first * self.up // self.down
        found = resample_poly(self._kept, self.up, self.down, window=self._filter)
        found = np.rint(found[self._returned - offset : end - offset] * _STEPS) / _STEPS
        outputs: NDArray[np.float32] = found.astype(np.float32)
        self._returned = end
        needed = end * self.down // self.up - self._around
        keep_from = max(self._first, needed // self.down * self.down)
        self._kept = self._kept[keep_from - self._first :]
        self._first = keep_from
        return outputs
