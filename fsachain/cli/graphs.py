"""The graphs of a training, as files: den-graph, num-graphs, num-tables, num-patterns, num-fsts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from fsachain.cli.lang import TREE, Lang, lang_option
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    counter,
    merge_option,
    phones_per_loop_option,
    reasons,
)
from fsachain.cli.resources import Resources, with_resources
from fsachain.data.kaldi_dir import DataDir, Utterance, read_table
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator, free_denominator
from fsachain.graph.numerator import (
    NO_WORD,
    Numerator,
    NumeratorSource,
    build_numerator,
    numerator_of_phones,
    save_numerators,
)
from fsachain.graph.patterns import (
    LOOP,
    build_pattern_numerator,
    numerator_of_words,
    parse_pattern,
    phone_loop,
)
from fsachain.graph.shards import NumeratorMaker, make_shards
from fsachain.graph.transducer import product, remove_epsilons
from fsachain.kaldi.archive import read_table as read_archive
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.decoding import grammar_over, pdf_graph
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import TransitionModel, read_transition_model
from fsachain.openfst import Transducer, read_fst

DENOMINATOR = "den.fst"
NORMALIZATION = "normalization.fst"

Merge = Literal["sum", "min"]


# denominator


@click.command("den-graph")
@click.argument("phone_lm", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@merge_option
def den_graph(phone_lm: Path, out: Path, lang: Lang, merge: Merge) -> None:
    """Build the denominator graph.

    In: PHONE_LM, made by `fsachain phone-lm`.

    Out: folder OUT with den.fst and normalization.fst, OpenFst acceptors whose labels are pdf + 1.
    """
    click.echo(f"{make_denominator(lang, phone_lm, out, merge)} -> {out}")


def make_denominator(lang: Lang, phone_lm: Path, out: Path, merge: Merge = "sum") -> DenominatorGraph:
    fsa = Fsa.read(phone_lm)
    try:
        denominator = DenominatorGraph(build_denominator(fsa, lang.tree), lang.tree.num_pdfs)
    except GraphError as error:
        raise GraphError(f"{phone_lm}: no phone language model for these phones: {error}") from error
    write_denominator(lang, denominator, out, merge)
    return denominator


def make_free_denominator(lang: Lang, out: Path) -> DenominatorGraph:
    """The denominator accepts every sequence of pdfs."""
    denominator = DenominatorGraph(free_denominator(lang.tree.num_pdfs), lang.tree.num_pdfs)
    write_denominator(lang, denominator, out, "sum")
    return denominator


def write_denominator(lang: Lang, denominator: DenominatorGraph, out: Path, merge: Merge) -> None:
    """Write den.fst, normalization.fst and the tree they were made with, tree.npz, to the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    lang.tree.save(out / TREE)
    denominator.fsa.write(out / DENOMINATOR)
    denominator.normalization_fsa(merge).write(out / NORMALIZATION)


def load_denominator(lang: Lang, folder: Path) -> DenominatorGraph:
    return DenominatorGraph(_read_graph(lang, folder, DENOMINATOR), lang.tree.num_pdfs)


def load_normalization(lang: Lang, folder: Path) -> Fsa:
    return _read_graph(lang, folder, NORMALIZATION)


def _read_graph(lang: Lang, folder: Path, graph: str) -> Fsa:
    for name in (graph, TREE):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; make it with `fsachain den-graph`")
    made_with = ContextTree.load(folder / TREE)
    if not made_with.equals(lang.tree):
        raise DataError(
            f"{folder}: made with another language folder ({len(made_with.phones)} phones, {made_with.num_pdfs} pdfs; "
            f"this one has {len(lang.tree.phones)} and {lang.tree.num_pdfs}); build the graphs anew"
        )
    return Fsa.read(folder / graph)


# numerators

normalizing_option = click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; normalises the numerators."
)


@dataclass(frozen=True)
class NumeratorSummary:
    num_graphs: int
    num_arcs: int
    excluded: dict[str, str]

    def __str__(self) -> str:
        head = f"{self.num_graphs} numerators, {self.num_arcs} arcs, {len(self.excluded)} utterances excluded"
        return reasons(head, [*self.excluded.values()])


def write_numerators(
    out: Path,
    numerators: Mapping[str, Numerator],
    excluded: dict[str, str],
    source: NumeratorSource = "transcripts",
) -> NumeratorSummary:
    if not numerators:
        reason = next(iter(excluded.values()), "there are no utterances")
        raise DataError(f"{out}: no numerator could be built; the first reason: {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_numerators(out, numerators, source)
    num_arcs = sum(numerator.fsa.num_arcs for numerator in numerators.values())
    return NumeratorSummary(len(numerators), num_arcs, excluded)


@click.command("num-graphs")
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@normalizing_option
@with_resources("jobs", "scheduler", "bad_data", beside=True)
def num_graphs(data: Path, out: Path, lang: Lang, den: Path | None, resources: Resources) -> None:
    """Build the numerator graph of every utterance.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.

    Out: OUT, one npz file.
    """
    normalization = None if den is None else load_normalization(lang, den)
    click.echo(f"{make_numerators(lang, resources.read(data), out, normalization, resources)} -> {out}")


def make_numerators(
    lang: Lang, data: DataDir, out: Path, normalization: Fsa | None, resources: Resources | None = None
) -> NumeratorSummary:
    """Without `normalization` the numerators are unnormalised."""
    return write_numerators(out, *build_numerators(lang, data, normalization, resources))


def build_numerators(
    lang: Lang, data: DataDir, normalization: Fsa | None, resources: Resources | None = None
) -> tuple[dict[str, Numerator], dict[str, str]]:
    """The numerators by utterance id, and for the utterances without one the reason.

    An utterance has none if it is without words, has a word that the lexicon refuses, or says what the
    normalization does not accept.
    """
    items = [(utterance.id, utterance) for utterance in data.utterances]
    make = partial(_numerator_of_transcript, lang, normalization)
    return (resources or Resources()).collect(make, items, "numerators")


def _numerator_of_transcript(lang: Lang, normalization: Fsa | None, utterance: Utterance) -> Numerator:
    return build_numerator(
        utterance.words, lang.lexicon, lang.tree, normalization=normalization, name=utterance.id
    )


@click.command("num-tables")
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@normalizing_option
@click.option(
    "--shard-size", type=click.IntRange(min=1), default=2000, show_default=True, help="Utterances per file."
)
@with_resources("jobs", "scheduler", "bad_data")
def num_tables(
    data: Path, out: Path, lang: Lang, den: Path | None, shard_size: int, resources: Resources
) -> None:
    """Build and compile the numerators of a large corpus; a run that was broken off continues where it stood.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.

    Out: folder OUT with files of compiled tables, which `fsachain train` takes in place of numerators.
    """
    normalization = None if den is None else load_normalization(lang, den)
    maker = NumeratorMaker(lang.lexicon, lang.tree, normalization)
    said = [(utterance.id, utterance.words) for utterance in resources.read(data)]
    with counter("numerators") as update:
        summary = make_shards(
            said,
            maker,
            out,
            shard_size=shard_size,
            jobs=resources.jobs,
            executor=resources.executor,
            progress=update,
        )
    click.echo(f"{summary} -> {out}")


@click.command("num-patterns")
@click.argument("patterns", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@normalizing_option
@click.option(
    "--part",
    "parts",
    type=(str, INPUT_FILE),
    multiple=True,
    metavar="NAME FST",
    help="Acceptor over phones that NAME stands for in the patterns, such as '<spell>' phone_lm.fst.",
)
@phones_per_loop_option
@with_resources("jobs", "scheduler")
def num_patterns(
    patterns: Path,
    out: Path,
    lang: Lang,
    den: Path | None,
    parts: tuple[tuple[str, Path], ...],
    phones_per_loop: float,
    resources: Resources,
) -> None:
    r"""Build numerators of alternatives, gaps, unknown words and keywords.

    In: PATTERNS, lines of an utterance and what it may say: words; `( 0.7 yes | 0.3 yes please )` for one of several;
    `[ please ]` for what may be missing; `<loop>` for any phones, one at least; `*` for a gap, any phones or none. A
    keyword among anything is `* hey robin *`, anything at all `<loop>`. `\*` is a word.

    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    """
    normalization = None if den is None else load_normalization(lang, den)
    known = {LOOP: phone_loop(range(1, len(lang.lexicon.phones) + 1), stop_prob=1 / phones_per_loop)}
    for name, path in parts:
        graph = read_value(path, read_fst)
        try:
            known[name] = input_fsa(remove_epsilons(graph, range(len(graph.src)))[0])
        except GraphError as error:
            raise DataError(f"{path}: no acceptor over phones: {error}") from error
    lines = [(name, (name, text)) for name, (_, text) in read_table(patterns).items()]
    made = resources.collect(partial(_numerator_of_pattern, lang, known, normalization), lines, "numerators")
    click.echo(f"{write_numerators(out, *made, 'graphs')} -> {out}")


def _numerator_of_pattern(
    lang: Lang, parts: Mapping[str, Fsa], normalization: Fsa | None, named: tuple[str, str]
) -> Numerator:
    name, text = named
    try:
        pattern = parse_pattern(text, parts)
    except GraphError as error:
        raise GraphError(f"utterance {name!r}: {error}") from error
    if not pattern:
        raise GraphError(f"utterance {name!r}: the pattern is empty: a numerator needs at least one word")
    return build_pattern_numerator(pattern, lang.lexicon, lang.tree, normalization=normalization, name=name)


@click.command("num-fsts")
@click.argument("table")
@click.argument("out", type=OUTPUT)
@lang_option
@normalizing_option
@click.option(
    "--labels",
    type=click.Choice(["words", "phones", "pdfs", "transition-ids"]),
    default="words",
    show_default=True,
    help="What input labels mean; pdfs as pdf + 1, transition ids with --model.",
)
@click.option("--words", type=INPUT_FILE, help="words.txt of the graphs; without it that of --lang.")
@click.option("--model", type=INPUT_FILE, help="0.trans_mdl or final.mdl, for transition ids.")
@with_resources("jobs", "scheduler")
def num_fsts(
    table: str,
    out: Path,
    lang: Lang,
    den: Path | None,
    labels: str,
    words: Path | None,
    model: Path | None,
    resources: Resources,
) -> None:
    """Build numerators from graphs in OpenFst files or AT&T text.

    In: TABLE, an archive of FSTs (ark:graphs.ark, .gz too) or an scp file that names a file for each utterance. Graphs of
    words and of phones are spelled out and expanded; graphs over pdfs or transition ids, such as those of
    compile-train-graphs, are taken as they are. Cycles are fine; output labels are ignored.

    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    """
    if (labels == "transition-ids") != (model is not None):
        raise ConfigError(
            f"labels = {labels!r}, model = {model}: transition ids need their model, others have none"
        )
    make = partial(
        _numerator_of_graph,
        lang,
        None if den is None else load_normalization(lang, den),
        labels,
        lang.lexicon.words if words is None else read_symbols(words),
        None if model is None else read_transition_model(model),
    )
    items = [(name, (name, graph)) for name, graph in read_archive(table, read_fst)]
    made = resources.collect(make, items, "numerators")
    click.echo(f"{write_numerators(out, *made, 'graphs')} -> {out}")


def _numerator_of_graph(
    lang: Lang,
    normalization: Fsa | None,
    labels: str,
    words: Sequence[str],
    model: TransitionModel | None,
    named: tuple[str, Transducer],
) -> Numerator:
    name, graph = named
    graph = replace(graph, olabel=graph.ilabel)
    options: dict[str, Any] = {"normalization": normalization, "name": name}
    try:
        if labels == "words":
            spoken = grammar_over(graph, words, lang.lexicon.words)
            return numerator_of_words(spoken, lang.lexicon, lang.tree, **options)
        if model is not None:
            graph = pdf_graph(graph, model)
        plain = remove_epsilons(graph, range(len(graph.src)))[0]
        if labels == "phones":
            no_words = [NO_WORD] * len(plain.src)
            return numerator_of_phones(plain, no_words, (), lang.lexicon, lang.tree, **options)
        return _numerator_of_pdfs(input_fsa(plain), lang.tree.num_pdfs, normalization)
    except (DataError, GraphError) as error:
        text = str(error)
        raise GraphError(text if repr(name) in text else f"utterance {name!r}: {text}") from error


def _numerator_of_pdfs(fsa: Fsa, num_pdfs: int, normalization: Fsa | None) -> Numerator:
    if fsa.num_arcs and fsa.pdf.max() >= num_pdfs:
        raise GraphError(f"has pdf {fsa.pdf.max()}; the tree has {num_pdfs}")
    if normalization is not None:
        fsa, _ = product(fsa, normalization)
    if not fsa.num_arcs:
        raise GraphError("no path is left, or none that the normalization accepts")
    none = np.zeros(fsa.num_arcs, dtype=np.int32)
    return Numerator(fsa, (), none, none + NO_WORD, none.astype(np.bool_))
