"""Where a training stands, and how it is put aside; `resume` takes it up again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fsachain.data.faults import Fault
from fsachain.train.checkpoint import Checkpoint, Tensors
from fsachain.train.config import TrainConfig, to_dict
from fsachain.train.piecewise import Scheduled
from fsachain.train.stats import EpochSums

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
