"""Sources of a training whose features are all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsachain.cli.config import Experiment
from fsachain.cli.network_spec import NetworkSpec
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.model import normalise_set
from fsachain.cli.steps.training_sets import ChunkedSet, TrainingSet
from fsachain.cli.steps.validation import load_supervised
from fsachain.data.audio import Perturbation
from fsachain.data.cmvn import Cmvn
from fsachain.data.dataset import estimate_cmvn
from fsachain.data.faults import Fault
from fsachain.train.checks import OutputLengths
from fsachain.train.source import BatchSource, Source


@dataclass(frozen=True)
class Sources:
    """What a training takes its batches from.

    Attributes:
        cmvn: normalisation of the training set.
        train, dev: the batches; no `dev` is fine.
        faults: of utterances that are in neither.
    """

    cmvn: Cmvn
    train: Source
    dev: Source | None
    faults: list[Fault] = field(default_factory=list)

    def close(self) -> None:
        """End what works for the sources."""


def load_sources(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet,
    dev: TrainingSet | None,
    copies: Sequence[Perturbation],
    spec: NetworkSpec,
    output_lengths: OutputLengths,
    *,
    cache: Path | None,
    num_workers: int,
) -> Sources:
    """Load the features of a training set and, if there is one, a development set.

    Args:
        experiment: the configuration.
        lang: its tree gives the number of pdfs.
        train: utterances and numerators, or chunks of them.
        dev: evaluated.
        copies: changes of speed and volume of the training set.
        spec: how much context a chunk needs.
        output_lengths: the model's.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.

    Raises:
        DataError: no utterance is left.
    """
    num_pdfs = lang.tree.num_pdfs
    settings: dict[str, Any] = {"cache": cache, "num_workers": num_workers}
    data, variants, faults = load_supervised(
        train.data, train.supervised, experiment, lang, copies, **settings
    )
    cmvn = estimate_cmvn(variants[0], experiment.cmvn)
    variants = replace(train, data=data).cut([normalise_set(examples, cmvn) for examples in variants], spec)
    options: dict[str, Any] = {
        "batch_size": experiment.train.batch_size,
        "batch_frames": experiment.train.batch_frames,
        "seed": experiment.train.seed,
    }
    tables = train.tables(num_pdfs, [copy.prefix for copy in copies])
    source = BatchSource(variants, tables, output_lengths, augmentation=experiment.augment, **options)
    if dev is None:
        return Sources(cmvn, source, None, faults)
    _, (examples,), dev_faults = load_supervised(dev.data, dev.supervised, experiment, lang, **settings)
    normalised = normalise_set(examples, cmvn)
    dev_source = BatchSource([normalised], dev.tables(num_pdfs, [""]), output_lengths, **options)
    return Sources(cmvn, source, dev_source, faults + dev_faults)
