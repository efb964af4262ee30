"""From data directories and graphs to a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fsachain.cli.config import Experiment, PerturbationConfig
from fsachain.cli.steps.graphs import load_denominator
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.model import AcousticModel, normalise_set
from fsachain.data.audio import Perturbation
from fsachain.data.dataset import Example, cut_example, estimate_cmvn, load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import ConfigError, DataError
from fsachain.graph.chunks import Chunk, holds_chunks, load_chunks
from fsachain.graph.numerator import Numerator
from fsachain.graph.numerator_files import load_numerators
from fsachain.graph.shards import TableShards
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.nn.tdnnf import Tdnnf, TdnnfConfig
from fsachain.table import TransitionTable, compile_table
from fsachain.train.progress import make_progress
from fsachain.train.trainer import Trainer, TrainResult

FINAL_MODEL = "model.safetensors"


@dataclass(frozen=True)
class TrainingSet:
    """Utterances and the numerators of those that can be used, by utterance id."""

    data: DataDir
    numerators: dict[str, Numerator]

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> TrainingSet:
        """The utterances with the numerators that `make_numerators` wrote for them.

        Raises:
            DataError: a numerator was made for another transcript.
        """
        graphs = load_numerators(numerators)
        for utterance in data:
            if utterance.id in graphs and graphs[utterance.id].words != utterance.words:
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, graphs)

    def cut(self, copies: list[list[Example]], network: TdnnfConfig) -> list[list[Example]]:
        """The utterances as they are."""
        return copies

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the utterances and of their copies, whose ids have a prefix."""
        compiled = {
            name: compile_table(numerator.fsa, num_pdfs, name=name)
            for name, numerator in self.numerators.items()
        }
        return {prefix + name: table for prefix in prefixes for name, table in compiled.items()}


@dataclass(frozen=True)
class ChunkedSet:
    """Utterances and the chunks of those that can be used: for each one list of chunks per copy.

    Attributes:
        data: the utterances.
        chunks: as `load_chunks` gives them.
        path: the file they came from, for messages.
    """

    data: DataDir
    chunks: dict[str, list[list[Chunk]]]
    path: Path

    def cut(self, copies: list[list[Example]], network: TdnnfConfig) -> list[list[Example]]:
        """The chunks of every copy, with as much context as the network sees; utterances without are left out.

        Raises:
            DataError: the file was made for other copies, or for utterances of another length.
        """
        found: list[list[Example]] = [[] for _ in copies]
        for utterance, *examples in zip(self.data.utterances, *copies, strict=True):
            lists = self.chunks.get(utterance.id)
            if lists is None:
                continue
            names = [one[0].utterance for one in lists]
            if names != [example.id for example in examples]:
                raise DataError(
                    f"{self.path}: has chunks of {', '.join(names)}, expected those of "
                    f"{', '.join(example.id for example in examples)}; supervise anew after a change of speeds"
                )
            for made, example, chunks in zip(found, examples, lists, strict=True):
                made += [self._cut_one(example, chunk, network) for chunk in chunks]
        return found

    def _cut_one(self, example: Example, chunk: Chunk, network: TdnnfConfig) -> Example:
        frames = -(-example.num_frames // network.subsampling)
        if frames != chunk.of_frames:
            raise DataError(
                f"{self.path}: chunk {chunk.id!r} is of {chunk.of_frames} output frames, the utterance has "
                f"{frames}; supervise anew after a change of features or network"
            )
        return cut_example(
            example,
            chunk.start,
            chunk.frame_weights,
            subsampling=network.subsampling,
            context=network.context,
            name=chunk.id,
        )

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the chunks; these have the prefix of their copy already."""
        every = (chunk for lists in self.chunks.values() for one in lists for chunk in one)
        return {chunk.id: compile_table(chunk.fsa, num_pdfs, name=chunk.id) for chunk in every}


@dataclass(frozen=True)
class CompiledSet(TrainingSet):
    """Utterances and shards of compiled numerators; `numerators` is empty.

    Attributes:
        shards: tables by utterance id, mapped into memory.
    """

    shards: TableShards

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> CompiledSet:
        """The utterances with the shards that `make_shards` wrote for them; errors as for `TrainingSet.read`."""
        shards = TableShards(numerators)
        for utterance in data:
            if utterance.id in shards and not shards.says(utterance.id, utterance.words):
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, {}, shards)

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """The tables by the ids of the utterances and of their copies, whose ids have a prefix.

        Raises:
            DataError: a table was made for a tree of another number of pdfs.
        """
        for name, table in self.shards.items():
            if table.num_pdfs != num_pdfs:
                raise DataError(
                    f"{self.shards.folder}: the numerator of {name!r} was made for {table.num_pdfs} pdfs; expected "
                    f"{num_pdfs}; compile the numerators anew"
                )
        return {prefix + name: table for prefix in prefixes for name, table in self.shards.items()}


def read_training_set(data: DataDir, numerators: Path) -> TrainingSet | ChunkedSet:
    """The utterances with what `make_numerators`, `make_shards` (a folder) or `make_supervision` wrote for them.

    Raises:
        GraphError: the file holds neither.
        DataError: as `TrainingSet.read`.
    """
    if numerators.is_dir():
        return CompiledSet.read(data, numerators)
    if holds_chunks(numerators):
        return ChunkedSet(data, load_chunks(numerators), numerators)
    return TrainingSet.read(data, numerators)


def read_flat_set(data: DataDir, numerators: Path) -> TrainingSet:
    """The utterances with whole numerators, from a file or a folder of shards; errors as `read_training_set`."""
    return CompiledSet.read(data, numerators) if numerators.is_dir() else TrainingSet.read(data, numerators)


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

    Raises:
        ConfigError: `out` holds a training with other options, or there is no speed to train at.
        DataError: no utterance is left.
    """
    _claim_folder(experiment, out)
    seed, num_pdfs = experiment.train.seed, lang.tree.num_pdfs
    copies = perturbations(experiment.perturbation, seed)
    if not copies:
        raise ConfigError("perturbation.speeds: is empty; [1.0] trains on the recordings as they are")
    loss = LFMMILoss(load_denominator(lang, denominator), **asdict(experiment.loss))
    variants = [
        load_examples(
            train.data, experiment.features, perturbation=copy, cache_dir=cache, num_workers=num_workers
        )
        for copy in copies
    ]
    cmvn = estimate_cmvn(variants[0], experiment.cmvn)
    tables = train.tables(num_pdfs, [copy.prefix for copy in copies])
    dev_examples: list[Example] = []
    if dev is not None:
        dev_examples = load_examples(dev.data, experiment.features, cache_dir=cache, num_workers=num_workers)
        tables |= dev.tables(num_pdfs, [""])
    torch.manual_seed(seed)
    sizes = experiment.network_config(num_pdfs)
    network = Tdnnf(sizes)
    trainer = Trainer(
        network,
        loss,
        experiment.train,
        out,
        numerators=tables,
        progress=make_progress(),
    )
    result = trainer.fit(
        train.cut([normalise_set(examples, cmvn) for examples in variants], sizes),
        normalise_set(dev_examples, cmvn),
        augmentation=experiment.augment,
    )
    AcousticModel(experiment, network.eval(), cmvn).save(out / FINAL_MODEL)
    return result


def _claim_folder(experiment: Experiment, out: Path) -> None:
    """Note the options in the folder; refuse one that holds a training with others.

    The trainer itself compares the options of section `train` and the utterances.
    """
    options = {
        name: value for name, value in experiment.to_dict().items() if name not in ("train", "decoding")
    }
    path = out / "experiment.json"
    if path.is_file():
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot read the options of the training ({error})") from error
        changed = sorted(name for name in options if before.get(name) != options[name])
        if changed:
            raise ConfigError(
                f"{out}: holds a training with other options in {', '.join(changed)}; "
                "choose another folder or delete it"
            )
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
