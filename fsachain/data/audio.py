"""Recordings as arrays: read by soundfile, cut to an utterance, changed in speed and volume.

Samples are float32 in [-1, 1). Nothing is resampled: a recording at another rate than the features are configured for
is an error.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.data.cuts import MAX_SECONDS, cut_identity, cut_samples
from fsachain.data.utterance import Cut, Member, Utterance, UtteranceError, is_command
from fsachain.errors import ConfigError, DataError, require

_BLOCK = 1 << 17  # samples of all channels that are read at once


@dataclass(frozen=True)
class Perturbation:
    """A change made to the audio before features are computed; the default changes nothing.

    Attributes:
        speed: playing speed; 0.9 is slower, longer and lower in pitch (Ko et al., Interspeech 2015). Up to
            two decimals.
        volume: the gain is drawn once per utterance, uniformly on a log scale, between these two.
        seed: seed of that draw; the draw also depends on the utterance id and the speed, and on nothing else.
    """

    speed: float = 1.0
    volume: tuple[float, float] = (1.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.speed <= 2.0:
            raise ConfigError(f"speed is {self.speed}; expected 0.5 to 2.0")
        if len(self.volume) != 2 or not 0.0 < self.volume[0] <= self.volume[1]:
            raise ConfigError(f"volume is {self.volume}; expected a positive lowest and highest gain")

    @property
    def prefix(self) -> str:
        """What the ids of perturbed copies begin with: '' or, for instance, 'sp0.9-'."""
        return "" if self.speed == 1.0 else f"sp{self.speed:g}-"

    def apply(self, samples: NDArray[np.float32], utterance_id: str) -> NDArray[np.float32]:
        """Change speed and volume of the samples [L] of one utterance; L becomes ceil(L / speed)."""
        samples = change_speed(samples, self.speed)
        low, high = self.volume
        if low == high == 1.0:
            return samples
        draw = seeded_generator(self.seed, self.prefix + utterance_id).uniform(np.log(low), np.log(high))
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


def read_audio(utterance: Utterance, sample_rate: int) -> NDArray[np.float32]:
    """Samples of one utterance, float32 [L]; the mean of the channels where there are several and none is chosen.

    An UtteranceError says that the recording cannot be read, has another rate (Hz), ends more than 0.1 s before
    `utterance.end`, or is longer than `MAX_SECONDS`.
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
        if (
            start >= file.frames > 0 or stop > file.frames + sample_rate // 10
        ):  # times in segments are rounded
            raise utterance.unusable(
                "segment",
                f" is the part from {utterance.start} to {utterance.end} s of {utterance.audio!r}, which has "
                f"{file.frames / sample_rate:.3f} s",
            )
        count, channel = min(stop, file.frames) - start, utterance.channel
        _check_seconds(utterance, count / sample_rate)
        if channel is not None and channel >= file.channels:
            raise DataError(f"has {file.channels} channels, channel {channel} is asked for (counted from 0)")
        file.seek(start)
        parts, step = [], max(1, _BLOCK // file.channels)  # a header can claim any number of samples
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


@contextmanager
def _opened(utterance: Utterance, sample_rate: int) -> Iterator[Any]:
    """The recording as a `SoundFile` of this rate; an error, also one inside the block, names the utterance."""
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
            raise utterance.unusable("missing file", f": cannot read {audio!r}: no such file")
        elif not Path(audio).is_file():  # opening or reading a pipe or a device may never end
            raise unreadable(utterance, "not a regular file")
        else:
            source = audio
        with soundfile.SoundFile(source) as file:
            if file.samplerate != sample_rate:
                raise utterance.unusable(
                    "sampling rate",
                    f": {audio} has {file.samplerate} Hz, expected {sample_rate} Hz; convert the recording or change "
                    "sample_rate",
                )
            yield file
    except UtteranceError:
        raise
    except (OSError, RuntimeError, DataError) as error:  # soundfile's own error is a RuntimeError
        raise unreadable(utterance, error) from error


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
        raise utterance.unusable(kind, f": cannot read {utterance.audio!r}: {error}") from error
    path = Path(utterance.audio).absolute()
    known = f"{utterance.id}|{path}|{status.st_size}|{status.st_mtime_ns}|{utterance.start}|{utterance.end}"
    rest = (utterance.channel, None if part is None else (part.offset, part.size))
    return known if rest == (None, None) else f"{known}|{rest}"
