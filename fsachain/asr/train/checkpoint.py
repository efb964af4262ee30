"""Checkpoints: one safetensors file each, with everything that an exact continuation needs.

Tensors (parameters, buffers, optimiser moments, random states) are stored under dotted names; all other state is JSON in
the file's metadata. A file appears under its name only when it is complete, so that a run which is killed while it writes
finds the previous checkpoint intact; a checksum tells a file that was damaged later. No pickle is read.

`Checkpoints` keeps those of one training. Its first process alone reads and writes files; the others are told what it read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fsachain.asr.data.audio import seeded_generator
from fsachain.asr.train.config import GONE_OPTIONS, TrainConfig, changes, to_dict
from fsachain.asr.train.log import JsonLinesLog
from fsachain.asr.train.optimizer import Schedules
from fsachain.asr.train.source import Source
from fsachain.asr.train.step import EpochSums, Stepper
from fsachain.errors import ConfigError, DataError, brief, counted, require
from fsachain.files import parse_json, remove_partials, replacing

Tensors = dict[str, torch.Tensor]
FORMAT = "fsachain checkpoint 2"
WITHOUT_CHECKSUM = "fsachain checkpoint 1"  # of files without a checksum, still read
ASIDE = ".aside"  # ends the name of a checkpoint that is out of use
MAX_HEADER_BYTES = 1 << 23  # of a safetensors file; entries become Python objects of twenty times their size
_PADDING = "padding"  # a tensor of zeros in files of older versions
_LONGEST_REASON = 400  # characters of an error message, which may quote the file
_MOST_TOLD = 8  # differences of two trainings
_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)\.safetensors")

# Options that may change when a training is resumed.
_FREE_OPTIONS = (
    "num_threads",
    "keep_checkpoints",
    "checkpoint_every",
    "max_bad_batches",
    "batch_norm_batches",
    "bad_data",
    "combine",
    "micro_batch",
    "process_timeout",
)


@dataclass
class Checkpoint:
    """State of a training between two steps.

    `epoch` counts finished epochs, `batch` those batches of the next epoch that are done (0 at the end of an epoch).
    `rng` holds random states by device: `cpu`, `cuda`, and `cpu.1`, ... of further processes.
    """

    epoch: int
    batch: int
    step: int
    model: Tensors
    optimizer: dict[str, Any] = field(default_factory=dict)
    rng: Tensors = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    __repr__ = brief

    @property
    def file_name(self) -> str:
        return f"epoch-{self.epoch:04d}-batch-{self.batch:06d}.safetensors"

    def save(self, directory: str | Path) -> Path:
        parts = {"model": self.model, "rng": self.rng}
        tensors = {
            f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()
        }
        optimizer = {"param_groups": self.optimizer.get("param_groups", []), "state": {}}
        for index, moments in self.optimizer.get("state", {}).items():
            held = {name: value for name, value in moments.items() if isinstance(value, torch.Tensor)}
            tensors |= {f"optimizer.{index}.{name}": value for name, value in held.items()}
            optimizer["state"][str(index)] = {name: one for name, one in moments.items() if name not in held}
        numbers = {"epoch": self.epoch, "batch": self.batch, "step": self.step}
        path = Path(directory) / self.file_name
        save_tensors(path, tensors, {**numbers, "optimizer": optimizer, "state": self.state})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        tensors, header = load_tensors(path)
        try:
            optimizer = {
                "param_groups": header["optimizer"]["param_groups"],
                "state": {int(index): values for index, values in header["optimizer"]["state"].items()},
            }
            # The last is of earlier versions, and of no use.
            parts: dict[str, Tensors] = {"model": {}, "rng": {}, "optimizer": {}, "ema": {}}
            for name, tensor in tensors.items():
                part, _, rest = name.partition(".")
                parts[part][rest] = tensor
            for name, tensor in parts["optimizer"].items():
                index, _, moment = name.partition(".")
                optimizer["state"][int(index)][moment] = tensor
            counts = (int(header["epoch"]), int(header["batch"]), int(header["step"]))
            return cls(*counts, parts["model"], optimizer, parts["rng"], header["state"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            raise DataError(f"{path}: not a training checkpoint ({reason})") from error


def save_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """All or nothing; see `fsachain.files.replacing`."""
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header)
    # Programs that read any safetensors file look for the framework under "format".
    metadata = {"format": "pt", "fsachain": FORMAT, "header": text, "checksum": checksum_of(owned, text)}
    content = require("safetensors.torch", extra="recipes").save(owned, metadata=metadata)
    with replacing(path) as file:
        file.write(content)


def load_tensors(path: str | Path) -> tuple[Tensors, dict[str, Any]]:
    safetensors = require("safetensors", extra="recipes")
    try:
        check_header_size(path)
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        kind = metadata.get("fsachain", metadata.get("format"))  # the second in files of earlier versions
        text = metadata["header"]
    except (OSError, KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error)[:_LONGEST_REASON]
        raise DataError(f"{path}: cannot read the checkpoint: {reason}") from error
    if kind not in (FORMAT, WITHOUT_CHECKSUM):
        raise DataError(f"{path}: expected format {FORMAT!r}, got {kind and kind[:80]!r}")
    checksum = metadata.get("checksum")
    if (kind == FORMAT or checksum is not None) and checksum != checksum_of(tensors, text):
        raise DataError(f"{path}: cannot read the checkpoint: its checksum is wrong, the file is damaged")
    tensors.pop(_PADDING, None)
    header = parse_json(text, str(path))
    if not isinstance(header, dict):
        raise DataError(f"{path}: cannot read the checkpoint: its header is no table")
    return tensors, header


def check_header_size(path: str | Path) -> None:
    """A long header becomes so many objects that it could fill the memory: refused with a ValueError."""
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {counted(length, 'byte')}; expected at most {MAX_HEADER_BYTES}")


def checksum_of(tensors: Mapping[str, torch.Tensor], header: str = "") -> str:
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


def epoch_end(directory: str | Path, epoch: int) -> Path:
    """Path of the checkpoint at the end of an epoch, whether or not it exists."""
    return Path(directory) / Checkpoint(epoch, 0, 0, {}).file_name


def prune_checkpoints(directory: str | Path, keep_epochs: int, best: int | None = None) -> None:
    """Delete all but the newest checkpoint, the ends of the last `keep_epochs` epochs and that of epoch `best`."""
    paths = list_checkpoints(directory)
    ends = [path for path in paths if path.name.endswith("-batch-000000.safetensors")]
    keep = {*ends[-keep_epochs:], *paths[-1:]}
    if best is not None:
        keep.add(epoch_end(directory, best))
    for path in paths:
        if path not in keep:
            path.unlink(missing_ok=True)


@dataclass
class TrainState:
    """`bad_in_a_row` counts the batches skipped since the last good one."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    bad_in_a_row: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    epochs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def position(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step}

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the highest objective on the development set; None without one."""
        scored = [(entry["dev"]["objf"], entry["epoch"]) for entry in self.epochs if entry["dev"] is not None]
        finite = [(objf, -epoch) for objf, epoch in scored if objf == objf]
        return -max(finite)[1] if finite else None


class Identity:
    """All that decides the course of a training, which a checkpoint must have been made with.

    `facts` are options of the training, schedules of the loss, and both sets of utterances, as JSON can hold them.
    """

    def __init__(
        self, config: TrainConfig, source: Source, dev_source: Source | None, schedules: Schedules
    ) -> None:
        self._schedules, self._num_batches = schedules, source.num_batches
        self.facts: dict[str, Any] = {
            "train": {name: value for name, value in to_dict(config).items() if name not in _FREE_OPTIONS},
            "loss": {name: str(value) for name, value in sorted(schedules.loss_options.items())},
            "training set": _set_fact(source),
            "development set": "none" if dev_source is None else _set_fact(dev_source),
        }

    def check(self, state: Mapping[str, Any], epoch: int, batch: int) -> None:
        """A ConfigError names what a checkpoint at this place was made with that is different now.

        Another number of epochs is none where all that is scheduled goes on from where it is.
        """
        before = state.get("identity")
        if not (isinstance(before, Mapping) and isinstance(before.get("train"), Mapping)):
            raise ConfigError("options and utterances that cannot be compared: an earlier version wrote it")
        # Options that went away count where they asked for something else than what is done now.
        kept = {
            name: one
            for name, one in before["train"].items()
            if name not in GONE_OPTIONS or one != GONE_OPTIONS[name][0]
        }
        told = changes({**before, "train": kept}, self.facts)
        if not told:
            return
        others = [text for text in told if not text.startswith("train.num_epochs ")]
        if not others:
            now, size = self.facts["train"]["num_epochs"], self._num_batches
            old, new = (
                self._schedules.at(epoch * size + batch, num_epochs * size)
                for num_epochs in (before["train"]["num_epochs"], now)
            )
            if old == new and epoch + bool(batch) <= now:
                return
            jumps = [
                f"{name} was {was:.3g}, is {new[name]:.3g}" for name, was in old.items() if was != new[name]
            ]
            why = (
                f"of the next step {', '.join(jumps)}"
                if jumps
                else f"{counted(epoch, 'epoch', verb='are')} done"
            )
            told = [
                f"{told[0]}, but {why}; expected constant schedules (train.schedule.decay: constant) and more epochs, or a "
                "new training that begins with this model (network.init_from)"
            ]
        raise ConfigError(f"other options or data: {', '.join(told[:_MOST_TOLD])}")


def _set_fact(source: Source) -> str:
    digest = hashlib.sha256(json.dumps(source.fingerprint()).encode()).hexdigest()
    return f"{source.num_utterances} utterances, {digest[:12]}"  # compared with what older versions wrote


def process_seed(seed: int, step: int, rank: int) -> int:
    return int(seeded_generator(seed, step, f"process {rank}").integers(2**63))


class Checkpoints:
    """The checkpoints of one training: written, thinned out, taken up again.

    All processes call `save` and `resume`. A checkpoint of another training, by `identity`, is refused.
    `final` are those whose models make the final model, oldest first.
    """

    def __init__(self, folder: Path, stepper: Stepper, config: TrainConfig, identity: Identity) -> None:
        self.folder, self.config, self.identity = folder, config, identity
        self.model, self.optimizer, self.world = stepper.model, stepper.optimizer, stepper.world
        self.precision = stepper.passes.precision
        self._device = next(self.model.parameters()).device
        first = max(1, config.num_epochs - config.average_last + 1)
        self.final = [epoch_end(folder, epoch) for epoch in range(first, config.num_epochs + 1)]

    def save(self, state: TrainState) -> None:
        own = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self._device)
        random = self.world.gather(own)
        if self.world.is_first:
            facts = {
                "processes": self.world.size,
                "precision": [self.precision.factor, self.precision.good_steps],
                "identity": self.identity.facts,
                "bad_in_a_row": state.bad_in_a_row,
                "sums": asdict(state.sums),
                "epochs": state.epochs,
            }
            # Names of the first process have no rank: they are those of a training with one process.
            rng = {
                f"{name}.{rank}" if rank else name: value
                for rank, states in enumerate(random)
                for name, value in states.items()
            }
            model, moments = self.model.state_dict(), self.optimizer.state_dict()
            Checkpoint(state.epoch, state.batch, state.step, model, moments, rng, facts).save(self.folder)
            self._prune(state)
        self.world.wait("the first process to write a checkpoint")

    def resume(self, log: JsonLinesLog | None, tell: Callable[[str], None]) -> TrainState | None:
        """Restore the newest checkpoint from which the final model can be reached; None if there is none.

        The log is rewound to that step; it is None in the processes that are not the first. Damaged checkpoints and those
        of no more use are renamed to end in `ASIDE`. Random states are restored if there are as many processes as then;
        else all begin with fresh seeds.
        """
        found = None
        if log is not None:
            checkpoint, state = self._read(log, tell)
            if checkpoint is not None:
                found = (state, checkpoint.optimizer, checkpoint.rng, checkpoint.state)
        found = self.world.from_first(found)
        if found is None:
            return None
        state, moments, random, facts = found
        if not self.world.is_first:
            self.optimizer.load_state_dict(moments)
        self.world.copy_first(self.model.state_dict())
        self.precision.factor, self.precision.good_steps = facts.get("precision", [1.0, 0])
        self._restore_random(random, facts, state)
        return state

    def _read(self, log: JsonLinesLog, tell: Callable[[str], None]) -> tuple[Checkpoint | None, TrainState]:
        """Also deletes the partial files of writers that were killed."""
        remove_partials(self.folder.parent)
        remove_partials(self.folder)
        told: list[str] = []

        def warn(text: str) -> None:
            told.append(text)
            tell(f"WARNING: {text}")

        checkpoint = self._newest_usable(warn)
        state = TrainState() if checkpoint is None else self._load(checkpoint)

        def comes_again(event: Mapping[str, Any]) -> bool:
            kind, epoch = event.get("event"), event.get("epoch")
            if kind not in ("epoch", "skipped") or not isinstance(epoch, int):
                return kind == "end"
            finished = (epoch, 0) if kind == "epoch" else (epoch - 1, int(event.get("batch", 0)) + 1)
            return finished > (state.epoch, state.batch)

        torn = log.rewind(lambda event: not comes_again(event))
        if torn:
            warn(f"{log.path}: {counted(torn, 'line')} cut short, which went away")
        for text in told:
            log.write("warning", text=text)
        if checkpoint is not None:
            self._prune(state)
        return checkpoint, state

    def _newest_usable(self, tell: Callable[[str], None]) -> Checkpoint | None:
        """The newest sound checkpoint such that all earlier ones that the final model needs are sound too."""
        paths = list_checkpoints(self.folder)
        if not paths:
            return None
        damage: dict[Path, DataError] = {}
        checked = False
        for path in reversed(paths):
            try:
                found = Checkpoint.load(path)
                if not checked:
                    self.identity.check(found.state, found.epoch, found.batch)
                    checked = True
            except DataError as error:
                damage[path] = error
                tell(f"damaged checkpoint: {error}")
            except ConfigError as error:
                raise ConfigError(
                    f"{self.folder.parent}: holds a training with {error}; delete it or choose another folder"
                ) from error
        sound = [path for path in paths if path not in damage]
        for path in reversed(sound):
            # File names sort by age, and the end of an epoch is named as the start of the next.
            lost = [name for name in self.final if name.name <= path.name and name not in sound]
            if lost:
                tell(f"{path.name} cannot be used: the final model needs {lost[0].name} too, which is lost")
                continue
            for later in paths[paths.index(path) + 1 :]:
                later.replace(later.with_name(later.name + ASIDE))
            if path != paths[-1]:
                tell(f"going on from the earlier checkpoint {path.name}; later ones now end in {ASIDE}")
            return Checkpoint.load(path)
        reason = next(iter(damage.values()), f"the final model needs {self.final[0].name}, which is lost")
        raise DataError(
            f"{self.folder}: no checkpoint can be gone on from ({reason}); delete the folder to start anew"
        )

    def _load(self, checkpoint: Checkpoint) -> TrainState:
        try:
            self.model.load_state_dict(checkpoint.model)
            self.optimizer.load_state_dict(checkpoint.optimizer)
            facts, place = checkpoint.state, (checkpoint.epoch, checkpoint.batch, checkpoint.step)
            sums = EpochSums(**facts["sums"])
            return TrainState(*place, facts["bad_in_a_row"], sums, list(facts["epochs"]))
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            # `load_state_dict` raises RuntimeError.
            raise DataError(
                f"{self.folder / checkpoint.file_name}: does not fit this network and optimiser: "
                f"{' '.join(str(error).split())}"
            ) from error

    def _restore_random(self, named: Tensors, facts: Mapping[str, Any], state: TrainState) -> None:
        rank = self.world.rank
        if facts.get("processes", 1) != self.world.size:
            torch.manual_seed(process_seed(self.config.seed, state.step, rank))
            return
        suffix = f".{rank}" if rank else ""
        try:
            torch.set_rng_state(named["cpu" + suffix])
            if self._device.type == "cuda" and "cuda" + suffix in named:
                torch.cuda.set_rng_state(named["cuda" + suffix], self._device)
        except (KeyError, RuntimeError) as error:  # torch's, about a state of the wrong size
            raise DataError(
                f"{self.folder}: the newest checkpoint's random states cannot be used ({error})"
            ) from error

    def _prune(self, state: TrainState) -> None:
        prune_checkpoints(self.folder, len(self.final) + self.config.keep_checkpoints, state.best_epoch)
