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
from itertools import pairwise
from typing import Any

from fsachain.errors import ConfigError, check_choices, check_range

DECAYS = ("constant", "linear", "exponential", "cosine", "one-cycle")


@dataclass(frozen=True)
class ScheduleConfig:
    """Shape of the learning rate.

    Attributes:
        peak (per step): Highest learning rate.
        final (per step): Learning rate at the last step; unused by "constant".
        warmup (share of steps): Part of all steps, in [0, 1), over which the rate rises.
        start (per step): Learning rate of the first step where there is a warm-up.
        decay: From the peak on: "constant", "linear", "exponential", "cosine" or "one-cycle" (both ways a half cosine).
    """

    peak: float = 4e-3
    final: float = 4e-5
    warmup: float = 0.2
    start: float = 4e-4
    decay: str = "one-cycle"

    def __post_init__(self) -> None:
        check_range(self, "[0, 1)", "warmup")
        check_range(self, "(0, inf)", "peak")
        check_range(self, "[0, inf)", "start", "final")
        check_choices(self, decay=DECAYS)
        if self.decay == "exponential" and self.final == 0.0:
            raise ConfigError("final: exponential decay never reaches 0; give a small positive rate")


def training_progress(step: int, num_steps: int) -> float:
    """0 for step 0, 1 for step `num_steps` - 1 and all after it."""
    return min(step / max(num_steps - 1, 1), 1.0)


def learning_rate(config: ScheduleConfig, step: int, num_steps: int) -> float:
    """The rate of step `step`, counted from 0; past the end, that of the last step."""
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


FORMS = 'a number, text such as "0,0@0.20,0.5@0.50,0" (value@progress), or pairs [value, progress]'


@dataclass(frozen=True, repr=False)
class Schedule:
    """A piecewise linear function of training progress, which is 0 at the first step and 1 at the last.

    In text it is written as in Kaldi's chain recipes, value@progress:

        0,0@0.20,0.5@0.50,0      0 up to a fifth of the training, a line up to 0.5 in its middle, a line down to 0 at its end

    The first value is at 0, the last at 1, and one between them without a place at 0.5. A list of pairs [value, progress]
    says the same. Two values at one progress are a jump: the second holds from there on. `points` are (value, progress)
    pairs; progress does not fall, begins with 0 and ends with 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        points = tuple((float(value), float(progress)) for value, progress in self.points)
        object.__setattr__(self, "points", points)
        for value, progress in points:
            if not math.isfinite(value):
                raise ConfigError(f"{value} at progress {progress} is not a finite number")
        places = [progress for _, progress in points]
        if not places or places[0] != 0.0 or places[-1] != 1.0:
            raise ConfigError(
                f"the progress of its points is {places}; expected [value, progress] from progress 0 to 1"
            )
        for before, after in pairwise(places):
            if not after >= before:
                raise ConfigError(
                    f"progress {after} comes after {before}; expected progress that does not fall"
                )

    @classmethod
    def parse(cls, value: Any, where: str = "schedule") -> Schedule:
        """The schedule in an option's value: a number, text or pairs."""
        if isinstance(value, Schedule):
            return value
        try:
            if isinstance(value, str):
                points = _points_of_text(value)
            elif isinstance(value, list | tuple) and value:
                points = [(float(one), float(progress)) for one, progress in value]
            elif isinstance(value, int | float) and not isinstance(value, bool):
                points = [(float(value), 0.0), (float(value), 1.0)]
            else:
                raise ValueError("another type")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {value!r} is no schedule ({error}); expected {FORMS}") from error
        try:
            return cls(tuple(points))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    @property
    def values(self) -> tuple[float, ...]:
        """The values at the points, between which all others lie."""
        return tuple(value for value, _ in self.points)

    def at(self, progress: float) -> float:
        """The value at `progress`, which is taken into [0, 1]."""
        place = min(max(progress, 0.0), 1.0)
        last = max(index for index, (_, at) in enumerate(self.points) if at <= place)
        value, begin = self.points[last]
        if last + 1 == len(self.points):
            return value
        after, end = self.points[last + 1]
        return value + (after - value) * ((place - begin) / (end - begin))

    def __str__(self) -> str:
        """Text from which `parse` makes the same schedule."""
        return ",".join(f"{value!r}@{progress!r}" for value, progress in self.points)

    __repr__ = __str__


Scheduled = float | Schedule
"""Type of an option that may be a number or a schedule."""


def scheduled(value: Any, where: str) -> Scheduled:
    """A plain number where the value does not change."""
    schedule = Schedule.parse(value, where)
    return schedule.values[0] if len(set(schedule.values)) == 1 else schedule


def values_of(value: Scheduled) -> tuple[float, ...]:
    """The number, or the values at the points: if these lie in an option's range, so do all values."""
    return value.values if isinstance(value, Schedule) else (float(value),)


def value_at(value: Scheduled, progress: float) -> float:
    return value.at(progress) if isinstance(value, Schedule) else float(value)


def _points_of_text(text: str) -> list[tuple[float, float]]:
    parts = [part.partition("@") for part in text.split(",")]
    if len(parts) == 1 and "@" not in text:  # stands at both ends
        parts *= 2
    places = ["0", *["0.5"] * (len(parts) - 2), "1"]
    return [
        (float(value), float(at if mark else place))
        for (value, mark, at), place in zip(parts, places, strict=False)
    ]
