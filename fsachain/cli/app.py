"""The commands of `fsachain`: what comes in, what goes out; the work is done in `fsachain.cli.steps`.

The steps are imported inside the commands: they bring torch, which `--help` need not wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fsachain.cli.config import Experiment

INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
INPUT_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUTPUT = click.Path(path_type=Path)

config_option = click.option(
    "--config",
    "experiment",
    type=INPUT_FILE,
    callback=lambda _c, _p, path: _experiment(path),
    help="YAML file of the experiment; without it every option has its default.",
)
lang_option = click.option("--lang", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain lang`.")
seed_option = click.option(
    "--seed", type=int, default=1, show_default=True, help="Of everything that is drawn."
)
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Threads or processes."
)
cache_option = click.option("--cache", type=OUTPUT, help="Folder that keeps features between runs.")
commands_option = click.option(
    "--allow-commands",
    is_flag=True,
    help="Run the shell commands that stand in wav.scp, with your rights: for folders that you trust.",
)


def _experiment(path: Path | None) -> Experiment:
    from fsachain.cli.config import Experiment

    return Experiment() if path is None else Experiment.read(path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fsachain")
def app() -> None:
    """Lattice-free MMI: from a lexicon, transcripts and recordings to a word error rate.

    The usual order: lang, phone-lm, den-graph, num-graphs, train, decode, score, align. Exit status: 0 done,
    1 an error in the input, 2 wrong usage.
    """


@app.command()
@click.argument("lexicon", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@config_option
def lang(lexicon: Path, out: Path, experiment: Experiment) -> None:
    """Number the words, phones and pdfs of a lexicon.

    In: LEXICON, Kaldi's lexicon.txt or lexiconp.txt; section `lang` of the configuration.

    Out: folder OUT with lexicon.json, tree.json, words.txt and phones.txt.
    """
    from fsachain.cli.steps.lang import make_lang

    made = make_lang(lexicon, out, experiment.lang)
    click.echo(f"{made} -> {out}")


@app.command("phone-lm")
@click.argument("text", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@config_option
@seed_option
def phone_lm(text: Path, out: Path, lang: Path, experiment: Experiment, seed: int) -> None:
    """Estimate the phone language model of the denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...); section `phone_lm` of the configuration.
    Utterances with unknown words are named and left out.

    Out: OUT, an OpenFst acceptor over phone ids.
    """
    from fsachain.cli.steps.graphs import make_phone_lm
    from fsachain.cli.steps.lang import load_lang
    from fsachain.decode.wer import read_text

    click.echo(f"{make_phone_lm(load_lang(lang), read_text(text), out, experiment.phone_lm, seed)} -> {out}")


@app.command("den-graph")
@click.argument("phone_lm", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
def den_graph(phone_lm: Path, out: Path, lang: Path) -> None:
    """Build the denominator graph.

    In: PHONE_LM, made by `fsachain phone-lm`.

    Out: folder OUT with den.fst and normalization.fst, OpenFst acceptors whose labels are pdf + 1.
    """
    from fsachain.cli.steps.graphs import make_denominator
    from fsachain.cli.steps.lang import load_lang

    click.echo(f"{make_denominator(load_lang(lang), phone_lm, out)} -> {out}")


@app.command("num-graphs")
@click.argument("data", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; normalises the numerators."
)
@commands_option
def num_graphs(data: Path, out: Path, lang: Path, den: Path | None, allow_commands: bool) -> None:
    """Build the numerator graph of every utterance.

    In: DATA, a Kaldi data directory. Utterances without words or with unknown words are named and left out.

    Out: OUT, one npz file.
    """
    from fsachain.cli.steps.graphs import load_normalization, make_numerators
    from fsachain.cli.steps.lang import load_lang
    from fsachain.data.kaldi_dir import DataDir

    language = load_lang(lang)
    normalization = None if den is None else load_normalization(language, den)
    utterances = DataDir.read(data, allow_commands=allow_commands)
    click.echo(f"{make_numerators(language, utterances, out, normalization)} -> {out}")


@app.command()
@click.argument("data", type=INPUT_FOLDER)
@click.argument("numerators", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@click.option(
    "--dev", type=(INPUT_FOLDER, INPUT_FILE), help="Data directory and numerators evaluated each epoch."
)
@config_option
@cache_option
@workers_option
@commands_option
def train(**arguments: Any) -> None:
    """Train a network flat-start with LF-MMI; a run that was broken off continues where it stood.

    In: DATA, a Kaldi data directory, and NUMERATORS, made from it by `fsachain num-graphs`; the sections
    features, cmvn, perturbation, augment, network, loss and train of the configuration.

    Out: folder OUT with model.safetensors, checkpoints and the log train.jsonl.
    """
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.training import FINAL_MODEL, TrainingSet, train_model
    from fsachain.data.kaldi_dir import DataDir

    def training_set(data: Path, numerators: Path) -> TrainingSet:
        return TrainingSet.read(DataDir.read(data, allow_commands=arguments["allow_commands"]), numerators)

    train_model(
        arguments["experiment"],
        load_lang(arguments["lang"]),
        training_set(arguments["data"], arguments["numerators"]),
        arguments["den"],
        arguments["out"],
        dev=training_set(*arguments["dev"]) if arguments["dev"] else None,
        cache=arguments["cache"],
        num_workers=arguments["workers"],
    )
    click.echo(f"model -> {arguments['out'] / FINAL_MODEL}")


@app.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--arpa",
    type=INPUT_FILE,
    help="Word language model; without it every word of the lexicon may follow any.",
)
@click.option(
    "--dev", type=INPUT_FOLDER, help="Data directory on which LM weight and insertion penalty are chosen."
)
@click.option("--lm-weight", type=float, default=1.0, show_default=True, help="Where there is no --dev.")
@click.option(
    "--word-insertion-penalty", type=float, default=0.0, show_default=True, help="Where there is no --dev."
)
@cache_option
@workers_option
@commands_option
def decode(**arguments: Any) -> None:
    """Recognise the words of a data directory, and score them against its transcripts.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.

    Out: folder OUT with hyp.txt, wer.txt and wer.json; tuning.txt and tuning.json where --dev is given.
    """
    from fsachain.cli.steps.decoding import DecodingGraphs, decode_data, tune_data
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.data.kaldi_dir import DataDir

    acoustic = AcousticModel.load(arguments["model"])
    graphs = DecodingGraphs(load_lang(arguments["lang"]), arguments["arpa"])
    settings = {"cache": arguments["cache"], "num_workers": arguments["workers"]}
    weight, penalty = arguments["lm_weight"], arguments["word_insertion_penalty"]
    if arguments["dev"]:
        dev = DataDir.read(arguments["dev"], allow_commands=arguments["allow_commands"])
        best = tune_data(acoustic, graphs, dev, arguments["out"], **settings).best
        weight, penalty = best.lm_weight, best.word_insertion_penalty
        click.echo(f"LM weight {weight:g}, word insertion penalty {penalty:g}: dev {best.counts}")
    data = DataDir.read(arguments["data"], allow_commands=arguments["allow_commands"])
    report = decode_data(acoustic, graphs, data, arguments["out"], weight, penalty, **settings)
    click.echo(f"{report.total} -> {arguments['out']}")


@app.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@lang_option
@cache_option
@workers_option
@commands_option
def align(
    model: Path, data: Path, out: Path, lang: Path, cache: Path | None, workers: int, allow_commands: bool
) -> None:
    """Find when each word and phone of the transcripts is said.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.

    Out: folder OUT with words.ctm and phones.ctm (utterance channel start duration label, in seconds).
    """
    from fsachain.cli.steps.decoding import align_data
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.data.kaldi_dir import DataDir

    utterances = DataDir.read(data, allow_commands=allow_commands)
    summary = align_data(
        AcousticModel.load(model), load_lang(lang), utterances, out, cache=cache, num_workers=workers
    )
    click.echo(f"{summary} -> {out}")


@app.command()
@click.argument("reference", type=INPUT_FILE)
@click.argument("hypothesis", type=INPUT_FILE)
@click.option("--utt2spk", type=INPUT_FILE, help="Kaldi's table of speakers, for a table of theirs.")
@click.option("--out", type=OUTPUT, help="Folder for wer.txt and wer.json.")
def score(reference: Path, hypothesis: Path, utt2spk: Path | None, out: Path | None) -> None:
    """Compare two transcripts.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...).

    Out: the word error rate, the table of speakers and every wrong utterance, printed;
    with --out also as files.
    """
    from fsachain.decode.wer import read_text
    from fsachain.decode.wer import score as score_words
    from fsachain.errors import DataError

    speakers = None
    if utt2spk is not None:
        speakers = {name: words[0] for name, words in read_text(utt2spk).items() if words}
    references = read_text(reference)
    if not references:
        raise DataError(f"{reference}: no utterances; expected lines of an utterance and its words")
    report = score_words(references, read_text(hypothesis), speakers=speakers)
    if out is not None:
        report.write(out)
    click.echo(report.to_text(), nl=False)


@app.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def info(path: Path) -> None:
    """Describe a file: OpenFst graph, numerators, model, language folder or data directory.

    In: PATH.

    Out: a few lines, printed.
    """
    from fsachain.cli.steps.inspect import describe_path

    click.echo(describe_path(path))
