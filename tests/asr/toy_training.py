"""A corpus, a network, a loss and options so small that a whole training takes a fraction of a second."""

import io
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from fsachain.asr.data.dataset import Example
from fsachain.asr.nn.tdnnf import Tdnnf, TdnnfConfig
from fsachain.asr.train.config import TrainConfig
from fsachain.asr.train.reporting import ShownProgress
from fsachain.asr.train.schedule import ScheduleConfig
from fsachain.asr.train.trainer import Trainer
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.table import compile_table

NUM_PDFS = 6
NUM_FEATURES = 4


class Output(NamedTuple):
    nnet_output: torch.Tensor
    lengths: torch.Tensor
    xent_log_probs: torch.Tensor | None


class ToyModel(torch.nn.Module):
    """A linear map of every third frame, with dropout so that random state matters."""

    def __init__(self, xent="none"):
        super().__init__()
        self.hidden = torch.nn.Linear(NUM_FEATURES, 8)
        self.dropout = torch.nn.Dropout(0.2)
        self.norm = torch.nn.BatchNorm1d(8)
        self.output = torch.nn.Linear(8, NUM_PDFS)
        self.second = torch.nn.Linear(8, NUM_PDFS) if xent == "branch" else None
        self.constrained = 0

    def output_lengths(self, lengths):
        return (lengths + 2) // 3

    def forward(self, features, lengths):
        hidden = self.dropout(torch.relu(self.hidden(features[:, ::3])))
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        xent = None if self.second is None else self.second(hidden).log_softmax(dim=-1)
        return Output(self.output(hidden), self.output_lengths(lengths), xent)

    def constrain_orthonormal(self):
        self.constrained += 1


class ToyLoss(torch.nn.Module):
    """Every frame may take any active pdf of its numerator; the denominator is the sum over all pdfs."""

    def __init__(self, xent_scale=0.0):
        super().__init__()
        self.last_record: Any = None
        self.xent_scale = xent_scale

    def objective(self, nnet_output, lengths, numerators, xent_log_probs=None):
        return self._compute(nnet_output, lengths, numerators, xent_log_probs)[1]

    def forward(self, nnet_output, lengths, numerators, xent_log_probs=None):
        loss, self.last_record = self._compute(nnet_output, lengths, numerators, xent_log_probs)
        return loss

    def _compute(self, scores, lengths, numerators, xent):
        num, den, extra = [], [], scores.sum() * 0.0
        for n, length in enumerate(lengths.tolist()):
            active = torch.as_tensor(numerators.table(n).active_pdfs.astype(np.int64))
            num.append(scores[n, :length][:, active].logsumexp(dim=1).sum())
            den.append(scores[n, :length].logsumexp(dim=1).sum())
            if xent is not None and self.xent_scale:
                extra = extra + self.xent_scale * xent[n, :length][:, active].sum()
        numerator, denominator = torch.stack(num), torch.stack(den)
        ok = torch.isfinite(numerator - denominator)
        objf = torch.where(ok, numerator - denominator, torch.zeros(())).sum()
        weight = float(lengths[ok].sum())
        record = SimpleNamespace(
            objf_ok=float(objf.detach()),
            num_log_prob=numerator.detach().double(),
            den_log_prob=denominator.detach().double(),
            l2_term=0.0,
            out_of_range_term=0.0,
            xent_objf=float(extra.detach()),
            weight_ok=weight,
            ok=ok,
            excluded=tuple(np.array(numerators.names)[~ok.numpy()].tolist()),
        )
        return -(objf + extra) / max(weight, 1.0), record


def one_pdf_table(pdf, least_frames=1):
    """`least_frames` or more frames of one pdf."""
    states = np.arange(least_frames + 1)
    dst, final = np.minimum(states + 1, least_frames), np.where(states == least_frames, 0.0, -np.inf)
    return compile_table(Fsa(len(states), states, dst, 0 * states + pdf, 0.0 * states, final), NUM_PDFS)


def corpus(count=24, seed=3):
    """Utterances whose features say which pdf is right."""
    rng = np.random.default_rng(seed)
    examples, numerators = [], {}
    for n in range(count):
        pdf = n % NUM_PDFS
        frames = int(rng.integers(9, 30))
        features = rng.normal(scale=0.3, size=(frames, NUM_FEATURES))
        features[:, pdf % NUM_FEATURES] += 1.0 if pdf < NUM_FEATURES else -1.0
        name = f"utt{n:02d}"
        examples.append(Example(name, "anna", ("word",), features.astype(np.float32)))
        numerators[name] = one_pdf_table(pdf)
    return examples, numerators


def config(**options):
    defaults = {"num_epochs": 4, "batch_size": 5, "seed": 1, "average_last": 2, "num_threads": 0}
    defaults |= {"schedule": ScheduleConfig(peak=0.05, final=0.005, start=0.01)}
    return TrainConfig(**(defaults | options))


def new_trainer(directory, numerators, **options):
    torch.manual_seed(5)
    return Trainer(ToyModel(), ToyLoss(), config(**options), directory, numerators=numerators)


def lfmmi_trainer(directory, numerators, world=None, **options):
    """The real network and the real loss."""
    loss = LFMMILoss(any_pdf(), l2_regularize=1e-4, xent_regularize=0.1)
    torch.manual_seed(5)
    settings = config(**{"checkpoint_every": 2, **options})
    return Trainer(tdnnf(), loss, settings, directory, numerators=numerators, world=world)


def tdnnf(dropout=0.0):
    sizes = {"channels": 16, "bottleneck": 8, "prefinal": 16, "time_strides": (1, 1), "xent": "branch"}
    return Tdnnf(TdnnfConfig(NUM_FEATURES, NUM_PDFS, dropout=dropout, **sizes))


def any_pdf():
    """A denominator that takes any pdf at any time."""
    zeros = np.zeros(NUM_PDFS, dtype=np.int32)
    anything = Fsa(1, zeros, zeros, np.arange(NUM_PDFS), np.full(NUM_PDFS, -np.log(NUM_PDFS)), [0.0])
    return DenominatorGraph(anything, NUM_PDFS)


class Interruption(Exception):
    """Stands for a crash."""


class BreakAfter(ShownProgress):
    """Breaks the training off after some batches."""

    def __init__(self, batches):
        super().__init__(io.StringIO())
        self.left = batches

    def batch(self, sums):
        self.left -= 1
        if self.left < 0:
            raise Interruption
