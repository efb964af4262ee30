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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fsachain.errors import DataError, require
from fsachain.files import parse_json, replacing
from fsachain.json_size import missing_bytes

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
