"""From data directories and graphs to a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fsachain.cli.config import Experiment, PerturbationConfig
from fsachain.cli.steps.graphs import load_denominator
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.model import AcousticModel, normalise_set
from fsachain.cli.steps.training_sets import ChunkedSet, TrainingSet
from fsachain.cli.steps.validation import load_supervised
from fsachain.data.audio import Perturbation
from fsachain.data.dataset import Example, estimate_cmvn, load_examples
from fsachain.data.faults import Fault
from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import ConfigError, DataError
from fsachain.files import parse_json, write_text
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.nn.tdnnf import Tdnnf
from fsachain.train.progress import make_progress
from fsachain.train.state import TrainResult
from fsachain.train.trainer import Trainer

FINAL_MODEL = "model.safetensors"


def perturbations(config: PerturbationConfig, seed: int) -> list[Perturbation]:
    """One perturbation for each speed."""
    return [Perturbation(speed, config.volume, seed) for speed in config.speeds]


def compute_features(
    experiment: Experiment,
    data: DataDir,
    cache: Path,
    num_workers: int,
    copies: Sequence[Perturbation] = (Perturbation(),),
) -> int:
    """Fill the feature cache; returns the number of frames of all copies together."""
    return sum(
        example.num_frames
        for copy in copies
        for example in load_examples(
            data, experiment.features, perturbation=copy, cache_dir=cache, num_workers=num_workers
        )
    )


def train_model(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet,
    denominator: Path,
    out: Path,
    *,
    dev: TrainingSet | None = None,
    cache: Path | None = None,
    num_workers: int = 1,
    left_out: Sequence[Fault] = (),
) -> TrainResult:
    """Train a network and write it to `out`; continues a training that was broken off.

    Args:
        experiment: the configuration; `train.seed` is the seed of everything that is drawn.
        lang: the tree gives the number of pdfs.
        train: utterances and numerators, or chunks of them.
        denominator: folder made by `make_denominator`.
        out: folder of model.safetensors, checkpoints and log.
        dev: evaluated after each epoch.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        left_out: faults of utterances that are not in `train` or `dev`, to be reported with those found here.

    Raises:
        ConfigError: `out` holds a training with other options, or there is no speed to train at.
        DataError: no utterance is left; or some cannot be used and `train.bad_data` is "stop".
        StoppedError, DivergedError, OSError: as `Trainer.fit`.
    """
    _claim_folder(experiment, out)
    seed, num_pdfs = experiment.train.seed, lang.tree.num_pdfs
    copies = perturbations(experiment.perturbation, seed)
    if not copies:
        raise ConfigError("perturbation.speeds: is empty; [1.0] trains on the recordings as they are")
    loss = LFMMILoss(load_denominator(lang, denominator), **asdict(experiment.loss))
    settings: dict[str, Any] = {"cache": cache, "num_workers": num_workers}
    data, variants, faults = load_supervised(
        train.data, train.supervised, experiment, lang, copies, **settings
    )
    train = replace(train, data=data)
    faults = [*left_out, *faults]
    cmvn = estimate_cmvn(variants[0], experiment.cmvn)
    tables = train.tables(num_pdfs, [copy.prefix for copy in copies])
    dev_examples: list[Example] = []
    if dev is not None:
        _refuse_shared_ids(train.data, dev.data)
        _, (dev_examples,), dev_faults = load_supervised(
            dev.data, dev.supervised, experiment, lang, **settings
        )
        faults += dev_faults
        tables |= dev.tables(num_pdfs, [""])
    torch.manual_seed(seed)
    sizes = experiment.network_config(num_pdfs)
    network = Tdnnf(sizes)
    trainer = Trainer(network, loss, experiment.train, out, numerators=tables, progress=make_progress())
    result = trainer.fit(
        train.cut([normalise_set(examples, cmvn) for examples in variants], sizes),
        normalise_set(dev_examples, cmvn),
        augmentation=experiment.augment,
        left_out=faults,
    )
    AcousticModel(experiment, network.eval(), cmvn).save(out / FINAL_MODEL)
    return result


def _refuse_shared_ids(train: DataDir, dev: DataDir) -> None:
    """The tables of both sets go by the same ids; one of two different utterances would get the other's."""
    words = {utterance.id: utterance.words for utterance in train}
    for utterance in dev:
        if words.get(utterance.id, utterance.words) != utterance.words:
            raise DataError(
                f"utterance {utterance.id!r} is in the training and the development set with different words; "
                "expected different ids"
            )


def _claim_folder(experiment: Experiment, out: Path) -> None:
    """Note the options in the folder; refuse one that holds a training with others.

    The trainer itself compares the options of section `train` and the utterances.
    """
    options = {
        name: value
        for name, value in experiment.to_dict().items()
        if name not in ("train", "decoding", "rescoring")
    }
    path = out / "experiment.json"
    if path.is_file():
        try:
            before = dict(parse_json(path.read_bytes(), str(path)))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot read the options of the training ({error})") from error
        changed = sorted(name for name in options if before.get(name) != options[name])
        if changed:
            raise ConfigError(
                f"{out}: holds a training with other options in {', '.join(changed)}; "
                "choose another folder or delete it"
            )
    out.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(options, indent=2) + "\n")
