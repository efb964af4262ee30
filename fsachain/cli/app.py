"""The commands of `fsachain`: what comes in, what goes out; the work is done in `fsachain.cli.steps`.

The steps are imported inside the commands: they bring torch, which `--help` need not wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fsachain.cli.graph_commands import GRAPH_COMMANDS, tie_tree
from fsachain.cli.kaldi_commands import kaldi
from fsachain.cli.keyword_command import keyword
from fsachain.cli.language_model_commands import LANGUAGE_MODEL_COMMANDS
from fsachain.cli.looking import info, score
from fsachain.cli.numerator_commands import NUMERATOR_COMMANDS
from fsachain.cli.options import (
    INPUT_FILE,
    INPUT_FOLDER,
    INPUT_PATH,
    OUTPUT,
    cache_option,
    commands_option,
    config_option,
    lang_option,
    merge_option,
    seed_option,
    workers_option,
)
from fsachain.cli.plot_commands import plot
from fsachain.cli.report_commands import REPORT_COMMANDS
from fsachain.cli.rescore_command import rescore
from fsachain.cli.use_commands import USE_COMMANDS
from fsachain.cli.validate_command import validate

if TYPE_CHECKING:
    from fsachain.cli.config import Experiment


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fsachain")
def app() -> None:
    """Lattice-free MMI: from a lexicon, transcripts and recordings to a word error rate.

    The usual order: lang, phone-lm, den-graph, num-graphs, train, decode, score, align. A second training on
    chunks goes on with supervise, train, decode. Exit status: 0 done, 1 an error in the input, 2 wrong usage,
    75 stopped by SIGTERM with the state saved.
    """


@app.command()
@click.argument("lexicon", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option(
    "--text", type=INPUT_FILE, help="Transcripts whose phones are counted for a tied-biphone context."
)
@config_option
@seed_option
def lang(lexicon: Path, out: Path, text: Path | None, experiment: Experiment, seed: int) -> None:
    """Number the words, phones and pdfs of a lexicon.

    In: LEXICON, Kaldi's lexicon.txt or lexiconp.txt; section `lang` of the configuration.

    Out: folder OUT with lexicon.json, tree.json, words.txt and phones.txt.
    """
    from fsachain.cli.steps.lang import make_lang
    from fsachain.decode.wer import read_text

    said = () if text is None else read_text(text).values()
    made = make_lang(lexicon, out, experiment.lang, transcripts=said, seed=seed)
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
@merge_option
def den_graph(phone_lm: Path, out: Path, lang: Path, merge: Literal["sum", "min"]) -> None:
    """Build the denominator graph.

    In: PHONE_LM, made by `fsachain phone-lm`.

    Out: folder OUT with den.fst and normalization.fst, OpenFst acceptors whose labels are pdf + 1.
    """
    from fsachain.cli.steps.graphs import make_denominator
    from fsachain.cli.steps.lang import load_lang

    click.echo(f"{make_denominator(load_lang(lang), phone_lm, out, merge)} -> {out}")


@app.command()
@click.argument("data", type=INPUT_FOLDER)
@click.argument("numerators", type=INPUT_PATH)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@click.option(
    "--dev", type=(INPUT_FOLDER, INPUT_PATH), help="Data directory and numerators evaluated each epoch."
)
@config_option
@cache_option
@workers_option
@commands_option
def train(**arguments: Any) -> None:
    """Train a network with LF-MMI; a run that was broken off continues where it stood.

    In: DATA, a Kaldi data directory, and NUMERATORS, made from it by `fsachain num-graphs` or
    `fsachain num-tables` (flat start) or `fsachain supervise` (chunks with times); the sections features, cmvn,
    perturbation, augment, network, loss and train of the configuration.

    Out: folder OUT with model.safetensors, checkpoints and the log train.jsonl. Utterances that cannot be trained on
    are listed as by `fsachain validate`. SIGTERM ends the training with a checkpoint and exit status 75.
    """
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.record import recorded_command
    from fsachain.cli.steps.training import FINAL_MODEL, train_model
    from fsachain.cli.steps.training_sets import read_flat_set, read_training_set
    from fsachain.data.faults import Fault
    from fsachain.data.kaldi_dir import DataDir

    faults: list[Fault] = []

    def read(folder: Path) -> DataDir:
        data, found = DataDir.check(folder, allow_commands=arguments["allow_commands"])
        faults.extend(found)
        return data

    with recorded_command(arguments["out"], "train", config=arguments["experiment"].to_dict()):
        train_model(
            arguments["experiment"],
            load_lang(arguments["lang"]),
            read_training_set(read(arguments["data"]), arguments["numerators"]),
            arguments["den"],
            arguments["out"],
            dev=read_flat_set(read(arguments["dev"][0]), arguments["dev"][1]) if arguments["dev"] else None,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            left_out=faults,
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
    "--grammar",
    type=(INPUT_FILE, INPUT_FILE),
    metavar="G WORDS",
    help="The same as G.fst, and its words.txt.",
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
    graphs = DecodingGraphs(load_lang(arguments["lang"]), arguments["arpa"], arguments["grammar"])
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
@click.option("--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`: needed for supervise.")
@click.option("--textgrid", type=OUTPUT, help="Folder for a TextGrid of each utterance, for Praat.")
@cache_option
@workers_option
@commands_option
def align(model: Path, data: Path, out: Path, **arguments: Any) -> None:
    """Find when each word and phone of the transcripts is said.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory. With --den only phone sequences that
    the denominator has are looked for; `fsachain supervise` takes no others.

    Out: folder OUT with words.ctm and phones.ctm (utterance channel start duration label, in seconds).
    """
    from fsachain.cli.steps.decoding import align_data
    from fsachain.cli.steps.graphs import load_normalization
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.data.kaldi_dir import DataDir

    language = load_lang(arguments["lang"])
    summary = align_data(
        AcousticModel.load(model),
        language,
        DataDir.read(data, allow_commands=arguments["allow_commands"]),
        out,
        normalization=load_normalization(language, arguments["den"]) if arguments["den"] else None,
        textgrids=arguments["textgrid"],
        cache=arguments["cache"],
        num_workers=arguments["workers"],
    )
    click.echo(f"{summary} -> {out}")


for command in (
    score,
    info,
    keyword,
    rescore,
    *LANGUAGE_MODEL_COMMANDS,
    *NUMERATOR_COMMANDS,
    tie_tree,
    *GRAPH_COMMANDS,
    kaldi,
    plot,
    *REPORT_COMMANDS,
    validate,
    *USE_COMMANDS,
):
    app.add_command(command)
