"""Options of training, and dataclasses from YAML with unknown keys refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fsachain.errors import ConfigError
from fsachain.train.schedule import ScheduleConfig

OPTIMIZERS = ("adam", "adamw", "sgd")
BAD_DATA = ("exclude", "stop")
Config = TypeVar("Config")


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimiser and its constants.

    Attributes:
        name: One of `OPTIMIZERS`.
        betas: Decay of the first and second moment; Adam only.
        epsilon: Added to the root of the second moment; Adam only.
        momentum: SGD only.
        weight_decay: Decoupled for `adamw`, an L2 gradient for the others.
        max_grad_norm: Gradients with a larger Euclidean norm are scaled down to it; infinity switches it off.
    """

    name: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    max_grad_norm: float = 5.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ConfigError(f"optimizer name: {self.name!r} is not one of {', '.join(OPTIMIZERS)}")
        if not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm: {self.max_grad_norm!r} is not positive")


@dataclass(frozen=True)
class TrainConfig:
    """Options of `Trainer`.

    Attributes:
        num_epochs: Passes over the training examples.
        batch_size: Utterances per step.
        seed: Seed of batch order, dropout and augmentation.
        schedule: Learning rate.
        optimizer: Optimiser.
        orthonormal_every: Steps between calls of the model's `constrain_orthonormal()`; 0 for never.
        average_last: Epochs at the end whose parameters are averaged into the final model; 1 for none.
        batch_norm_batches: Training batches over which batch-normalisation statistics of an averaged model
            are taken anew; 0 averages the statistics like the parameters.
        checkpoint_every: Batches between checkpoints within an epoch; 0 for the ends of epochs only.
        keep_checkpoints: Ends of epochs kept on disk besides those to be averaged, for the case that one of these is
            damaged. The best epoch on the development set and the newest checkpoint are kept too.
        max_bad_batches: Training stops after this many batches in a row with a loss or gradient that is not
            finite.
        num_threads: Threads of torch; 0 leaves the setting alone, None takes every processor.
        bad_data: "exclude" lists the utterances that cannot be trained on and goes on without them; "stop" lists
            them and ends.
    """

    num_epochs: int = 16
    batch_size: int = 16
    seed: int = 0
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    orthonormal_every: int = 4
    average_last: int = 4
    batch_norm_batches: int = 20
    checkpoint_every: int = 0
    keep_checkpoints: int = 1
    max_bad_batches: int = 10
    num_threads: int | None = None
    bad_data: str = "exclude"

    def __post_init__(self) -> None:
        for name in ("num_epochs", "batch_size", "average_last", "keep_checkpoints", "max_bad_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not a positive number")
        for name in ("orthonormal_every", "batch_norm_batches", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is negative")
        if self.bad_data not in BAD_DATA:
            raise ConfigError(f"bad_data: {self.bad_data!r} is not one of {', '.join(BAD_DATA)}")


def from_dict(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Make a dataclass from a plain table, tables within it included.

    Args:
        kind: The dataclass.
        values: Options by name; those left out keep their default.
        where: Place of the table for messages, such as `train`.

    Raises:
        ConfigError: an unknown option, with the nearest known name, or a value of the wrong type.
    """
    hints = typing.get_type_hints(kind)
    known = [option.name for option in dataclasses.fields(typing.cast(Any, kind))]
    arguments = {}
    for name, value in values.items():
        place = f"{where}.{name}" if where else str(name)
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ConfigError(f"{place}: unknown option{hint}")
        arguments[name] = _convert(hints[name], value, place)
    return kind(**arguments)


def to_dict(config: Any) -> dict[str, Any]:
    """The dataclass as a table that JSON and YAML can hold."""
    return {name: _plain(value) for name, value in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _convert(hint: Any, value: Any, place: str) -> Any:
    """`value` as the annotated type, without guessing: text is no number and a number is no switch."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{place}: expected a table, got {value!r}")
        return from_dict(typing.cast(type, hint), value, place)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(kind for kind in arguments if kind is not type(None)), value, place)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{place}: expected a list, got {value!r}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ConfigError(f"{place}: expected {len(arguments)} values, got {len(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_convert(kind, item, place) for kind, item in zip(kinds, value, strict=True))
    if hint is float and isinstance(value, str):
        value = _float_text(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (
        not isinstance(value, hint) or (hint is not bool and isinstance(value, bool))
    ):
        raise ConfigError(f"{place}: expected {hint.__name__}, got {value!r}")
    return value


def _float_text(value: str) -> float | str:
    """YAML 1.1 reads `1e-3`, without a point, as text; it is meant as a number."""
    try:
        return float(value)
    except ValueError:
        return value
