"""Checkpoints: one safetensors file each, with everything that an exact continuation needs.

Tensors (parameters, buffers, optimiser moments, random states) are stored under dotted names; all other state
is JSON in the file's header. A file appears under its name only when it is complete, so that a run which is
killed while it writes finds the previous checkpoint intact; a checksum tells a file that was damaged later. No
pickle is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fsachain.data.audio import seeded_generator
from fsachain.data.utterance import Fault
from fsachain.errors import ConfigError, DataError, require
from fsachain.files import missing_bytes, parse_json, remove_partials, replacing
from fsachain.train.config import TrainConfig, to_dict
from fsachain.train.log import JsonLinesLog, NoLog
from fsachain.train.optimizer import ParameterEma
from fsachain.train.precision import Precision
from fsachain.train.schedule import Scheduled
from fsachain.train.stats import EpochSums
from fsachain.train.world import World

Tensors = dict[str, torch.Tensor]
FORMAT = "fsachain checkpoint 2"
WITHOUT_CHECKSUM = "fsachain checkpoint 1"  # of files written before checksums, still read
_PADDING = "padding"
_PADDING_ENTRY = 1000  # bytes for its own line of the header
_LONGEST_REASON = 400  # letters of an error's reason, which may quote the file
_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)\.safetensors")


@dataclass
class Checkpoint:
    """State of a training between two steps.

    Attributes:
        epoch: Epochs finished.
        batch: Batches of the next epoch that are done already; 0 at the end of an epoch.
        step: Optimiser steps taken.
        model: The model's `state_dict()`.
        optimizer: The optimiser's `state_dict()`.
        rng: Random states by device: `cpu`, `cuda0`, ...
        state: Whatever else the trainer keeps, as JSON can hold it.
        ema: Moving averages of parameters, if there are any.
    """

    epoch: int
    batch: int
    step: int
    model: Tensors
    optimizer: dict[str, Any] = field(default_factory=dict)
    rng: Tensors = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    ema: Tensors = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Name that sorts by age."""
        return f"epoch-{self.epoch:04d}-batch-{self.batch:06d}.safetensors"

    def save(self, directory: str | Path) -> Path:
        """Write the checkpoint into `directory` and return its path."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.items()}
        tensors |= {f"rng.{name}": tensor for name, tensor in self.rng.items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.items()}
        optimizer = {"param_groups": self.optimizer.get("param_groups", []), "state": {}}
        for index, moments in self.optimizer.get("state", {}).items():
            optimizer["state"][str(index)] = {}
            for name, value in moments.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    optimizer["state"][str(index)][name] = value
        numbers = {"epoch": self.epoch, "batch": self.batch, "step": self.step}
        path = Path(directory) / self.file_name
        save_tensors(path, tensors, {**numbers, "optimizer": optimizer, "state": self.state})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint.

        Raises:
            DataError: the file cannot be read or is no checkpoint.
        """
        tensors, header = load_tensors(path)
        try:
            optimizer = {
                "param_groups": header["optimizer"]["param_groups"],
                "state": {int(index): values for index, values in header["optimizer"]["state"].items()},
            }
            parts: dict[str, Tensors] = {"model": {}, "rng": {}, "optimizer": {}, "ema": {}}
            for name, tensor in tensors.items():
                part, _, rest = name.partition(".")
                parts[part][rest] = tensor
            for name, tensor in parts["optimizer"].items():
                index, _, moment = name.partition(".")
                optimizer["state"][int(index)][moment] = tensor
            counts = (int(header["epoch"]), int(header["batch"]), int(header["step"]))
            return cls(*counts, parts["model"], optimizer, parts["rng"], header["state"], parts["ema"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            raise DataError(f"{path}: not a training checkpoint ({reason})") from error


def save_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """Write named tensors and a JSON header to one file, all or nothing; see `fsachain.files.replacing`.

    Raises:
        OSError: as from the system (disk full, read-only); the file that was there is as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header)
    content = _packed(owned, text)
    # Hundreds of epochs of a tiny model: the reader takes no more memory than three times the file.
    if missing := missing_bytes(content[8 : 8 + int.from_bytes(content[:8], "little")], len(content)):
        content = _packed(owned | {_PADDING: torch.zeros(missing + _PADDING_ENTRY, dtype=torch.uint8)}, text)
    with replacing(target) as file:
        file.write(content)


def _packed(tensors: Tensors, header: str) -> bytes:
    metadata = {"format": FORMAT, "header": header, "checksum": _checksum(tensors, header)}
    return bytes(require("safetensors.torch", extra="recipes").save(tensors, metadata=metadata))


def load_tensors(path: str | Path) -> tuple[Tensors, dict[str, Any]]:
    """Read what `save_tensors` wrote: the tensors, on the host, and the header.

    Raises:
        DataError: the file is absent, damaged or of another kind.
    """
    safetensors = require("safetensors", extra="recipes")
    try:
        check_tensor_names(path)
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        kind, text = metadata.get("format"), metadata["header"]
    except (OSError, KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error)[:_LONGEST_REASON]
        raise DataError(f"{path}: cannot read the checkpoint: {reason}") from error
    if kind not in (FORMAT, WITHOUT_CHECKSUM):
        raise DataError(f"{path}: expected format {FORMAT!r}, got {kind and kind[:80]!r}")
    checksum = metadata.get("checksum")
    if (kind == FORMAT or checksum is not None) and checksum != _checksum(tensors, text):
        raise DataError(f"{path}: cannot read the checkpoint: its checksum is wrong, the file is damaged")
    tensors.pop(_PADDING, None)
    header = parse_json(text, str(path))
    if not isinstance(header, dict):
        raise DataError(f"{path}: cannot read the checkpoint: its header is no table")
    return tensors, header


def check_tensor_names(path: str | Path) -> None:
    """Look at the header of a safetensors file, whose entries become objects a dozen times as large.

    Raises:
        OSError: as from the system.
        ValueError: the tensors are many beside what they hold.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        # What claims more than there is, the library refuses.
        if length <= size and missing_bytes(file.read(length), size):
            raise ValueError(f"a header of {length} bytes with too many entries for a file of {size}")


def _checksum(tensors: Mapping[str, torch.Tensor], header: str) -> str:
    """SHA-256 of the header and of name, type, shape and bytes of every tensor."""
    digest = hashlib.sha256(header.encode("utf-8"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def list_checkpoints(directory: str | Path) -> list[Path]:
    """Checkpoints in a folder, oldest first; an absent folder holds none."""
    folder = Path(directory)
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def epoch_checkpoints(directory: str | Path) -> list[Path]:
    """Those checkpoints that stand at the end of an epoch, oldest first."""
    return [path for path in list_checkpoints(directory) if path.name.endswith("-batch-000000.safetensors")]


def epoch_end(directory: str | Path, epoch: int) -> Path:
    """The checkpoint at the end of an epoch, there or not."""
    return Path(directory) / Checkpoint(epoch, 0, 0, {}).file_name


def prune_checkpoints(directory: str | Path, keep_epochs: int, best: int | None = None) -> None:
    """Delete all but the newest checkpoint, the ends of the last `keep_epochs` epochs and that of epoch `best`."""
    paths = list_checkpoints(directory)
    keep = set(epoch_checkpoints(directory)[-keep_epochs:]) | set(paths[-1:])
    if best is not None:
        keep.add(epoch_end(directory, best))
    for path in paths:
        if path not in keep:
            path.unlink(missing_ok=True)


def average_states(states: Sequence[Mapping[str, torch.Tensor]]) -> Tensors:
    """Mean of several `state_dict()`s, summed in float64; integer entries are taken from the last one.

    Raises:
        DataError: no states, or names or shapes differ.
    """
    if not states:
        raise DataError("states: nothing to average")
    last = states[-1]
    mean: Tensors = {}
    for name, tensor in last.items():
        values = [state.get(name) for state in states]
        if any(value is None or value.shape != tensor.shape for value in values):
            raise DataError(
                f"states: {name!r} is not of shape {list(tensor.shape)} in every model to average"
            )
        if tensor.is_floating_point():
            total = sum((value.to(torch.float64) for value in values if value is not None), torch.zeros(()))
            mean[name] = (total / len(states)).to(tensor.dtype)
        else:
            mean[name] = tensor.clone()
    return mean


def average_checkpoints(paths: Iterable[str | Path]) -> Tensors:
    """Mean of the models in several checkpoints.

    Raises:
        DataError: as `load_tensors` and `average_states`.
    """
    return average_states([Checkpoint.load(path).model for path in paths])


# Where a training stands, and how it is put aside; `resume` takes it up again.

# Options that do not decide the course of a training.
_FREE_OPTIONS = (
    "num_threads",
    "keep_checkpoints",
    "checkpoint_every",
    "max_bad_batches",
    "batch_norm_batches",
    "bad_data",
    "combine",
    "combine_on",
    "micro_batch",
    "process_timeout",
)


@dataclass
class TrainState:
    """Position and sums of a training between two steps.

    Attributes:
        epoch: Epochs finished.
        batch: Batches of the running epoch that are done.
        step: Optimiser steps taken.
        bad_in_a_row: Batches skipped since the last good one.
        sums: Sums over the running epoch.
        epochs: Figures of the finished epochs.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    bad_in_a_row: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    epochs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the highest objective on the development set; None without one."""
        scored = [(entry["dev"]["objf"], entry["epoch"]) for entry in self.epochs if entry["dev"] is not None]
        finite = [(objf, -epoch) for objf, epoch in scored if objf == objf]
        return -max(finite)[1] if finite else None


@dataclass(frozen=True)
class TrainResult:
    """What a training left behind.

    Attributes:
        epochs: One table per epoch: `epoch`, `train` and `dev` figures.
        dev: Figures of the final model on the development set; None without one.
        excluded: Utterances that took no part, training and development.
        model_path: The final model, `final.safetensors`; the model object holds the same parameters.
    """

    epochs: tuple[dict[str, Any], ...]
    dev: dict[str, Any] | None
    excluded: tuple[Fault, ...]
    model_path: Path


def fingerprint(config: TrainConfig, data: list[Any], loss_options: Mapping[str, Scheduled]) -> str:
    """Hash of all that decides the course of a training.

    `data` is its source's fingerprint; `loss_options` are those that change, if any.
    """
    options = {name: value for name, value in to_dict(config).items() if name not in _FREE_OPTIONS}
    changing = [{name: str(value) for name, value in sorted(loss_options.items())}] if loss_options else []
    return hashlib.sha256(json.dumps([options, data, *changing]).encode()).hexdigest()


def save_state(
    folder: Path,
    state: TrainState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    fingerprint: str,
    rng: Tensors,
    facts: Mapping[str, Any],
    ema: Tensors,
) -> None:
    """Write a checkpoint into `folder`.

    `fingerprint` tells which training this is; `restore_state` refuses another one. `rng` are the random states of all
    processes, `facts` whatever else is to be kept, as JSON can hold it, `ema` moving averages of parameters.
    """
    extra = {
        **facts,
        "fingerprint": fingerprint,
        "bad_in_a_row": state.bad_in_a_row,
        "sums": state.sums.to_dict(),
        "epochs": state.epochs,
    }
    tensors, moments = model.state_dict(), optimizer.state_dict()
    Checkpoint(state.epoch, state.batch, state.step, tensors, moments, rng, extra, ema).save(folder)


def averaged_epochs(config: TrainConfig) -> range:
    """The epochs, counted from 1, whose models the final one is made of, in whichever way."""
    return range(max(1, config.num_epochs - config.average_last + 1), config.num_epochs + 1)


# The random numbers of a training's processes: each draws its own, and takes them up again where it stood.


def begin_random(seed: int, rank: int) -> None:
    """Seed this process at the start of a training; the first one as if it worked alone."""
    torch.manual_seed(fresh_seed(seed, 0, rank) if rank else seed)


def fresh_seed(seed: int, step: int, rank: int) -> int:
    """A seed for one process from some step on."""
    return int(seeded_generator(seed, step, f"process {rank}").integers(2**63))


def random_states(device: torch.device) -> Tensors:
    """The states of torch's generators in this process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def name_states(states: Sequence[Tensors]) -> Tensors:
    """The states of all processes under one set of names; those of the first are named as if it worked alone."""
    return {
        name if rank == 0 else f"{name}.{rank}": state
        for rank, one in enumerate(states)
        for name, state in one.items()
    }


def restore_random(named: Tensors, rank: int, device: torch.device) -> None:
    """Put this process's generators in the states that `name_states` named.

    Raises:
        KeyError: there is none for this process.
    """
    suffix = f".{rank}" if rank else ""
    torch.set_rng_state(named["cpu" + suffix])
    if device.type == "cuda" and "cuda" + suffix in named:
        torch.cuda.set_rng_state(named["cuda" + suffix], device)


# How a training that ended in any way is taken up again: checkpoint and log, brought to one position.

ASIDE = ".aside"  # ends the name of a checkpoint that is out of use


def take_up(
    folder: Path,
    log: JsonLinesLog,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    fingerprint: str,
    needed: range,
    tell: Callable[[str], None],
) -> tuple[TrainState, Checkpoint] | None:
    """`restore_state`, and the log where it stood then; what killed writers left is deleted."""
    remove_partials(folder.parent)
    remove_partials(folder)
    told: list[str] = []

    def warn(text: str) -> None:
        told.append(text)
        tell(f"WARNING: {text}")

    found = restore_state(folder, model, optimizer, fingerprint=fingerprint, needed=needed, tell=warn)
    position = (0, 0) if found is None else (found[0].epoch, found[0].batch)
    torn = log.rewind(lambda event: not _comes_again(event, position))
    if torn:
        warn(f"{log.path}: {torn} lines were cut short and are gone")
    for text in told:
        log.write("warning", text=text)
    return found


def _comes_again(event: Mapping[str, Any], position: tuple[int, int]) -> bool:
    """Whether the training, gone back to `position` (epochs and batches done), will write this event again."""
    kind, epoch = event.get("event"), event.get("epoch")
    if kind not in ("epoch", "skipped") or not isinstance(epoch, int):
        return False
    finished = (epoch, 0) if kind == "epoch" else (epoch - 1, int(event.get("batch", 0)) + 1)
    return finished > position


def restore_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    fingerprint: str,
    needed: range,
    tell: Callable[[str], None],
) -> tuple[TrainState, Checkpoint] | None:
    """Take up the newest checkpoint of `folder` from which the final model can be reached; None if there is none.

    Args:
        folder: of the checkpoints.
        model, optimizer: take the state of the checkpoint.
        fingerprint: of this training.
        needed: epochs, counted from 1, whose models the end needs (`averaged_epochs`).
        tell: told of each checkpoint that is damaged or no longer of use; such files are renamed to end in `ASIDE`.

    Raises:
        ConfigError: the checkpoint belongs to a training with another fingerprint.
        DataError: there are checkpoints, but none that can be gone on from.
    """
    paths = list_checkpoints(folder)
    if not paths:
        return None
    checkpoint = _set_aside_unusable(folder, paths, needed, tell)
    if checkpoint.state.get("fingerprint") != fingerprint:
        raise ConfigError(
            f"{folder}: holds a training with other options or utterances; delete it or choose another"
        )
    try:
        model.load_state_dict(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizer)
        state = TrainState(
            checkpoint.epoch,
            checkpoint.batch,
            checkpoint.step,
            checkpoint.state["bad_in_a_row"],
            EpochSums(**checkpoint.state["sums"]),
            list(checkpoint.state["epochs"]),
        )
        return state, checkpoint
    except (KeyError, RuntimeError, TypeError, ValueError) as error:  # load_state_dict raises RuntimeError
        raise DataError(
            f"{folder / checkpoint.file_name}: does not fit this network and optimiser: {' '.join(str(error).split())}"
        ) from error


def _set_aside_unusable(
    folder: Path, paths: list[Path], needed: range, tell: Callable[[str], None]
) -> Checkpoint:
    """The newest sound checkpoint behind which no needed one is missing or damaged."""
    sound: set[Path] = set()
    damage: list[str] = []
    for path in reversed(paths):
        try:
            Checkpoint.load(path)
            sound.add(path)
        except DataError as error:
            damage.append(str(error))
            tell(f"damaged checkpoint: {error}")
    for path in paths[::-1]:
        if path not in sound:
            continue
        checkpoint = Checkpoint.load(path)
        behind = [epoch_end(folder, epoch) for epoch in needed if epoch <= checkpoint.epoch]
        lost = [name for name in behind if name not in sound]
        if not lost:
            for later in paths[paths.index(path) + 1 :]:
                later.replace(later.with_name(later.name + ASIDE))
            if path != paths[-1]:
                tell(f"going on from the earlier checkpoint {path.name}; later ones now end in {ASIDE}")
            return checkpoint
        tell(f"{path.name} cannot be used: the final model needs {lost[0].name} too, which is lost")
    reason = (
        damage[0] if damage else f"the final model needs {epoch_end(folder, needed[0]).name}, which is lost"
    )
    raise DataError(
        f"{folder}: no checkpoint can be gone on from ({reason}); delete the folder to start anew"
    )


# The checkpoints of one training: written, thinned out, taken up again, averaged.
#
# The first process alone reads and writes files. The others are told what it read, so that they need not see
# its folder.


class Keeper:
    """Keeps a training's state on disk.

    Args:
        folder: of the checkpoints.
        model, optimizer: whose state is written and restored.
        config: says how many checkpoints are kept, and which are averaged.
        fingerprint: of the training; a checkpoint of another one is refused.
        world: all of its processes call every method, but `last_epochs` and `average`.
        precision: whose factor is written and restored.
        ema: the moving average of the parameters, written and restored; None without one.
    """

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        fingerprint: str,
        *,
        world: World,
        precision: Precision,
        ema: ParameterEma | None = None,
    ) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._fingerprint = fingerprint
        self._world = world
        self._precision = precision
        self._ema = ema
        self._device = next(model.parameters()).device

    def save(self, state: TrainState) -> None:
        """Write a checkpoint and delete those that are no longer of use."""
        random = self._world.gather(random_states(self._device))
        if self._world.is_first:
            facts = {
                "processes": self._world.size,
                "precision": [self._precision.factor, self._precision.good_steps],
            }
            save_state(
                self._folder,
                state,
                self._model,
                self._optimizer,
                fingerprint=self._fingerprint,
                rng=name_states(random),
                facts=facts,
                ema=self.averages(),
            )
            self._prune(state)
        self._world.wait("the first process to write a checkpoint")

    def take_up(self, log: JsonLinesLog | NoLog, tell: Callable[[str], None]) -> TrainState | None:
        """Restore the newest sound checkpoint, with model, optimiser and log as they were then.

        Random numbers go on where they stood if there are as many processes as then; else all begin with fresh seeds.

        `log` is rewound; the processes that are not the first have none.

        Returns:
            Where the training stands; None if there is no checkpoint.

        Raises:
            ConfigError, DataError: as `fsachain.train.checkpoint.restore_state`.
        """
        taken = None
        if isinstance(log, JsonLinesLog):
            found = take_up(
                self._folder,
                log,
                self._model,
                self._optimizer,
                fingerprint=self._fingerprint,
                needed=averaged_epochs(self._config),
                tell=tell,
            )
            if found is not None:
                self._prune(found[0])
                if self._ema is not None:
                    self._ema.load(found[1].ema)
                taken = (found[0], found[1].optimizer, found[1].rng, found[1].state)
        taken = self._world.from_first(taken)
        if taken is None:
            return None
        state, moments, random, facts = taken
        if not self._world.is_first:
            self._optimizer.load_state_dict(moments)
        self._world.copy_first({**self._model.state_dict(), **self._named_averages()})
        self._precision.factor, self._precision.good_steps = facts.get("precision", [1.0, 0])
        if facts.get("processes", 1) == self._world.size:
            try:
                restore_random(random, self._world.rank, self._device)
            except (KeyError, RuntimeError) as error:  # torch's, about a state of the wrong size
                raise DataError(
                    f"{self._folder}: the newest checkpoint's random states cannot be used ({error})"
                ) from error
        else:
            torch.manual_seed(fresh_seed(self._config.seed, state.step, self._world.rank))
        return state

    def averages(self) -> Tensors:
        """The moving averages of the parameters, by name; empty without any."""
        return {} if self._ema is None else self._ema.state()

    def _named_averages(self) -> Tensors:
        return {f"the moving average of {name}": value for name, value in self.averages().items()}

    def last_epochs(self) -> list[Path]:
        """The checkpoints whose models make the final one, oldest first."""
        return [epoch_end(self._folder, epoch) for epoch in averaged_epochs(self._config)]

    def average(self) -> dict[str, torch.Tensor]:
        """The mean of the models of `last_epochs`."""
        return average_checkpoints(self.last_epochs())

    def _prune(self, state: TrainState) -> None:
        keep = len(averaged_epochs(self._config)) + self._config.keep_checkpoints
        prune_checkpoints(self._folder, keep, state.best_epoch)
