"""Learning rate as a function of training progress.

Every schedule is a pure function of the step, so that a resumed run needs no scheduler state. It rises
linearly over the warm-up, reaches `peak`, and falls to `final` at the last step:

    constant      stays at the peak
    linear        straight line to `final`
    exponential   peak * (final / peak) ** x, as Kaldi's chain recipes do
    cosine        half a cosine from the peak to `final`
    one-cycle     half a cosine up over the warm-up as well (Smith and Topin, 2018)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsachain.errors import ConfigError

DECAYS = ("constant", "linear", "exponential", "cosine", "one-cycle")


@dataclass(frozen=True)
class ScheduleConfig:
    """Shape of the learning rate.

    Attributes:
        peak: Highest learning rate.
        final: Learning rate at the last step; unused by `constant`.
        warmup: Part of all steps, in [0, 1), over which the rate rises.
        start: Learning rate of the first step where there is a warm-up.
        decay: One of `DECAYS`.
    """

    peak: float = 4e-3
    final: float = 4e-5
    warmup: float = 0.2
    start: float = 4e-4
    decay: str = "one-cycle"

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ConfigError(f"decay: {self.decay!r} is not one of {', '.join(DECAYS)}")
        if not 0.0 <= self.warmup < 1.0:
            raise ConfigError(f"warmup: {self.warmup!r} is not in [0, 1); it is a part of all steps")
        for name in ("peak", "start", "final"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf or (name == "peak" and value == 0.0):
                raise ConfigError(f"{name}: {value!r} is not a learning rate")
        if self.decay == "exponential" and self.final == 0.0:
            raise ConfigError("final: exponential decay never reaches 0; give a small positive rate")


def training_progress(step: int, num_steps: int) -> float:
    """Where optimiser step `step`, counted from 0, stands in a training of `num_steps`: 0 the first, 1 the last.

    Steps beyond the last are at 1.
    """
    return min(step / max(num_steps - 1, 1), 1.0)


def learning_rate(config: ScheduleConfig, step: int, num_steps: int) -> float:
    """Learning rate of optimiser step `step`, counted from 0, in a training of `num_steps`.

    Steps beyond the last keep the last rate.
    """
    progress = training_progress(step, num_steps)
    if progress < config.warmup:
        rise = progress / config.warmup
        if config.decay == "one-cycle":
            rise = _half_cosine(rise)
        return config.start + (config.peak - config.start) * rise
    if config.decay == "constant":
        return config.peak
    fall = (progress - config.warmup) / (1.0 - config.warmup)
    if config.decay == "exponential":
        return config.peak * (config.final / config.peak) ** fall
    if config.decay in ("cosine", "one-cycle"):
        fall = _half_cosine(fall)
    return config.peak + (config.final - config.peak) * fall


def _half_cosine(x: float) -> float:
    """0 at 0, 1 at 1, flat at both ends."""
    return 0.5 - 0.5 * math.cos(math.pi * x)
