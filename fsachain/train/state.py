"""Where a training stands, and how it is put aside and taken up again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fsachain.data.augment import AugmentConfig
from fsachain.errors import ConfigError
from fsachain.train.checkpoint import Checkpoint, list_checkpoints, prune_checkpoints
from fsachain.train.config import TrainConfig, to_dict
from fsachain.train.stats import EpochSums

# Options that do not decide the course of a training.
_FREE_OPTIONS = (
    "num_threads",
    "keep_checkpoints",
    "checkpoint_every",
    "max_bad_batches",
    "batch_norm_batches",
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


def fingerprint(
    config: TrainConfig, augmentation: AugmentConfig | None, examples: list[list[str | int]]
) -> str:
    """Hash of all that decides the course of a training; `examples` are ids and lengths."""
    options = {name: value for name, value in to_dict(config).items() if name not in _FREE_OPTIONS}
    content = [options, to_dict(augmentation) if augmentation else None, examples]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def save_state(
    folder: Path,
    state: TrainState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    fingerprint: str,
    keep_epochs: int,
) -> None:
    """Write a checkpoint into `folder` and delete those that are no longer needed.

    `fingerprint` tells which training this is; `restore_state` refuses another one.
    """
    rng = {"cpu": torch.get_rng_state()}
    device = next(model.parameters()).device
    if device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(device)
    extra = {
        "fingerprint": fingerprint,
        "bad_in_a_row": state.bad_in_a_row,
        "sums": state.sums.to_dict(),
        "epochs": state.epochs,
    }
    tensors, moments = model.state_dict(), optimizer.state_dict()
    Checkpoint(state.epoch, state.batch, state.step, tensors, moments, rng, extra).save(folder)
    prune_checkpoints(folder, keep_epochs)


def restore_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> TrainState | None:
    """Take up the newest checkpoint of `folder`; None if there is none.

    Raises:
        ConfigError: the checkpoint belongs to a training with another fingerprint.
        DataError: the checkpoint cannot be read.
    """
    paths = list_checkpoints(folder)
    if not paths:
        return None
    checkpoint = Checkpoint.load(paths[-1])
    if checkpoint.state["fingerprint"] != fingerprint:
        raise ConfigError(
            f"{folder}: holds a training with other options or utterances; delete it or choose another"
        )
    model.load_state_dict(checkpoint.model)
    optimizer.load_state_dict(checkpoint.optimizer)
    torch.set_rng_state(checkpoint.rng["cpu"])
    device = next(model.parameters()).device
    if "cuda" in checkpoint.rng and device.type == "cuda":
        torch.cuda.set_rng_state(checkpoint.rng["cuda"], device)
    return TrainState(
        checkpoint.epoch,
        checkpoint.batch,
        checkpoint.step,
        checkpoint.state["bad_in_a_row"],
        EpochSums(**checkpoint.state["sums"]),
        list(checkpoint.state["epochs"]),
    )
