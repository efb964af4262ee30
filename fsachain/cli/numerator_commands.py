"""Commands that make numerators: of transcripts, patterns, graphs and alignments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    config_option,
    jobs_option,
    lang_option,
    scheduler_option,
    workers_option,
)

if TYPE_CHECKING:
    from fsachain.cli.steps.lang import Lang
    from fsachain.fsa import Fsa

den_option = click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; normalises the numerators."
)


def _graphs(lang: Path, den: Path | None) -> tuple[Lang, Fsa | None]:
    """The language, and the normalization of the denominator, if there is one."""
    from fsachain.cli.steps.graphs import load_normalization
    from fsachain.cli.steps.lang import load_lang

    language = load_lang(lang)
    return language, None if den is None else load_normalization(language, den)


@click.command("num-graphs")
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@den_option
@jobs_option
@scheduler_option
@bad_data_option
@commands_option
def num_graphs(data: Path, out: Path, lang: Path, den: Path | None, **arguments: Any) -> None:
    """Build the numerator graph of every utterance.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.

    Out: OUT, one npz file.
    """
    from fsachain.cli.steps.bad_data import bad_data_of, faults_beside
    from fsachain.cli.steps.cluster import executor_at
    from fsachain.cli.steps.graphs import make_numerators

    language, normalization = _graphs(lang, den)
    with (
        bad_data_of(arguments, faults_beside(out)) as bad_data,
        executor_at(arguments["scheduler"]) as executor,
    ):
        settings: dict[str, Any] = {"jobs": arguments["jobs"], "executor": executor}
        summary = make_numerators(language, bad_data.read(data), out, normalization, **settings)
        click.echo(f"{summary} -> {out}")


@click.command("num-tables")
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@den_option
@click.option(
    "--shard-size", type=click.IntRange(min=1), default=2000, show_default=True, help="Utterances per file."
)
@jobs_option
@scheduler_option
@bad_data_option
@commands_option
def num_tables(data: Path, out: Path, lang: Path, den: Path | None, **arguments: Any) -> None:
    """Build and compile the numerators of a large corpus; a run that was broken off continues where it stood.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.

    Out: folder OUT with files of compiled tables, which `fsachain train` takes in place of numerators.
    """
    from fsachain.cli.progress import counter
    from fsachain.cli.steps.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.steps.cluster import executor_at
    from fsachain.graph.shards import NumeratorMaker, make_shards

    language, normalization = _graphs(lang, den)
    maker = NumeratorMaker(language.lexicon, language.tree, normalization)
    settings: dict[str, Any] = {"shard_size": arguments["shard_size"], "jobs": arguments["jobs"]}
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        said = [(utterance.id, utterance.words) for utterance in bad_data.read(data)]
        with executor_at(arguments["scheduler"]) as executor, counter("numerators") as update:
            summary = make_shards(said, maker, out, executor=executor, progress=update, **settings)
        click.echo(f"{summary} -> {out}")


@click.command("num-patterns")
@click.argument("patterns", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@den_option
@click.option(
    "--part",
    "parts",
    type=(str, INPUT_FILE),
    multiple=True,
    metavar="NAME FST",
    help="Acceptor over phones that NAME stands for in the patterns, such as '<spell>' phone_lm.fst.",
)
@click.option(
    "--phones-per-loop",
    type=click.FloatRange(min=1, min_open=True),
    default=10.0,
    show_default=True,
    help="Phones that <loop> has on average.",
)
@jobs_option
@scheduler_option
def num_patterns(
    patterns: Path,
    out: Path,
    lang: Path,
    den: Path | None,
    parts: tuple[tuple[str, Path], ...],
    phones_per_loop: float,
    jobs: int,
    scheduler: str | None,
) -> None:
    r"""Build numerators of alternatives, gaps, unknown words and keywords.

    In: PATTERNS, lines of an utterance and what it may say: words; `( 0.7 yes | 0.3 yes please )` for one of several;
    `[ please ]` for what may be missing; `<loop>` for any phones, one at least; `*` for a gap, any phones or none. A
    keyword among anything is `* hey robin *`, anything at all `<loop>`. `\*` is a word.

    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    """
    from fsachain.cli.steps.cluster import executor_at
    from fsachain.cli.steps.sources import make_pattern_numerators

    language, normalization = _graphs(lang, den)
    with executor_at(scheduler) as executor:
        settings: dict[str, Any] = {"jobs": jobs, "executor": executor, "stop_prob": 1 / phones_per_loop}
        summary = make_pattern_numerators(
            language, patterns, out, normalization, parts=dict(parts), **settings
        )
    click.echo(f"{summary} -> {out}")


@click.command("num-fsts")
@click.argument("table")
@click.argument("out", type=OUTPUT)
@lang_option
@den_option
@click.option(
    "--labels",
    type=click.Choice(["words", "phones", "pdfs", "transition-ids"]),
    default="words",
    show_default=True,
    help="What input labels mean; pdfs as pdf + 1, transition ids with --model.",
)
@click.option("--words", type=INPUT_FILE, help="words.txt of the graphs; without it that of --lang.")
@click.option("--model", type=INPUT_FILE, help="0.trans_mdl or final.mdl, for transition ids.")
@jobs_option
@scheduler_option
def num_fsts(
    table: str,
    out: Path,
    lang: Path,
    den: Path | None,
    labels: str,
    words: Path | None,
    model: Path | None,
    jobs: int,
    scheduler: str | None,
) -> None:
    """Build numerators from graphs in OpenFst files or AT&T text.

    In: TABLE, an archive of FSTs (ark:graphs.ark, .gz too) or an scp file that names a file for each utterance. Graphs of
    words and of phones are spelled out and expanded; graphs over pdfs or transition ids, such as those of
    compile-train-graphs, are taken as they are. Cycles are fine; output labels are ignored.

    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    """
    from fsachain.cli.steps.cluster import executor_at
    from fsachain.cli.steps.sources import make_fst_numerators

    language, normalization = _graphs(lang, den)
    with executor_at(scheduler) as executor:
        settings: dict[str, Any] = {"jobs": jobs, "executor": executor, "labels": labels}
        summary = make_fst_numerators(
            language, table, out, normalization, words=words, model=model, **settings
        )
    click.echo(f"{summary} -> {out}")


@click.command()
@click.argument("data", type=INPUT_DATA)
@click.argument("alignment", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@config_option
@cache_option
@workers_option
@jobs_option
@bad_data_option
@commands_option
def supervise(data: Path, alignment: Path, out: Path, **arguments: Any) -> None:
    """Make numerators whose times come from an alignment, in chunks: for a second training.

    In: DATA, a Kaldi data directory, and ALIGNMENT, the phones.ctm that `fsachain align --den` wrote for it (or
    another CTM of phones; `fsachain kaldi ctm` makes one of Kaldi's alignments); the sections supervision, perturbation,
    features and network of the configuration. Utterances that the alignment lacks or does not fit are named and left
    out. Lattices: `fsachain kaldi supervise`.

    Out: OUT, one npz file, which `fsachain train` takes in place of numerators.
    """
    from fsachain.cli.steps.bad_data import bad_data_of, faults_beside
    from fsachain.cli.steps.supervision import make_supervision

    language, normalization = _graphs(arguments["lang"], arguments["den"])
    assert normalization is not None
    with bad_data_of(arguments, faults_beside(out)) as bad_data:
        summary = make_supervision(
            arguments["experiment"],
            language,
            bad_data.read(data),
            alignment,
            out,
            normalization,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            jobs=arguments["jobs"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")


NUMERATOR_COMMANDS = (num_graphs, num_tables, num_patterns, num_fsts, supervise)
