"""Recordings of any length, rate and number of channels, block by block: what models are used on.

`fsachain.data.audio` reads the utterances of a corpus and refuses another sampling rate; here recordings are resampled.
Memory holds one block, never the whole recording.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.errors import ConfigError, DataError, require

BLOCK_SECONDS = 30.0
RATES = (1_000, 768_000)  # Hz, lowest and highest: a header can claim any, and the filter grows with it
_BLOCK = 1 << 23  # samples of all channels that are read at once, at most
_HALF_WIDTH = 10  # of the resampling filter, in samples of the lower rate: that of scipy.signal.resample_poly
_KAISER_BETA = 5.0


class Recording:
    """A recording in any format that soundfile reads, as mono samples at `sample_rate` (Hz).

    `native_rate` and `seconds` are those of the file's header.
    """

    def __init__(self, path: str | Path, sample_rate: int) -> None:
        if sample_rate < 1:
            raise ConfigError(f"sample_rate is {sample_rate}; expected a positive number")
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
            count = max(1, min(round(BLOCK_SECONDS * self.native_rate), _BLOCK // file.channels))
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
        except (OSError, RuntimeError) as error:  # soundfile's own error is a RuntimeError
            raise DataError(f"recording {str(self.path)!r}: cannot be read: {error}") from error


class Resampler:
    """Polyphase resampling from `rate` to `wanted` Hz of a signal that comes in blocks.

    Equal to `scipy.signal.resample_poly` of the whole signal, up to rounding.
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
        outputs: NDArray[np.float32] = found[self._returned - offset : end - offset].astype(np.float32)
        self._returned = end
        needed = end * self.down // self.up - self._around
        keep_from = max(self._first, needed // self.down * self.down)
        self._kept = self._kept[keep_from - self._first :]
        self._first = keep_from
        return outputs
