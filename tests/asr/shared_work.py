"""What the processes of `process_group.Group` do in the tests of trainings with several processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from toy_training import NUM_FEATURES, NUM_PDFS, Output, any_pdf, config, corpus, one_pdf_table, tdnnf

from fsachain.asr.train.config import OptimizerConfig, TrainConfig
from fsachain.asr.train.source import BatchSource, supervise
from fsachain.asr.train.step import EpochSums, Stepper
from fsachain.asr.train.stopping import StoppedError
from fsachain.asr.train.trainer import Trainer
from fsachain.asr.train.world import WHOLE
from fsachain.errors import DataError
from fsachain.loss.lfmmi import LFMMILoss

EXAMPLES, NUMERATORS = corpus(12)
IMPOSSIBLE = ("utt01", "utt06", "utt07")
NUMERATORS = NUMERATORS | {name: one_pdf_table(2, least_frames=50) for name in IMPOSSIBLE}
BY_ID = {example.id: example for example in EXAMPLES}


class Linear(torch.nn.Module):
    """A map of every third frame, without statistics of the batch and without dropout."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(NUM_FEATURES, 8)
        self.output = torch.nn.Linear(8, NUM_PDFS)
        self.second = torch.nn.Linear(8, NUM_PDFS)

    def output_lengths(self, lengths):
        return (lengths + 2) // 3

    def forward(self, features, lengths):
        hidden = torch.tanh(self.hidden(features[:, ::3]))
        return Output(
            40.0 * self.output(hidden), self.output_lengths(lengths), self.second(hidden).log_softmax(dim=-1)
        )


class NotingLoss(LFMMILoss):
    """Remembers which utterances it has seen in training."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen: list[str] = []

    def forward(self, nnet_output, lengths, numerators, *rest, **options):
        self.seen += numerators.names
        return super().forward(nnet_output, lengths, numerators, *rest, **options)


def make_loss():
    """All terms of the loss."""
    terms = {"l2_regularize": 1e-3, "out_of_range_regularize": 0.1, "xent_regularize": 0.1}
    return NotingLoss(any_pdf(), **terms)


def make_model(kind, dropout=0.0):
    """ "linear", or "tdnnf" with a batch normalisation over all processes."""
    torch.manual_seed(5)
    return Linear() if kind == "linear" else tdnnf(dropout=dropout)


@dataclass
class Gradient:
    """What one process has after a step."""

    loss: float
    norm: float
    usable: bool
    excluded: tuple[str, ...]
    grads: list[np.ndarray | None]
    buffers: list[np.ndarray]
    sums: EpochSums


def gradient(world, request):
    """A step with the micro-batches given by the ids of their utterances."""
    kind, parts, precision = request
    model = make_model(kind).train()
    stepper = Stepper(
        model,
        make_loss(),
        torch.optim.SGD(model.parameters(), lr=0.0),
        TrainConfig(optimizer=OptimizerConfig(max_grad_norm=float("inf")), precision=precision),
        world,
    )
    sums = EpochSums()
    outcome = stepper.step([supervise([BY_ID[name] for name in part], NUMERATORS) for part in parts], sums)
    return Gradient(
        outcome.loss,
        outcome.grad_norm,
        outcome.usable,
        outcome.excluded,
        [None if p.grad is None else p.grad.numpy() for p in model.parameters()],
        [buffer.numpy() for buffer in model.buffers()],
        sums,
    )


@dataclass(frozen=True)
class Plan:
    """A training, and what goes wrong in it, in one process.

    Attributes:
        folder: of the training; that of another process is another one.
        kind: of the network.
        options: of `config`.
        dropout: of the network.
        stop_at, kill_at, raise_at: number of batches of the first epoch after which this process sends itself SIGTERM or
            SIGKILL, or raises.
    """

    folder: Path
    kind: str = "tdnnf"
    options: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    stop_at: int | None = None
    kill_at: int | None = None
    raise_at: int | None = None


class Faulty(BatchSource):
    """A source in which something happens."""

    plan: Plan

    def batches(self, epoch, start=0, share=WHOLE):
        plan = self.plan
        for number, parts in enumerate(super().batches(epoch, start, share), start=start):
            if number == plan.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            if number == plan.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if number == plan.raise_at:
                raise DataError("utterance 'u7': cannot read 'u7.wav'")
            yield parts


@dataclass
class Trained:
    """What a process has after a training."""

    state: dict[str, torch.Tensor]
    epochs: list[dict[str, Any]]
    dev: dict[str, Any]
    seen: list[str]
    excluded: tuple[str, ...]


@dataclass
class Ended:
    """What a process has after a training that was stopped."""

    message: str
    seen: list[str]


def train(world, plan):
    """A training of some epochs; all utterances are usable, as far as the source can tell."""
    numerators = NUMERATORS | {name: one_pdf_table(1) for name in IMPOSSIBLE}
    optimizer = OptimizerConfig(name="sgd", momentum=0.5)
    options = config(**{"num_epochs": 2, "optimizer": optimizer, **plan.options})
    loss = make_loss()
    trainer = Trainer(make_model(plan.kind, plan.dropout), loss, options, plan.folder, world=world)
    settings = {"batch_size": options.batch_size, "seed": options.seed}
    lengths = trainer.model.output_lengths
    source = Faulty([EXAMPLES], numerators, lengths, **settings)
    source.plan = plan
    dev = BatchSource([EXAMPLES[:5]], numerators, lengths, **settings)
    try:
        result = trainer.fit_sources(source, dev)
    except StoppedError as error:
        return Ended(str(error), loss.seen)
    return Trained(
        {name: value.to("cpu", copy=True) for name, value in trainer.model.state_dict().items()},
        list(result.epochs),
        result.dev,
        loss.seen,
        tuple(fault.id for fault in result.excluded),
    )


def plans(folder, size, **options):
    """One plan for each process, in folders of their own."""
    return [replace(Plan(folder / str(rank)), **options) for rank in range(size)]
