"""What to tell a person about utterances that are left out, and about a training that no longer moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from fsachain.data.faults import Fault, fault_table
from fsachain.errors import FsachainError
from fsachain.train.source import SupervisedBatch
from fsachain.train.step import StepOutcome


class DivergedError(FsachainError, ArithmeticError):
    """Several batches in a row gave numbers that are not finite."""


def describe_excluded(excluded: Sequence[Fault]) -> str:
    """The table of the utterances that take no part."""
    return f"{len(excluded)} utterances are left out (all are in train.jsonl):\n{fault_table(excluded)}"


def find_causes(model: nn.Module, parts: Sequence[SupervisedBatch], outcome: StepOutcome) -> list[str]:
    """Which numbers of a bad batch are not finite, from the input to the loss, as far as one process knows.

    `parts` are its micro-batches, and may be none.
    """
    causes = []
    broken = []
    for item in parts:
        frames = torch.isfinite(item.batch.features).flatten(1).all(dim=1).tolist()
        broken += [name for name, good in zip(item.batch.ids, frames, strict=True) if not good]
    if broken:
        causes.append(f"features that are not finite in {', '.join(broken)}")
    weights = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if weights:
        causes.append(f"parameters that are not finite: {', '.join(weights[:3])}")
    if outcome.excluded:
        causes.append(
            f"sequences without a path, or with outputs that are not finite: {', '.join(outcome.excluded)}"
        )
    return causes


def diagnose(outcome: StepOutcome, causes: Iterable[str]) -> str:
    """One line about a bad batch, with the causes that all processes found."""
    told = list(dict.fromkeys(causes))
    if not told:
        if not math.isfinite(outcome.loss):
            told.append("a network output that is not finite")
        elif not math.isfinite(outcome.grad_norm):
            told.append("a gradient that is not finite")
        told.append("features and parameters are finite: try a lower learning rate or gradient norm")
    if outcome.overflow:
        told = ["a number too large for float16, the gradients of the next batches are scaled down"]
    return f"loss {outcome.loss:g}, gradient norm {outcome.grad_norm:g}; {'; '.join(told)}"
