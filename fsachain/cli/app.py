"""The commands of `fsachain`: what comes in, what goes out; the work is done in `fsachain.cli.steps`.

The steps are imported inside the commands: they bring torch, which `--help` need not wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fsachain.cli.graph_tools import GRAPH_COMMANDS, tie_tree
from fsachain.cli.inspect import info, score
from fsachain.cli.kaldi import kaldi
from fsachain.cli.keyword import keyword
from fsachain.cli.language_models import LANGUAGE_MODEL_COMMANDS
from fsachain.cli.numerators import NUMERATOR_COMMANDS
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    config_option,
    lang_option,
    merge_option,
    scheduler_option,
    seed_option,
    workers_option,
)
from fsachain.cli.plots import plot
from fsachain.cli.report import REPORT_COMMANDS
from fsachain.cli.rescore import rescore
from fsachain.cli.training import train
from fsachain.cli.use import USE_COMMANDS
from fsachain.cli.validate import validate

if TYPE_CHECKING:
    from fsachain.cli.config import Experiment


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fsachain")
@click.option(
    "--allow-import",
    "imports",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Import this class for models whose network it is, and call it with their options; may be repeated.",
)
@click.pass_context
def app(context: click.Context, imports: tuple[str, ...]) -> None:
    """Lattice-free MMI: from a lexicon, transcripts and recordings to a word error rate.

    The usual order: lang, phone-lm, den-graph, num-graphs, train, decode, score, align. A second training on
    chunks goes on with supervise, train, decode. Exit status: 0 done, 1 an error in the input, 2 wrong usage,
    3 done without some utterances, which are listed, 75 stopped by SIGTERM with the state saved.
    """
    if imports:
        from fsachain.cli.model import permitted_imports

        context.with_resource(permitted_imports(imports))


@app.command()
@click.argument("lexicon", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option(
    "--text",
    type=INPUT_DATA,
    help="Transcripts or data set whose phones are counted for a tied-biphone context.",
)
@config_option
@seed_option
def lang(lexicon: Path, out: Path, text: Path | None, experiment: Experiment, seed: int) -> None:
    """Number the words, phones and pdfs of a lexicon.

    In: LEXICON, Kaldi's lexicon.txt or lexiconp.txt; section `lang` of the configuration.

    Out: folder OUT with lexicon.json, tree.npz, words.txt and phones.txt.
    """
    from fsachain.cli.lang import make_lang, read_transcripts

    said = () if text is None else read_transcripts(text).values()
    made = make_lang(lexicon, out, experiment.lang, transcripts=said, seed=seed)
    click.echo(f"{made} -> {out}")


@app.command("phone-lm")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@config_option
@seed_option
def phone_lm(text: Path, out: Path, lang: Path, experiment: Experiment, seed: int) -> None:
    """Estimate the phone language model of the denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set; section `phone_lm` of the configuration.
    Utterances with unknown words are named and left out.

    Out: OUT, an OpenFst acceptor over phone ids.
    """
    from fsachain.cli.graphs import make_phone_lm
    from fsachain.cli.lang import load_lang, read_transcripts

    click.echo(
        f"{make_phone_lm(load_lang(lang), read_transcripts(text), out, experiment.phone_lm, seed)} -> {out}"
    )


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
    from fsachain.cli.graphs import make_denominator
    from fsachain.cli.lang import load_lang

    click.echo(f"{make_denominator(load_lang(lang), phone_lm, out, merge)} -> {out}")


@app.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
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
@click.option("--dev", type=INPUT_DATA, help="Data set on which LM weight and insertion penalty are chosen.")
@click.option("--lm-weight", type=float, default=1.0, show_default=True, help="Where there is no --dev.")
@click.option(
    "--word-insertion-penalty", type=float, default=0.0, show_default=True, help="Where there is no --dev."
)
@scheduler_option
@cache_option
@workers_option
@bad_data_option
@commands_option
def decode(**arguments: Any) -> None:
    """Recognise the words of a data directory, and score them against its transcripts.

    In: MODEL, made by `fsachain train`, and DATA, a data set as `fsachain train` takes it.

    Out: folder OUT with hyp.txt, wer.txt and wer.json; tuning.txt and tuning.json where --dev is given; faults.jsonl if
    utterances cannot be used, which are not scored.
    """
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.decoding import DecodingGraphs, decode_data, tune_data
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel
    from fsachain.cli.parallel import executor_at

    acoustic = AcousticModel.load(arguments["model"])
    graphs = DecodingGraphs(load_lang(arguments["lang"]), arguments["arpa"], arguments["grammar"])
    weight, penalty = arguments["lm_weight"], arguments["word_insertion_penalty"]
    out = arguments["out"]
    with (
        bad_data_of(arguments, out / FAULTS_FILE) as bad_data,
        executor_at(arguments["scheduler"]) as executor,
    ):
        settings: dict[str, Any] = {"cache": arguments["cache"], "num_workers": arguments["workers"]}
        settings |= {"executor": executor, "bad_data": bad_data}
        if arguments["dev"]:
            best = tune_data(acoustic, graphs, bad_data.read(arguments["dev"]), out, **settings).best
            weight, penalty = best.lm_weight, best.word_insertion_penalty
            click.echo(f"LM weight {weight:g}, word insertion penalty {penalty:g}: dev {best.counts}")
        data = bad_data.read(arguments["data"])
        report = decode_data(acoustic, graphs, data, out, weight, penalty, **settings)
        click.echo(f"{report.total} -> {out}")


@app.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`: needed for supervise.")
@click.option("--textgrid", type=OUTPUT, help="Folder for a TextGrid of each utterance, for Praat.")
@cache_option
@workers_option
@bad_data_option
@commands_option
def align(model: Path, data: Path, out: Path, **arguments: Any) -> None:
    """Find when each word and phone of the transcripts is said.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory. With --den only phone sequences that
    the denominator has are looked for; `fsachain supervise` takes no others.

    Out: folder OUT with words.ctm and phones.ctm (utterance channel start duration label, in seconds);
    faults.jsonl if utterances cannot be used.
    """
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.decoding import align_data
    from fsachain.cli.graphs import load_normalization
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel

    language = load_lang(arguments["lang"])
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        summary = align_data(
            AcousticModel.load(model),
            language,
            bad_data.read(data),
            out,
            normalization=load_normalization(language, arguments["den"]) if arguments["den"] else None,
            textgrids=arguments["textgrid"],
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")


for command in (
    train,
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
