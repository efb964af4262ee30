"""Options of training, and dataclasses from YAML with unknown keys refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fsachain.asr.train.schedule import Schedule, ScheduleConfig, Scheduled, scheduled, values_of
from fsachain.errors import ConfigError, check_choices, check_range, counted, require

OPTIMIZERS = ("adam", "adamw", "nadam", "radam", "adamax", "sgd")
Config = TypeVar("Config")
# Options of `TrainConfig` that went away, or a value of one: the value that asked for nothing else than what is done now
# (None: there is none), and what takes their place.
GONE_OPTIONS = {
    "ema": (0.0, "train.average_last has the mean of the last epochs"),
    "combine=ema": (None, "train.average_last has the mean of the last epochs"),
    "combine_on": ("dev", '"best-average" is decided on the development set'),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimiser and its constants.

    Attributes:
        name: "adam", "adamw", "nadam", "radam", "adamax" or "sgd".
        betas (factors per step): Decay of the first and second moment; not for `sgd`.
        epsilon (as gradients): Added to the root of the second moment; not for `sgd`.
        momentum (factor per step): SGD only.
        weight_decay (factor): Decoupled for `adamw`, an L2 gradient for the others.
        decayed: What decays: "all" parameters, or only "weights": those of two dimensions or more, which leaves out biases
            and the scales of normalisations.
        max_grad_norm (norm): Gradients with a larger Euclidean norm are scaled down to it; infinity switches it off.
        max_change (norm): Steps with a larger Euclidean norm are scaled down to it; 2 in Kaldi, None switches it off.
        max_change_per_component (norm): The same for each module's own parameters, before that; 0.75 in Kaldi.
        factors (by prefix): Factors on the learning rate by prefix of parameter names: "encoder" is for `encoder` and all
            that begins with `encoder.`; the longest prefix that fits counts, 1 where none does.
        freeze_epochs (epochs, by prefix): Epochs at the start in which the parameters with a prefix do not move.
    """

    name: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    decayed: str = "all"
    max_grad_norm: float = 5.0
    max_change: float | None = None
    max_change_per_component: float | None = None
    factors: dict[str, float] = field(default_factory=dict)
    freeze_epochs: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range(self, "(0, inf]", "max_grad_norm", "max_change", "max_change_per_component")
        check_choices(self, name=OPTIMIZERS, decayed=("all", "weights"))
        for name in ("factors", "freeze_epochs"):
            for prefix, value in getattr(self, name).items():
                if not 0.0 <= value < math.inf:
                    raise ConfigError(f"{name}: {value!r} for {prefix!r} is not a finite number >= 0")


@dataclass(frozen=True)
class TrainConfig:
    """Options of `Trainer`.

    Attributes:
        num_epochs (epochs): Passes over the training examples.
        batch_size (utterances): Utterances per step, at most.
        micro_batch (utterances): Utterances of a step that go through the network together, in each process, at most; their
            gradients are added up. 0 for all.
        batch_frames (input frames): Most frames of a step, padding included; None for no limit.
        precision: Number format of the network's passes: "float32", "bfloat16" or "float16".
        seed (number): Seed of batch order, dropout and augmentation.
        schedule: Learning rate.
        optimizer: Optimiser.
        dropout_schedule (probability): Dropout proportion of the whole network while it trains, a number or a schedule such
            as "0,0@0.20,0.5@0.50,0" (see `fsachain.asr.train.schedule.Schedule`); None leaves it as the network has it.
        orthonormal_every (steps): Steps between calls of the model's `constrain_orthonormal()`; 0 for never.
        average_last (epochs): Epochs at the end whose models the final one is made of.
        combine: How: "mean" of all; "best-average": the best of the means of the newest 1, 2, 3, ... on the development
            set; "none": the last model.
        batch_norm_batches (batches): Training batches over which batch-normalisation statistics of an averaged model are
            taken anew; 0 averages the statistics like the parameters.
        checkpoint_every (batches): Batches between checkpoints within an epoch; 0 for the ends of epochs only.
        keep_checkpoints (epochs): Ends of epochs kept on disk besides those to be averaged, for the case that one of these
            is damaged. The best epoch on the development set and the newest checkpoint are kept too.
        max_bad_batches (batches): Training stops after this many batches in a row with a loss or gradient that is not
            finite.
        num_threads (threads): Threads of torch; 0 leaves the setting alone, None takes every processor, or this process's
            share where several run on a machine.
        process_timeout (seconds): Seconds that a process waits for the others, where several train together, before it
            ends.
        bad_data: "exclude" lists the utterances that cannot be trained on and goes on without them; "stop" lists them and
            ends.
    """

    num_epochs: int = 16
    batch_size: int = 16
    batch_frames: int | None = None
    micro_batch: int = 0
    precision: str = "float32"
    seed: int = 0
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dropout_schedule: Scheduled | None = None
    orthonormal_every: int = 4
    average_last: int = 4
    combine: str = "mean"
    batch_norm_batches: int = 20
    checkpoint_every: int = 0
    keep_checkpoints: int = 1
    max_bad_batches: int = 10
    num_threads: int | None = None
    bad_data: str = "exclude"
    process_timeout: float = 600.0

    def __post_init__(self) -> None:
        sizes = ("num_epochs", "batch_size", "batch_frames")
        check_range(self, "[1, inf)", *sizes, "average_last", "keep_checkpoints", "max_bad_batches")
        intervals = ("orthonormal_every", "batch_norm_batches", "checkpoint_every")
        check_range(self, "[0, inf)", "micro_batch", *intervals)
        check_range(self, "(0, inf)", "process_timeout")
        check_choices(
            self,
            precision=("float32", "bfloat16", "float16"),
            combine=("mean", "best-average", "none"),
            bad_data=("exclude", "stop"),
        )
        if self.dropout_schedule is not None:
            for value in values_of(self.dropout_schedule):
                if not 0.0 <= value < 1.0:
                    raise ConfigError(f"dropout_schedule: {value!r} is not in [0, 1)")


def from_dict(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Make a dataclass from a plain table, tables within it included.

    `where` is the place of the table for messages, such as `train`. A ConfigError names an unknown option with the
    nearest known one.
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
    try:
        return kind(**arguments)
    except ConfigError as error:  # which begins with the name of an option
        own = where and re.match(r"\w*", str(error))[0] in known  # type: ignore[index]
        raise ConfigError(f"{where}.{error}" if own else str(error)) from error


def changes(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """The options in which two tables (`to_dict`) differ: "train.num_epochs was 16, is 20"; `where` is their place."""
    told = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        place = f"{where}.{name}" if where else str(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            told += changes(old, new, place)
        elif old != new:
            was, is_ = (repr(table[name]) if name in table else "not given" for table in (before, now))
            told.append(f"{place} was {was}, is {is_}")
    return told


def flat(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table and of those within it, by their place, such as "train.num_epochs"."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def to_dict(config: Any) -> Any:
    """A dataclass as a plain table, which `from_dict` reads."""
    if isinstance(config, Schedule):
        return str(config)
    if dataclasses.is_dataclass(config):
        return {one.name: to_dict(getattr(config, one.name)) for one in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {name: to_dict(inner) for name, inner in config.items()}
    return list(config) if isinstance(config, tuple) else config


def to_compare(config: Any) -> Any:
    """`to_dict` for digests and comparisons with older folders: without added options (`added_option`) that do nothing."""
    if dataclasses.is_dataclass(config) and not isinstance(config, Schedule):
        return {
            one.name: to_compare(getattr(config, one.name))
            for one in dataclasses.fields(config)
            if "neutral" not in one.metadata or getattr(config, one.name) != one.metadata["neutral"]
        }
    return to_dict(config)


def _convert(hint: Any, value: Any, place: str) -> Any:
    """`value` as the annotated type. Only int becomes float, and `1e-3` that YAML took for text; a bool is no number."""
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{place}: expected a table, got {value!r}")
        return from_dict(typing.cast(type, hint), value, place)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        if Schedule in arguments:
            return scheduled(value, place)
        return _convert(next(kind for kind in arguments if kind is not type(None)), value, place)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{place}: expected a list, got {value!r}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ConfigError(f"{place}: expected {counted(len(arguments), 'value')}, got {len(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_convert(kind, item, place) for kind, item in zip(kinds, value, strict=True))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{place}: expected a table, got {value!r}")
        return {str(name): _convert(arguments[1], item, f"{place}.{name}") for name, item in value.items()}
    if hint is float and isinstance(value, str):
        with suppress(ValueError):  # YAML 1.1 reads `1e-3`, which has no decimal point, as text
            value = float(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (
        not isinstance(value, hint) or (hint is not bool and isinstance(value, bool))
    ):
        raise ConfigError(f"{place}: expected {hint.__name__}, got {value!r}")
    return value


# Limits of a YAML file, so that none can hang or fill the machine.
MAX_BYTES = 1 << 15
MAX_DEPTH = 20
MAX_VALUES = 800  # each costs a kilobyte and half a millisecond


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file whose top is a table of options; anything else is a ConfigError.

    Only plain data is read: no Python objects, no aliases (with which a short file can stand for a huge one), no key
    twice in a table, at most `MAX_BYTES`, `MAX_DEPTH` and `MAX_VALUES`.
    """
    yaml = require("yaml", extra="recipes")
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: more than {MAX_BYTES} bytes; expected a table of options")
        text = content.decode("utf-8")
        _refuse_bombs(yaml, text, path)
        table = yaml.safe_load(text)
    except ConfigError:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:
        # ValueError: an impossible date, a number too long.
        mark = getattr(error, "problem_mark", None)
        where = str(path) if mark is None else f"{path}:{mark.line + 1}"
        reason = getattr(error, "problem", None) if mark is not None else " ".join(str(error).split())
        raise ConfigError(f"{where}: cannot read the options: {reason}") from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a table of options, got {type(table).__name__}")
    return table


def option_lines(path: str | Path) -> dict[str, int]:
    """The line of each option of a YAML file that `load_yaml` reads, by its place, such as "train.num_epochs"."""
    yaml = require("yaml", extra="recipes")
    lines: dict[str, int] = {}

    def visit(node: Any, place: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            name = f"{place}{key.value}"
            lines[name] = key.start_mark.line + 1
            visit(value, f"{name}.")

    visit(yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader), "")
    return lines


def _refuse_bombs(yaml: Any, text: str, path: str | Path) -> None:
    """Checks the stream of parser events, before any object is built."""
    # Of each open collection the keys so far, None in a list; and whether a value comes next.
    around: list[tuple[set[str] | None, bool]] = []
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        wrong = f"more than {MAX_VALUES} values; expected a table of options" if number > MAX_VALUES else ""
        if isinstance(event, yaml.AliasEvent):
            wrong = f"the alias *{event.anchor}; expected plain values, written out"
        elif isinstance(event, yaml.CollectionEndEvent):
            around.pop()
        elif isinstance(event, yaml.NodeEvent):
            if around:
                keys, is_value = around[-1]
                if keys is not None and not is_value and isinstance(event, yaml.ScalarEvent):
                    if event.value in keys:  # PyYAML silently keeps the last
                        wrong = f"the key {event.value!r} occurs twice"
                    keys.add(event.value)
                around[-1] = keys, not is_value
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((set() if isinstance(event, yaml.MappingStartEvent) else None, False))
            if len(around) > MAX_DEPTH:
                wrong = f"nested deeper than {MAX_DEPTH}; expected a table of options"
        if wrong:
            raise ConfigError(f"{path}:{event.start_mark.line + 1}: {wrong}")
