"""Recordings as arrays: read by soundfile, cut to an utterance, changed in speed and volume.

Samples are float32 in [-1, 1). Nothing is resampled: a recording at another rate than the features are
configured for is an error.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
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
        """Change speed and volume of the samples [L] of one utterance; L becomes about L / speed."""
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
    if utterance.audio is None:
        raise UtteranceError("no recording", utterance.id, f"utterance {utterance.id!r} has no recording")
    try:
        if isinstance(utterance.audio_part, Cut):
            _check_seconds(utterance, utterance.end or 0.0)
            return cut_samples(utterance.audio_part.text, sample_rate)
        with _opened(utterance) as file:
            check_rate(utterance, file.samplerate, sample_rate)
            start, stop = _sample_range(utterance, sample_rate, file.frames)
            file.seek(start)
            return _read_channel(file, stop - start, utterance.channel)
    except UtteranceError:
        raise
    except (OSError, RuntimeError, DataError) as error:  # soundfile's own error is a RuntimeError
        raise unreadable(utterance, error) from error


def check_rate(utterance: Utterance, found: int, sample_rate: int) -> None:
    if found != sample_rate:
        raise UtteranceError(
            "sampling rate",
            utterance.id,
            f"utterance {utterance.id!r}: {utterance.audio} has {found} Hz, "
            f"expected {sample_rate} Hz; convert the recording or change sample_rate",
        )


def _opened(utterance: Utterance) -> Any:
    soundfile = require("soundfile", extra="recipes")
    assert utterance.audio is not None
    if isinstance(utterance.audio_part, Member):
        return soundfile.SoundFile(io.BytesIO(utterance.audio_part.read()))
    if is_command(utterance.audio):
        return soundfile.SoundFile(io.BytesIO(_run(utterance)))
    check_file(utterance, Path(utterance.audio))
    return soundfile.SoundFile(utterance.audio)


def _read_channel(file: Any, count: int, channel: int | None) -> NDArray[np.float32]:
    """Up to `count` samples; memory grows with what is read, since a header can claim any number."""
    if channel is not None and channel >= file.channels:
        raise DataError(f"has {file.channels} channels, channel {channel} is asked for (counted from 0)")
    samples = np.zeros(0, np.float32)
    step = max(1, _BLOCK // file.channels)
    while count > 0:
        block = file.read(min(count, step), dtype="float32", always_2d=True)
        if not len(block):
            break
        count -= len(block)
        if block.shape[1] == 1:
            channel = 0
        filled = len(samples)
        samples.resize(filled + len(block), refcheck=False)  # in place where the system can
        samples[filled:] = block.mean(axis=1) if channel is None else block[:, channel]
    return samples


def check_file(utterance: Utterance, path: Path) -> None:
    """Refuse what is no regular file: opening or reading a pipe or a device may never end."""
    if not path.exists():
        raise UtteranceError(
            "missing file",
            utterance.id,
            f"utterance {utterance.id!r}: cannot read {utterance.audio!r}: no such file",
        )
    if not path.is_file():
        raise unreadable(utterance, "not a regular file")


def unreadable(utterance: Utterance, reason: object) -> UtteranceError:
    message = f"utterance {utterance.id!r}: cannot read {utterance.audio!r}: {reason}"
    return UtteranceError("unreadable audio", utterance.id, message)


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
        message = f"utterance {utterance.id!r}: cannot read {utterance.audio!r}: {error}"
        raise UtteranceError(kind, utterance.id, message) from error
    path = Path(utterance.audio).absolute()
    known = f"{utterance.id}|{path}|{status.st_size}|{status.st_mtime_ns}|{utterance.start}|{utterance.end}"
    rest = (utterance.channel, None if part is None else (part.offset, part.size))
    return known if rest == (None, None) else f"{known}|{rest}"


def _sample_range(utterance: Utterance, sample_rate: int, num_samples: int) -> tuple[int, int]:
    """First sample and the one after the last; a segment may exceed its recording by 0.1 s, since times are rounded."""
    start = round(utterance.start * sample_rate)
    stop = num_samples if utterance.end is None else round(utterance.end * sample_rate)
    if start >= num_samples > 0 or stop > num_samples + sample_rate // 10:
        raise UtteranceError(
            "segment",
            utterance.id,
            f"utterance {utterance.id!r} is the part from {utterance.start} to {utterance.end} s "
            f"of {utterance.audio!r}, which has {num_samples / sample_rate:.3f} s",
        )
    _check_seconds(utterance, (min(stop, num_samples) - start) / sample_rate)
    return start, min(stop, num_samples)


def _check_seconds(utterance: Utterance, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise unreadable(
            utterance, f"{seconds:.0f} s long, expected at most {MAX_SECONDS:.0f}; cut it by segments"
        )


def _run(utterance: Utterance) -> bytes:
    """Standard output of the shell command that makes the recording.

    `DataDir.read` refuses commands unless the caller allows them; nothing is checked here.
    """
    assert utterance.audio is not None
    command = utterance.audio.rstrip().removesuffix("|")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UtteranceError(
            "unreadable audio",
            utterance.id,
            f"utterance {utterance.id!r}: {command!r} failed with status {done.returncode}: {''.join(reason)}",
        )
    return done.stdout
