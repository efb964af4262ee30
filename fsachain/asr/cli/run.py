"""From data directories and a lexicon to a word error rate in one command: `fsachain run`.

Stages, in order. Each reads what those before it wrote to the folder EXP, so that a run can begin at any of them.

lang       lexicon -> lang/
features   recordings -> cache/ (features of all sets and speeds)
graphs     transcripts -> graphs/ (phone language model, denominator, numerators)
train      -> model/ (checkpoints, train.jsonl, model.safetensors)
decode     LM weight tuned on dev, test scored -> decode/
rescore    with --rescore, rescoring.network_epochs or rescoring.speeds: a larger model than the search can use, a network
           that knows how words are spelt, sums over all paths choose among the best word sequences, with weights of dev
           -> rescore/
align      test transcripts -> align/ (word and phone CTM)
report     -> report.txt: word error rates, sizes, wall time of each stage; report.html: all there is to see

A second pass (--first) trains anew on what the first one found; it has a folder of its own, and reads language, graphs and
features in that of the first.

align-train   first model, training transcripts -> align-train/ (word and phone CTM)
supervise     these times -> chunks.npz (numerators of chunks)
train, decode, rescore, align, report   as above, on the chunks

config.yaml is the configuration. run.json has the inputs, for each stage that is done a digest of what it depended on, and
for each stage of the run the digest that it has to have.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from fsachain.asr.cli.alignment import align, learn_boundaries, lines_of_errors
from fsachain.asr.cli.chosen import Chosen, choose_options
from fsachain.asr.cli.config import CONFIG, Experiment, config_option, given_options
from fsachain.asr.cli.decoding import WEIGHTS, DecodingGraphs, Recogniser, refuse_with_spelling
from fsachain.asr.cli.graphs import den_graph as make_denominator
from fsachain.asr.cli.graphs import load_normalization
from fsachain.asr.cli.graphs import num_graphs as make_numerators
from fsachain.asr.cli.lang import Lang, load_lang, make_grammar
from fsachain.asr.cli.lang import lang as make_lang
from fsachain.asr.cli.lang import phone_lm as make_phone_lm
from fsachain.asr.cli.model import (
    FINAL_MODEL,
    WORD_NETWORK,
    AcousticModel,
    check_lang,
    permitted_imports,
    save_word_network,
)
from fsachain.asr.cli.options import COUNT, DATA, FILE, FOLDER, OUT, command, option
from fsachain.asr.cli.record import open_log, record_run, recorded_stage
from fsachain.asr.cli.report import REPORT, report
from fsachain.asr.cli.resources import FAULTS_FILE, RESOURCE_OPTIONS, Resources
from fsachain.asr.cli.supervision import supervise
from fsachain.asr.cli.training import train_model
from fsachain.asr.cli.training_data import TrainingSet, read_training_set
from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.nn.network import num_parameters
from fsachain.asr.nn.word_network import train_word_network
from fsachain.asr.report.collect import RUN, STAGE_LOG, read_stages
from fsachain.asr.train.checkpoint import list_checkpoints
from fsachain.asr.train.config import to_compare
from fsachain.asr.train.log import read_log
from fsachain.asr.train.stopping import stoppable
from fsachain.asr.train.world import World
from fsachain.errors import ConfigError, DataError, GraphError, LeftOutError, counted
from fsachain.files import locked, parse_json, write_text
from fsachain.graph.decoding import Weights

SPLITS = ("train", "dev", "test")
INPUTS = (*SPLITS, "lexicon", "patterns", "arpa", "rescore")
TOGETHER = frozenset({"train"})  # the stages in which several processes work
CHUNKS = "chunks.npz"
GRAMMAR = "grammar.arpa"
_TABLES = ("text", "wav.scp", "segments", "utt2spk", "feats.scp")  # of a data directory


def _configure(
    exp: Path,
    first: Path | None,
    experiment: Experiment,
    inputs: Mapping[str, Path],
    resources: Resources,
    world: World,
) -> tuple[Experiment, Chosen | None]:
    """The configuration with what the data asks for where nothing is given.

    A folder goes on with its own options: those of earlier versions, and choices that were made of the same inputs and
    options. A second pass takes what is not given from the first.
    """
    given = given_options()
    if given is None or not world.is_first:
        return experiment, None
    kept, settings = _kept(exp), given.flat
    base = exp if (exp / CONFIG).is_file() else first
    if base is not None:
        options = _kept(base).get("options")
        chosen = None if options is None else Chosen.from_dict(options)
        if not given.has_file:  # `experiment` is that of the folder
            if chosen is None:
                return experiment, None
            chosen = chosen.changed(settings)
            if experiment.decoding.open_vocabulary:  # sums over paths and a network of words do without
                experiment, chosen = chosen.without("rescoring.", experiment)
            return experiment, chosen
        if (chosen is None and base == exp) or (chosen is not None and first is not None):
            found = given.over(Experiment.read(base / CONFIG).to_dict())
            return _with_free_options(found, experiment), None if chosen is None else chosen.changed(settings)
        if chosen is None:
            return experiment, None
        same = all(os.path.abspath(path) == kept["inputs"].get(name) for name, path in inputs.items())  # noqa: PTH100
        if same and dict(chosen.given) == settings:
            return _with_free_options(given.over(chosen.sections()), experiment), chosen
    chosen = choose_options(experiment, settings, inputs, resources)
    click.echo("\n".join(chosen.lines))
    return _with_free_options(given.over(chosen.sections()), experiment), chosen


def _with_free_options(found: Experiment, experiment: Experiment) -> Experiment:
    """With the seed and the treatment of bad data, which options of the command may have set."""
    train = replace(found.train, seed=experiment.train.seed, bad_data=experiment.train.bad_data)
    return replace(found, train=train)


@dataclass(frozen=True)
class Run:
    """One run: `exp` gets all outputs; `first` is the folder of the first pass, if this is a second.

    `inputs` are the paths of `INPUTS` that are given: data sets, lexicon, ARPA models of the search and for rescoring.
    `chosen` are the options that were chosen for the data; None in folders of earlier versions.
    """

    exp: Path
    config: Experiment
    inputs: Mapping[str, Path]
    resources: Resources = field(default_factory=Resources)
    first: Path | None = None
    world: World = field(default_factory=World.alone)
    chosen: Chosen | None = None

    @property
    def base(self) -> Path:
        """The folder that has lang, graphs and cache."""
        return self.first or self.exp

    @property
    def stages(self) -> dict[str, Stage]:
        """By name, in order."""
        stages = {**(FIRST_PASS if self.first is None else SECOND_PASS), **BOTH_PASSES}
        if not self.rescores:
            del stages["rescore"]
        return stages

    @property
    def rescores(self) -> bool:
        """Whether the best word sequences are judged anew."""
        options = self.config.rescoring
        return "rescore" in self.inputs or bool(options.network_epochs or options.speeds)

    def data(self, split: str) -> DataDir:
        """The utterances of a set; their words are without marks that the lexicon lacks."""
        return self.resources.read(self.inputs[split]).without_marks(self.lang.lexicon)

    @property
    def lang(self) -> Lang:
        return load_lang(self.base / "lang")

    def model(self, exp: Path) -> AcousticModel:
        """The trained model of a pass, by its folder."""
        model = AcousticModel.load(exp / "model" / FINAL_MODEL)
        check_lang(model, self.lang)
        return model

    @property
    def recogniser(self) -> Recogniser:
        """The model with this run's options of decoding and rescoring, which may differ from those it was trained with.

        It searches with the ARPA model that is given, else an n-gram of the training text, or a loop of words.
        """
        model, arpa = self.model(self.exp), self.inputs.get("arpa")
        decoding, rescoring = self.config.decoding, self.config.rescoring
        if self.first is not None and decoding.first_pass_share:
            model = model.mean_with(self.model(self.first), decoding.first_pass_share)
        model = replace(model, experiment=replace(model.experiment, decoding=decoding, rescoring=rescoring))
        if arpa is None and decoding.ngram_order:
            arpa = self.exp / "decode" / GRAMMAR
        graphs = DecodingGraphs(self.lang, arpa, open_vocabulary=decoding.open_vocabulary)
        return Recogniser(model, graphs, self.resources)


def _lang(run: Run) -> None:
    said = run.resources.read(run.inputs["train"]).transcripts
    lexicon, out, seed = run.inputs["lexicon"], run.exp / "lang", run.config.train.seed
    print(make_lang(lexicon, out, said, run.config, seed, run.resources))


def _features(run: Run) -> None:
    config, seen = run.config, dict[str, str]()
    for split in SPLITS:
        data = run.data(split)
        known = Counter(seen[one.id] for one in data if one.id in seen)
        seen |= {one.id: split for one in data}
        copies = config.perturbation.copies(config.train.seed) if split == "train" else [Perturbation()]
        frames = 0
        for copy in copies:
            _, (examples,) = run.resources.load(data, config.features, [copy])
            frames += sum(example.num_frames for example in examples)
        minutes = frames * config.features.frame_shift_ms / 60000
        also = "".join(f", {number} of them in {other} as well" for other, number in known.items())
        print(f"{split}: {counted(len(data), 'utterance')}, {counted(minutes, 'minute', '.1f')}{also}")


def _graphs(run: Run) -> None:
    lang, graphs, config = run.lang, run.exp / "graphs", run.config
    train, phone_lm, seed = run.data("train"), graphs / "phone_lm.fst", config.train.seed
    print(make_phone_lm(train.transcripts, phone_lm, lang, config, seed, run.resources))
    print(make_denominator(phone_lm, graphs, lang))
    how: dict[str, Any] = {"lang": lang, "experiment": config, "resources": run.resources}
    how["normalization"] = load_normalization(lang, graphs)
    made = make_numerators(train, graphs / "train.npz", patterns=run.inputs.get("patterns"), **how)
    print(f"train: {made}")
    print(f"dev: {make_numerators(run.data('dev'), graphs / 'dev.npz', as_written=True, **how)}")


def _train(run: Run) -> None:
    """Train, or continue a training that was broken off."""
    graphs = run.base / "graphs"
    numerators = graphs / "train.npz" if run.first is None else run.exp / CHUNKS
    result = train_model(
        run.config,
        run.lang,
        read_training_set(run.data("train"), numerators, run.lang),
        graphs,
        run.exp / "model",
        run.resources,
        dev=TrainingSet.read(run.data("dev"), graphs / "dev.npz", run.lang),
        world=run.world,
    )
    run.resources.faults.extend(result.excluded)


def _align_train(run: Run) -> None:
    lang = run.lang
    normalization = load_normalization(lang, run.base / "graphs")
    model, data, out = run.model(run.base), run.data("train"), run.exp / "align-train"
    # Supervision has tolerances wider than what boundaries would be moved by.
    print(align(model, data, out, lang, normalization, coarse=True, resources=run.resources))


def _supervise(run: Run) -> None:
    lang = run.lang
    normalization = load_normalization(lang, run.base / "graphs")
    alignment, out = run.exp / "align-train" / "phones.ctm", run.exp / CHUNKS
    data = run.data("train")
    print(supervise(data, alignment, out, lang, normalization, run.config, run.resources))


def _decode(run: Run) -> None:
    out, order = run.exp / "decode", run.config.decoding.ngram_order
    if order and "arpa" not in run.inputs:
        transcripts = (one.words for one in run.data("train"))
        make_grammar(transcripts, run.lang.spoken_words, out / GRAMMAR, order)
    recogniser = run.recogniser
    form = "kaldi" if run.rescores else None  # lattices are kept for the stage rescore
    best = recogniser.tune(run.data("dev"), out, keep=form is not None).best
    print(f"dev   {best}")
    print(f"test  {recogniser.decode(run.data('test'), out, best.weights, form).total}")


def _rescore(run: Run) -> None:
    tuned = _tuned(run)
    point = Weights(*(tuned[name] for name in Weights._fields))
    second, out, decoded = run.inputs.get("rescore"), run.exp / "rescore", run.exp / "decode"
    test, dev = run.data("test"), run.data("dev")
    kept = decoded if (decoded / WEIGHTS).is_file() else None
    network, epochs = None, run.config.rescoring.network_epochs
    if epochs:
        transcripts = (one.words for one in run.data("train"))
        network = train_word_network(transcripts, run.lang.spoken_words, epochs, run.config.train.seed)
        save_word_network(network, out / WORD_NETWORK)
    print(f"test  {run.recogniser.rescore(test, second, out, dev, point, kept, network).total}")


def _tuned(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.exp / "decode" / "tuning.json").read_text())["best"]
    return found


def _align(run: Run) -> None:
    out, model = run.exp / "align", run.model(run.exp)
    learn_boundaries(model, run.lang, run.data("train"), run.resources)
    test = run.resources.read(run.inputs["test"])
    print(align(model, test, out, run.lang, resources=run.resources))
    for line in lines_of_errors(run.inputs["test"], out, run.lang.lexicon.silence):
        print(line)


def _report(run: Run) -> None:
    decoded, dev = run.exp / "decode", _tuned(run)
    stages = read_stages(run.exp / STAGE_LOG).stages
    log = read_log(run.exp / "model" / "train.jsonl")
    epochs = [event["train"] for event in log if event["event"] == "epoch"]
    trained = sum(epoch["seconds"] for epoch in epochs)
    share = sum(epoch["loss_share"] * epoch["seconds"] for epoch in epochs) / trained
    parameters, seed = num_parameters(run.model(run.exp).network), run.config.train.seed
    scored = {"test": decoded, **({"rescored": run.exp / "rescore"} if run.rescores else {})}
    lines = [
        *(f"{name:12} {(out / 'wer.txt').read_text().splitlines()[0]}" for name, out in scored.items()),
        f"dev          WER {dev['wer']:.2f} %, LM weight {dev['lm_weight']:g}, "
        f"word insertion penalty {dev['word_insertion_penalty']:g}",
        *lines_of_errors(run.inputs["test"], run.exp / "align", run.lang.lexicon.silence),
        f"size         {counted(parameters, 'parameter')}, seed {seed}",
        f"training     {counted(len(epochs), 'epoch')}, {trained:.1f} s, of which the loss took {100 * share:.0f} %",
        f"time         {'  '.join(f'{one.name} {one.seconds:.1f} s' for one in stages if one.seconds is not None)}",
        f"model        {run.exp / 'model' / FINAL_MODEL}",
        f"graphs       {run.base / 'graphs'}",
        f"hypotheses   {decoded / 'hyp.txt'}",
        f"alignments   {run.exp / 'align'}",
        f"report       {run.exp / REPORT}",
    ]
    report(run.exp, run.exp / REPORT, run.base)
    write_text(run.exp / "report.txt", "\n".join(lines) + "\n")
    print("\n".join(lines))


@dataclass(frozen=True)
class Stage:
    """Its work, and the sections of the configuration and the inputs (--train) that it reads and no stage before it did."""

    work: Callable[[Run], None]
    reads: tuple[str, ...] = ()


FIRST_PASS = {
    "lang": Stage(_lang, ("lang", "--lexicon", "--train")),
    "features": Stage(_features, ("features", "perturbation", "--dev", "--test")),
    "graphs": Stage(_graphs, ("phone_lm", "forgive", "--patterns")),
}
SECOND_PASS = {
    "align-train": Stage(_align_train),
    "supervise": Stage(_supervise, ("features", "perturbation", "supervision")),
}
BOTH_PASSES = {
    "train": Stage(_train, ("cmvn", "augment", "network", "loss", "train")),
    "decode": Stage(_decode, ("decoding", "--arpa")),
    "rescore": Stage(_rescore, ("rescoring", "--rescore")),
    "align": Stage(_align),
    "report": Stage(_report),
}
NAMES = (*FIRST_PASS, *SECOND_PASS, *BOTH_PASSES)


def _digests(run: Run) -> dict[str, str]:
    """What a stage and all before it depend on, by stage: seed, options, tables of the data sets."""
    config = to_compare(run.config.settled())
    before = [config["train"]["seed"], _kept(run.base).get("done", {}).get("train") if run.first else None]
    found = {}
    for name, stage in run.stages.items():
        reads = [
            _content(run.inputs.get(one[2:])) if one.startswith("--") else config[one]
            for one in stage.reads
            if one != "--patterns" or "patterns" in run.inputs
        ]
        text = json.dumps([*before, name, reads], sort_keys=True)
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        before = [found[name]]
    return found


def _content(path: Path | None) -> Any:
    """Of a file its digest; of a data directory those of its tables, of another folder names and sizes."""
    if path is None:
        return None
    if path.is_file():
        return [_digest(path)]
    tables = [path / table for table in _TABLES if (path / table).is_file()]
    if tables:
        return [[table.name, _digest(table)] for table in tables]
    return sorted([str(file.relative_to(path)), file.stat().st_size] for file in path.rglob("*"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(exp: Path) -> dict[str, Any]:
    """What run.json holds; empty where there is none."""
    path = exp / RUN
    return dict(parse_json(path.read_bytes(), str(path))) if path.is_file() else {}


def perform(run: Run, begin: str | None = None, end: str | None = None) -> None:
    """Run the stages from `begin` to `end`, by default those that are not done, and print what each takes.

    Under torchrun all processes run those of `TOGETHER`; the first runs the others, and the rest wait for it. Utterances
    that are left out end in a LeftOutError, but not under torchrun, which takes it for a crash.
    """
    stages, digests = run.stages, _digests(run)
    names = run.world.from_first(_chosen(run, digests, begin, end))
    if not run.world.is_first:
        for name in names:
            with stoppable(), _alone(run, name):
                if name in TOGETHER:
                    stages[name].work(run)
        return
    if not names:
        _keep_for_later(run, digests)
        return
    weights = run.config.network.get("init_from")
    begins = "train" in names and not list_checkpoints(run.exp / "model" / "checkpoints")
    if weights and begins and not Path(weights).is_file():  # told now, not after hours of features
        raise ConfigError(
            f"network.init_from: {weights}: no such file; paths count from the working directory"
        )
    done = dict(_kept(run.exp).get("done", {}))
    skipped = [name for name, digest in digests.items() if done.get(name) == digest]
    if skipped and begin is None:
        print(f"done before: {', '.join(skipped)}")
    taken: dict[str, float] = {}
    with (
        locked(run.exp, "a run"),
        nullcontext() if run.world.size == 1 else suppress(LeftOutError),
        run.resources.listing(run.exp / FAULTS_FILE),
    ):
        log = open_log(run.exp)
        record_run(
            log,
            names,
            seed=run.config.train.seed,
            workers=run.resources.workers,
            first=None if run.first is None else str(run.first.resolve()),
            config=run.config.to_dict(),
        )
        if begin is not None:  # all are to be made anew, also where one of them fails
            done = {name: digest for name, digest in done.items() if name not in names}
        before = {path: path.read_bytes() for path in (run.exp / CONFIG, run.exp / RUN) if path.is_file()}
        begun = (run.exp / "model" / "train.jsonl").is_file()
        for name in names:
            done.pop(name, None)
            _keep(run, done, digests)
            print(f"--- {name}", flush=True)
            started = time.perf_counter()
            try:
                with recorded_stage(log, name), _alone(run, name):
                    stages[name].work(run)
            except (ConfigError, DataError, GraphError) as error:
                # Forgotten are options that the first stage refuses, and what leads to no training where there is one.
                if isinstance(error, ConfigError) and not taken:
                    _go_back(run.exp, before)
                elif begun and done.get("train") != digests.get("train"):
                    _go_back(run.exp, before, (*taken, name) if begin is None else names)
                    print(
                        f"{run.exp}: options and data are those of before again; {name} is still to be made of them"
                    )
                raise
            taken[name] = time.perf_counter() - started
            done[name] = digests[name]
        _keep(run, done, digests)
        print("  ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items()))
        print(f"all stages {sum(taken.values()):.1f} s")
        if "report" in taken:
            print(f"to look at: {run.exp / REPORT}")


def _alone(run: Run, name: str) -> AbstractContextManager[None]:
    """The first process works at this stage, and the others wait for it; or all work."""
    return nullcontext() if name in TOGETHER else run.world.first(f"stage {name}")


def _chosen(run: Run, digests: Mapping[str, str], begin: str | None, end: str | None) -> list[str]:
    names, done = list(digests), _kept(run.exp).get("done", {})
    for given, name in (("--from", begin), ("--to", end)):
        if name is not None and name not in names:
            raise ConfigError(f"{given} {name}: this run has the stages {', '.join(names)}")
    last = len(names) if end is None else names.index(end) + 1
    if begin is None:
        return [name for name in names[:last] if done.get(name) != digests[name]]
    start = names.index(begin)
    for name in names[:start]:
        if name not in done:
            raise ConfigError(f"--from {begin}: {run.exp} has no stage {name} that is done; begin there")
    if start >= last:
        raise ConfigError(f"--to {end}: comes before --from {begin}")
    return names[start:last]


def _keep(run: Run, done: Mapping[str, str], digests: Mapping[str, str]) -> None:
    """Write the configuration and run.json: inputs, stages that are done, and all stages of the run with their digests."""
    inputs = {name: os.path.abspath(path) for name, path in run.inputs.items()}  # noqa: PTH100 (links stay)
    run.config.write(run.exp / CONFIG, () if run.chosen is None else run.chosen.lines)
    finished = {name: done[name] for name in NAMES if name in done}
    kept: dict[str, Any] = {"inputs": inputs, "done": finished, "stages": dict(digests)}
    if run.chosen is not None:
        kept["options"] = run.chosen.to_dict()
    write_text(run.exp / RUN, json.dumps(kept, indent=1) + "\n")


def _keep_for_later(run: Run, digests: Mapping[str, str]) -> None:
    """Where no stage that is asked for is left: options and paths count from now on, as if one had been.

    But not those that another training than the one there has: it would be refused by each plain call.
    """
    done = _kept(run.exp).get("done", {})
    left = [name for name, digest in digests.items() if done.get(name) != digest]
    begun = (run.exp / "model" / "train.jsonl").is_file()
    others = begun and done.get("train") != digests["train"]
    if not others:
        with locked(run.exp, "a run"):
            _keep(run, done, digests)
    kept = "; options are those of before again, since the training there was not made with these"
    later = f" that was asked for; still to be made: {', '.join(left)}" if left else ""
    print(f"{run.exp}: all is done{later}{kept if others else ''}")


def _go_back(exp: Path, before: Mapping[Path, bytes], undone: Sequence[str] = ()) -> None:
    """Write what these files held, but that the stages `undone` are done."""
    for path, content in before.items():
        path.write_bytes(content)
    if undone and exp / RUN in before:
        kept = _kept(exp)
        kept["done"] = {name: digest for name, digest in kept["done"].items() if name not in undone}
        write_text(exp / RUN, json.dumps(kept, indent=1) + "\n")


@command(exp={"type": OUT, "is_eager": True})
@option(DATA, "Training set, as `fsachain train` takes it.", "--train")
@option(DATA, "Data set on which weights are chosen.", "--dev")
@option(DATA, "Data set that is scored.", "--test")
@option(FILE, "Words and their phones, Kaldi's lexicon.txt or lexiconp.txt.", "--lexicon")
@option(
    FILE,
    "Of utterances of the training set: what they may say, as num-patterns takes it, in place of transcripts. The section "
    "forgive is for the others.",
    "--patterns",
)
@option(
    FILE,
    "Word language model of the search, in place of one of the training text (decoding.ngram_order).",
    "--arpa",
)
@option(FILE, "Larger word language model that chooses among the best word sequences.", "--rescore")
def run(
    exp: Path,
    first: Path | None = option(
        FOLDER,
        "Folder of another run, whose model says when phones are spoken: trains anew, on chunks.",
        is_eager=True,
    ),
    experiment: Experiment = config_option,
    begin: str | None = option(click.Choice(NAMES), "First stage.  [default: what is not done]", "--from"),
    end: str | None = option(click.Choice(NAMES), "Last stage.  [default: report]", "--to"),
    as_given: bool = option(
        bool,
        "Choose no options for the data: what is not given has its plain default, or that of the folder.",
    ),
    seed: int | None = option(int, "Seed of everything that is drawn; the same as --set train.seed=SEED."),
    workers: int = option(
        COUNT, "Threads or processes.", default=lambda: os.cpu_count() or 1, show_default="all processors"
    ),
    bad_data: str = RESOURCE_OPTIONS["bad_data"],
    allow_left_out: float = RESOURCE_OPTIONS["allow_left_out"],
    allow_commands: bool = RESOURCE_OPTIONS["commands"],
    **given: Path | None,
) -> None:
    """Go the whole way from data sets and a lexicon to a word error rate.

    In: data sets and a lexicon; the configuration. Options that are not given are chosen for the data, and printed with the
    reason; docs/defaults.md has the rules. What is not given is as in the last run in EXP, or in the first pass. The stages
    are lang, features, graphs, train, decode, rescore (if asked for), align and report; with --first align-train, supervise,
    train and the rest. Given again, the command goes on with what is not done, or whose options or data changed.
    Out: folder EXP with lang, cache, graphs, model, decode, rescore, align, report.txt and report.html.

    Several processes train one model when torchrun starts them: torchrun --nproc-per-node 2 -m fsachain run ...
    Example: fsachain run exp --train train --dev dev --test test --lexicon lexicon.txt --config config.yaml
    """
    if first is not None and first.resolve() == exp.resolve():
        raise ConfigError(f"--first {first}: is EXP itself; expected another folder")
    if first is not None and not {*FIRST_PASS, "train"} <= {*_kept(first).get("done", {})}:
        raise ConfigError(
            f"--first {first}: holds no training that is done; expected the folder of a first pass"
        )
    share = experiment.decoding.first_pass_share
    if first is None and share:
        raise ConfigError(
            f"decoding.first_pass_share = {share} without --first; expected the first pass's folder, or 0"
        )
    if experiment.decoding.open_vocabulary:
        refuse_with_spelling(experiment.rescoring.network_epochs > 0, experiment.rescoring.speeds)
    kept = {**(_kept(first) if first else {}).get("inputs", {}), **_kept(exp).get("inputs", {})}
    inputs = {name: given.get(name) or Path(kept[name]) for name in INPUTS if given.get(name) or name in kept}
    for name in (*SPLITS, "lexicon"):
        if name not in inputs:
            raise click.UsageError(f"Missing option '--{name}'.")
    train = replace(experiment.train, bad_data=bad_data)
    experiment = replace(experiment, train=train if seed is None else replace(train, seed=seed))
    resources = Resources(
        cache=(first or exp) / "cache",
        workers=workers,
        bad_data=bad_data,
        allow_left_out=allow_left_out,
        allow_commands=allow_commands,
    )
    with (
        permitted_imports(experiment.imported),  # what the configuration names, the user trusts
        World.from_environment(experiment.train.process_timeout) as world,
    ):
        chosen: Chosen | None = None
        if not as_given:
            configured = _configure(exp, first, experiment, inputs, resources, world)
            experiment, chosen = world.from_first(configured)
        experiment = experiment.fitted(resources.read(inputs["train"]), tell=world.is_first)
        perform(Run(exp, experiment, inputs, resources, first, world, chosen), begin, end)
