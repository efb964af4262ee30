"""A training step of the digits recipe: its network, batch shape and graphs, on random features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fsachain.batch import TableBatch
from fsachain.cli.config import Experiment
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import build_numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import Topology
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.nn.tdnnf import Tdnnf
from fsachain.table import compile_table
from fsachain.train.optimizer import make_optimizer, set_learning_rate
from tools.bench import machine, workloads

CONFIG = machine.ROOT / "recipes" / "digits" / "config.yaml"
FRAMES_PER_SECOND = 100
# Without the recordings' texts: graphs of the size that they give, and sequences of their mean duration.
SEEDED_STATES, SEEDED_ARCS, SEEDED_PDFS, SEEDED_NUMERATOR_STATES, SEEDED_FRAMES = 126, 590, 40, 56, 303


@dataclass(frozen=True)
class Step:
    """A training step whole, and the loss with its gradient alone on scores of the same shape."""

    name: str
    whole: Callable[[], object]
    loss_alone: Callable[[], object]


def make_step(folder: Path | None) -> Step:
    """The step with graphs and durations of the first utterances of connected/train in `folder`, or seeded ones."""
    experiment = Experiment.read(CONFIG)
    size = experiment.train.batch_size
    denominator, numerators, frames = _of_folder(folder, experiment) if folder else _seeded(size)
    torch.manual_seed(1)
    network = Tdnnf(experiment.network_config(denominator.num_pdfs))
    optimizer = make_optimizer(network, experiment.train.optimizer)
    set_learning_rate(optimizer, 1e-3)
    loss = LFMMILoss(denominator, **experiment.loss.at(1.0))
    features = torch.randn(size, int(frames.max()), network.config.num_features)
    batch = TableBatch.pack([compile_table(graph, denominator.num_pdfs) for graph in numerators])
    leaf = network(features, frames).nnet_output.detach().requires_grad_()
    lengths = network.output_lengths(frames)

    def whole() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(network(features, frames).nnet_output, lengths, batch)
        value.backward()
        optimizer.step()
        return value

    def loss_alone() -> torch.Tensor:
        leaf.grad = None
        value = loss(leaf, lengths, batch)
        value.backward()
        return value

    return Step(f"digits, B {size}, T {int(lengths.max())}, P {denominator.num_pdfs}", whole, loss_alone)


def _of_folder(folder: Path, experiment: Experiment) -> tuple[DenominatorGraph, list[Fsa], torch.Tensor]:
    size, config = experiment.train.batch_size, experiment.phone_lm
    lexicon = Lexicon.read(folder / "lang" / "lexicon.txt")
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    texts = [line.split()[1:] for line in _lines(folder / "connected" / "train" / "text")]
    phone_lm = estimate_phone_lm(
        lm_phones(texts, lexicon, seed=1),
        ngram_order=config.ngram_order,
        num_extra_lm_states=config.num_extra_lm_states,
        no_prune_ngram_order=config.no_prune_ngram_order,
    )
    denominator = DenominatorGraph(build_denominator(phone_lm, tree), tree.num_pdfs)
    normalization = denominator.normalization_fsa()
    numerators = [
        build_numerator(words, lexicon, tree, normalization=normalization).fsa for words in texts[:size]
    ]
    seconds = [float(line.split()[1]) for line in _lines(folder / "connected" / "train" / "utt2dur")[:size]]
    return denominator, numerators, torch.tensor([int(FRAMES_PER_SECOND * value) for value in seconds])


def _seeded(size: int) -> tuple[DenominatorGraph, list[Fsa], torch.Tensor]:
    denominator = DenominatorGraph(workloads.connected(SEEDED_STATES, SEEDED_ARCS, SEEDED_PDFS), SEEDED_PDFS)
    generator = np.random.default_rng(1)
    chains = generator.integers(0, SEEDED_PDFS, (size, SEEDED_NUMERATOR_STATES - 1))
    skippable = np.zeros(chains.shape[1], dtype=bool)
    numerators = [workloads.left_to_right(pdfs, skippable, float(np.log(0.5)), 1) for pdfs in chains]
    return denominator, numerators, torch.full((size,), SEEDED_FRAMES)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
