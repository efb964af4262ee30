"""How a training that ended in any way is taken up again: checkpoint and log, brought to one position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fsachain.errors import ConfigError, DataError
from fsachain.files import remove_partials
from fsachain.train.checkpoint import Checkpoint, epoch_end, list_checkpoints
from fsachain.train.log import JsonLinesLog
from fsachain.train.state import TrainState
from fsachain.train.stats import EpochSums

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
