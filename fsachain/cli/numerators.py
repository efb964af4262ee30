"""Commands that make numerators: of transcripts, patterns, graphs and alignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from fsachain.cli.graphs import NumeratorSummary, write_numerators
from fsachain.cli.lang import Lang
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
from fsachain.cli.parallel import collect
from fsachain.data.kaldi_dir import read_table
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.numerator import NO_WORD, Numerator, numerator_of_phones
from fsachain.graph.patterns import (
    LOOP,
    build_pattern_numerator,
    numerator_of_words,
    parse_pattern,
    phone_loop,
)
from fsachain.graph.transducer import product, remove_epsilons
from fsachain.kaldi.archive import read_table as read_values
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.decoding import grammar_over, pdf_graph
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import TransitionModel, read_transition_model
from fsachain.openfst import Transducer, read_fst

den_option = click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; normalises the numerators."
)


def _graphs(lang: Path, den: Path | None) -> tuple[Lang, Fsa | None]:
    """The language, and the normalization of the denominator, if there is one."""
    from fsachain.cli.graphs import load_normalization
    from fsachain.cli.lang import load_lang

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
    from fsachain.cli.bad_data import bad_data_of, faults_beside
    from fsachain.cli.graphs import make_numerators
    from fsachain.cli.parallel import executor_at

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
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.options import counter
    from fsachain.cli.parallel import executor_at
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
    from fsachain.cli.parallel import executor_at

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
    from fsachain.cli.parallel import executor_at

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
    from fsachain.cli.bad_data import bad_data_of, faults_beside
    from fsachain.cli.supervision import make_supervision

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


# Numerators of what is not one transcript: patterns of words, and graphs from files of FSTs.

LABELS = ("words", "phones", "pdfs", "transition-ids")
DEFAULT_STOP_PROB = 0.1


def make_pattern_numerators(
    lang: Lang,
    patterns: Path,
    out: Path,
    normalization: Fsa | None,
    *,
    parts: Mapping[str, Path] | None = None,
    stop_prob: float = DEFAULT_STOP_PROB,
    jobs: int = 1,
    executor: Executor | None = None,
) -> NumeratorSummary:
    """Build the numerators of a file of patterns and write them to one npz file.

    Args:
        lang: lexicon and tree.
        patterns: lines of an utterance and its pattern, as `parse_pattern` reads it; those that are refused are left out
            and named.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.
        parts: files with acceptors over phones, label = phone id, by the name that stands for them in patterns. The name
            `<loop>` has a loop of all phones, silence among them, unless it is given.
        stop_prob: of that loop; see `phone_loop`.
        jobs: processes.
        executor: used in place of processes of our own.

    Raises:
        DataError: a file that cannot be read, or no utterance is left.
    """
    lexicon = lang.lexicon
    known = {LOOP: phone_loop(range(1, len(lexicon.phones) + 1), stop_prob=stop_prob)}
    known |= {name: _part(path) for name, path in (parts or {}).items()}
    lines = [(name, (name, text)) for name, (_, text) in read_table(patterns).items()]
    maker = PatternMaker(lang, known, normalization)
    return write_numerators(out, *collect(maker, lines, "numerators", jobs, executor), "graphs")


def _part(path: Path) -> Fsa:
    graph = read_value(path, read_fst)
    try:
        return input_fsa(remove_epsilons(graph, range(len(graph.src)))[0])
    except GraphError as error:
        raise DataError(f"{path}: no acceptor over phones: {error}") from error


@dataclass(frozen=True, eq=False)
class PatternMaker:
    """Turns (name, pattern as text) into a numerator."""

    lang: Lang
    parts: Mapping[str, Fsa]
    normalization: Fsa | None

    def __call__(self, item: tuple[str, str]) -> Numerator:
        """The numerator; a `GraphError` names the utterance."""
        name, text = item
        try:
            pattern = parse_pattern(text, self.parts)
        except GraphError as error:
            raise GraphError(f"utterance {name!r}: {error}") from error
        if not pattern:
            raise GraphError(f"utterance {name!r}: the pattern is empty: a numerator needs at least one word")
        lexicon, tree = self.lang.lexicon, self.lang.tree
        return build_pattern_numerator(pattern, lexicon, tree, normalization=self.normalization, name=name)


def make_fst_numerators(
    lang: Lang,
    table: str,
    out: Path,
    normalization: Fsa | None,
    *,
    labels: str = "words",
    words: Path | None = None,
    model: Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> NumeratorSummary:
    """Build numerators from a table of FSTs (OpenFst binary or AT&T text) and write them to one npz file.

    Args:
        lang: lexicon and tree.
        table: as for `fsachain.kaldi.archive.read_table`: an archive, or an scp file of FST files by utterance.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.
        labels: what input labels mean: "words", "phones", "pdfs" (pdf + 1) or "transition-ids". Label 0 is epsilon;
            output labels are ignored.
        words: words.txt of the graphs; None: that of `lang`.
        model: the transition model that transition ids are of.
        jobs: processes.
        executor: used in place of processes of our own.

    Raises:
        ConfigError: unknown labels, or transition ids without a model.
        DataError: a file that cannot be read, or no utterance is left.
    """
    if labels not in LABELS:
        raise ConfigError(f"labels = {labels!r}: expected one of {', '.join(LABELS)}")
    if (labels == "transition-ids") != (model is not None):
        raise ConfigError(
            f"labels = {labels!r}, model = {model}: transition ids need their model, others have none"
        )
    maker = FstMaker(
        lang,
        normalization,
        labels,
        lang.lexicon.words if words is None else read_symbols(words),
        None if model is None else read_transition_model(model),
    )
    items = [(name, (name, graph)) for name, graph in read_values(table, read_fst)]
    return write_numerators(out, *collect(maker, items, "numerators", jobs, executor), "graphs")


@dataclass(frozen=True, eq=False)
class FstMaker:
    """Turns (name, graph) into a numerator."""

    lang: Lang
    normalization: Fsa | None
    labels: str
    words: Sequence[str]
    model: TransitionModel | None = field(default=None)

    def __call__(self, item: tuple[str, Transducer]) -> Numerator:
        """The numerator; an error names the utterance."""
        name, graph = item
        try:
            return self._numerator(name, replace(graph, olabel=graph.ilabel))
        except (DataError, GraphError) as error:
            text = str(error)
            raise GraphError(text if repr(name) in text else f"utterance {name!r}: {text}") from error

    def _numerator(self, name: str, graph: Transducer) -> Numerator:
        lexicon, tree = self.lang.lexicon, self.lang.tree
        if self.labels == "words":
            return numerator_of_words(
                grammar_over(graph, self.words, lexicon.words),
                lexicon,
                tree,
                normalization=self.normalization,
                name=name,
            )
        if self.model is not None:
            graph = pdf_graph(graph, self.model)
        plain = remove_epsilons(graph, range(len(graph.src)))[0]
        if self.labels == "phones":
            return numerator_of_phones(
                plain,
                [NO_WORD] * len(plain.src),
                (),
                lexicon,
                tree,
                normalization=self.normalization,
                name=name,
            )
        fsa = input_fsa(plain)
        if fsa.num_arcs and fsa.pdf.max() >= tree.num_pdfs:
            raise GraphError(f"has pdf {fsa.pdf.max()}; the tree has {tree.num_pdfs}")
        if self.normalization is not None:
            fsa, _ = product(fsa, self.normalization)
        if not fsa.num_arcs:
            raise GraphError("no path is left, or none that the normalization accepts")
        none = np.zeros(fsa.num_arcs, dtype=np.int32)
        return Numerator(fsa, (), none, none + NO_WORD, none.astype(np.bool_))
