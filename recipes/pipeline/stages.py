"""The stages of a recipe, in order. Each reads what those before it wrote, so a run can begin at any of them.

prepare    corpus -> data/{train,dev,test}, data/lexicon.txt
lang       lexicon -> lang/
features   recordings -> cache/ (features of all sets and speeds)
graphs     transcripts -> graphs/ (phone language model, denominator, numerators, word grammar)
train      -> model/ (checkpoints, train.jsonl, model.safetensors)
decode     LM weight tuned on dev, test scored -> decode/
rescore    where the corpus brings data/rescoring.arpa, a larger model than the search can use: it chooses among the best
           word sequences, with weights of dev -> rescore/
align      test transcripts -> align/ (word and phone CTM)
report     -> report.txt: word error rates, sizes, wall time of each stage; report.html: all there is to see

A second pass trains anew on what the first one found; it has a folder of its own, and reads data, language,
graphs and features in that of the first.

align-train   first model, training transcripts -> align-train/ (word and phone CTM)
supervise     these times -> chunks.npz (numerators of chunks)
train, decode, align, report   as above, on the chunks
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fsachain.cli.config import Experiment
from fsachain.cli.decoding import DecodingGraphs, align_data, decode_data, rescore_data, tune_data
from fsachain.cli.graphs import load_normalization, make_denominator, make_numerators
from fsachain.cli.lang import Lang, load_lang, make_grammar, make_lang, make_phone_lm
from fsachain.cli.model import FINAL_MODEL, AcousticModel
from fsachain.cli.report import make_report
from fsachain.cli.resources import Resources
from fsachain.cli.supervision import make_supervision
from fsachain.cli.training import train_model
from fsachain.cli.training_data import TrainingSet, read_training_set
from fsachain.data.audio import Perturbation
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import read_text, write_text
from fsachain.nn.network import num_parameters
from fsachain.report.collect import STAGE_LOG, read_stages
from fsachain.train.log import read_log
from fsachain.train.world import World

CHUNKS = "chunks.npz"
RESCORING = "rescoring.arpa"
GRAMMAR = "grammar.arpa"  # in data/ where the corpus brings one, else in graphs/
Prepare = Callable[[Path | None, Path, int], None]


@dataclass(frozen=True)
class Run:
    """One run of a recipe.

    `exp` gets all outputs; `first` is the folder of the first pass, if this is a second; with `shuffle_transcripts` (a
    control) utterances are trained on the transcripts of others; `num_workers` counts threads or processes.
    """

    exp: Path
    config: Experiment
    prepare: Prepare
    corpus: Path | None
    seed: int
    shuffle_transcripts: bool
    num_workers: int
    first: Path | None = None
    world: World = field(default_factory=World.alone)

    @property
    def base(self) -> Path:
        """The folder that has data, lang, graphs and cache."""
        return self.first or self.exp

    @property
    def seeded(self) -> Experiment:
        return replace(self.config, train=replace(self.config.train, seed=self.seed))

    def model(self, exp: Path) -> AcousticModel:
        """The trained model of a pass, by its folder."""
        return AcousticModel.load(exp / "model" / FINAL_MODEL)

    @property
    def decoding_model(self) -> AcousticModel:
        """The model with this run's options of decoding and rescoring, which may differ from those it was trained with."""
        model = self.model(self.exp)
        decoding, rescoring = self.config.decoding, self.config.rescoring
        trained = model.experiment
        return replace(model, experiment=replace(trained, decoding=decoding, rescoring=rescoring))

    @property
    def lang(self) -> Lang:
        return load_lang(self.base / "lang")

    @property
    def resources(self) -> Resources:
        return Resources(cache=self.base / "cache", workers=self.num_workers)

    @property
    def grammar(self) -> Path | None:
        """Word n-gram of the search: from the corpus, else of the training text; None for a word loop."""
        brought = self.base / "data" / GRAMMAR
        if brought.is_file():
            return brought
        return self.base / "graphs" / GRAMMAR if self.config.decoding.ngram_order else None

    def data(self, split: str) -> DataDir:
        return DataDir.read(self.base / "data" / split)


def prepare_corpus(run: Run) -> None:
    data = run.exp / "data"
    run.prepare(run.corpus, data, run.seed)
    if run.shuffle_transcripts:
        text = read_text(data / "train" / "text")
        order = np.random.default_rng(run.seed).permutation(len(text))
        transcripts = list(text.values())
        shuffled = [transcripts[i] for i in order]
        write_text(data / "train" / "text", dict(zip(text, shuffled, strict=True)))
        print("control: the training transcripts belong to other utterances")


def prepare_lang(run: Run) -> None:
    print(make_lang(run.exp / "data" / "lexicon.txt", run.exp / "lang", run.config))


def prepare_features(run: Run) -> None:
    """Fill the feature cache."""
    for split in ("train", "dev", "test"):
        data = run.data(split)
        copies = run.config.perturbation.copies(run.seed) if split == "train" else [Perturbation()]
        frames = 0
        for copy in copies:
            _, (examples,) = run.resources.load(data, run.config.features, [copy])
            frames += sum(example.num_frames for example in examples)
        minutes = frames * run.config.features.frame_shift_ms / 60000
        print(f"{split}: {len(data)} utterances, {minutes:.1f} minutes")


def prepare_graphs(run: Run) -> None:
    """Build all graphs from the training transcripts; numerators for dev too."""
    lang = load_lang(run.exp / "lang")
    graphs = run.exp / "graphs"
    train = run.data("train")
    transcripts = {utterance.id: utterance.words for utterance in train}
    if run.config.phone_lm.ngram_order:
        print(make_phone_lm(lang, transcripts, graphs / "phone_lm.fst", run.config.phone_lm, run.seed))
        print(make_denominator(lang, graphs / "phone_lm.fst", graphs))
    else:
        print(make_denominator(lang, None, graphs))
    normalization = load_normalization(lang, graphs)
    for split, data in (("train", train), ("dev", run.data("dev"))):
        print(f"{split}: {make_numerators(lang, data, graphs / f'{split}.npz', normalization)}")
    if run.config.decoding.ngram_order:
        make_grammar(
            transcripts.values(), lang.spoken_words, graphs / GRAMMAR, run.config.decoding.ngram_order
        )


def train(run: Run) -> None:
    """Train, or continue a training that was broken off; the second pass on the chunks of `supervise`."""
    graphs = run.base / "graphs"
    numerators = graphs / "train.npz" if run.first is None else run.exp / CHUNKS
    train_model(
        run.seeded,
        run.lang,
        read_training_set(run.data("train"), numerators),
        graphs,
        run.exp / "model",
        run.resources,
        dev=TrainingSet.read(run.data("dev"), graphs / "dev.npz"),
        world=run.world,
    )


def align_train(run: Run) -> None:
    """Align the training set with the model of the first pass."""
    lang = run.lang
    made = align_data(
        run.model(run.base),
        lang,
        run.data("train"),
        run.exp / "align-train",
        run.resources,
        normalization=load_normalization(lang, run.base / "graphs"),
    )
    print(made)


def supervise(run: Run) -> None:
    """Cut the aligned utterances into chunks."""
    lang = run.lang
    normalization = load_normalization(lang, run.base / "graphs")
    alignment = run.exp / "align-train" / "phones.ctm"
    made = make_supervision(
        run.seeded, lang, run.data("train"), alignment, run.exp / CHUNKS, normalization, run.resources
    )
    print(made)


def decode(run: Run) -> None:
    """Tune on dev, score test."""
    model = run.decoding_model
    graphs = DecodingGraphs(run.lang, run.grammar)
    best = tune_data(model, graphs, run.data("dev"), run.exp / "decode", run.resources).best
    print(f"dev   {best.counts}, LM weight {best.lm_weight:g}, penalty {best.word_insertion_penalty:g}")
    point = (best.lm_weight, best.word_insertion_penalty)
    report = decode_data(model, graphs, run.data("test"), run.exp / "decode", point, run.resources)
    print(f"test  {report.total}")


def rescore(run: Run) -> None:
    """Tune on dev, score test."""
    tuned = json.loads((run.exp / "decode" / "tuning.json").read_text())["best"]
    report = rescore_data(
        run.decoding_model,
        run.data("test"),
        run.base / "data" / RESCORING,
        run.exp / "rescore",
        run.data("dev"),
        DecodingGraphs(run.lang, run.grammar),
        (tuned["lm_weight"], tuned["word_insertion_penalty"]),
        run.resources,
    )
    print(f"test  {report.total}")


def align(run: Run) -> None:
    """Align the test set with its transcripts."""
    print(align_data(run.model(run.exp), run.lang, run.data("test"), run.exp / "align", run.resources))


def report(run: Run) -> None:
    decoded = run.exp / "decode"
    model = run.model(run.exp)
    dev = json.loads((decoded / "tuning.json").read_text())["best"]
    stages = read_stages(run.exp / STAGE_LOG).stages
    epochs = [
        event["train"] for event in read_log(run.exp / "model" / "train.jsonl") if event["event"] == "epoch"
    ]
    trained = sum(epoch["seconds"] for epoch in epochs)
    share = sum(epoch["loss_share"] * epoch["seconds"] for epoch in epochs) / trained
    lines = [
        f"test         {(decoded / 'wer.txt').read_text().splitlines()[0]}",
        f"dev          WER {dev['wer']:.2f} %, LM weight {dev['lm_weight']:g}, "
        f"word insertion penalty {dev['word_insertion_penalty']:g}",
        f"size         {num_parameters(model.network)} parameters, seed {run.seed}",
        f"training     {len(epochs)} epochs, {trained:.1f} s, of which the loss took {100 * share:.0f} %",
        f"time         {'  '.join(f'{one.name} {one.seconds:.1f} s' for one in stages if one.seconds is not None)}",
        f"model        {run.exp / 'model' / FINAL_MODEL}",
        f"graphs       {run.base / 'graphs'}",
        f"hypotheses   {decoded / 'hyp.txt'}",
        f"alignments   {run.exp / 'align'}",
        f"report       {make_report(run.exp, base=run.base)}",
    ]
    rescored = run.exp / "rescore" / "wer.txt"
    if rescored.is_file():
        lines.insert(1, f"rescored     {rescored.read_text().splitlines()[0]}")
    (run.exp / "report.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


Stages = dict[str, Callable[[Run], None]]
STAGES: Stages = {
    "prepare": prepare_corpus,
    "lang": prepare_lang,
    "features": prepare_features,
    "graphs": prepare_graphs,
    "train": train,
    "decode": decode,
    "align": align,
    "report": report,
}
STAGES_WITH_RESCORING: Stages = {
    **{name: stage for name, stage in STAGES.items() if name not in ("align", "report")},
    "rescore": rescore,
    "align": align,
    "report": report,
}
SECOND_PASS: Stages = {
    "align-train": align_train,
    "supervise": supervise,
    "train": train,
    "decode": decode,
    "align": align,
    "report": report,
}
