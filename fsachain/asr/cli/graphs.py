"""The graphs of a training, as files: den-graph, num-graphs, num-tables, num-patterns, num-fsts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from fsachain.asr.cli.advice import advice
from fsachain.asr.cli.config import Experiment, config_option
from fsachain.asr.cli.lang import TREE, Lang, check_phone_names, lang_option, usable_transcripts
from fsachain.asr.cli.options import COUNT, DATA, FILE, FOLDER, OUT, command, option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.data.kaldi_dir import DataDir, read_table
from fsachain.asr.data.utterance import Fault
from fsachain.asr.kaldi.archive import read_table as read_archive
from fsachain.asr.kaldi.archive import read_value
from fsachain.asr.kaldi.model import TransitionModel, pdf_graph, read_transition_model
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError, GraphError, but_for, counted
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph import patterns as pattern
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator, free_denominator
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import (
    FLOOR,
    Numerator,
    NumeratorSource,
    build_numerator,
    made_with,
    numerator_of_phones,
    save_numerators,
    told_without_floored,
)
from fsachain.graph.shards import NumeratorMaker, make_shards
from fsachain.graph.spelling import NO_WORD, phone_loop
from fsachain.graph.transducer import product, remove_epsilons
from fsachain.openfst import Transducer, grammar_over, read_fst, read_symbols
from fsachain.progress import counter

DENOMINATOR = "den.fst"
NORMALIZATION = "normalization.fst"
DEAR_STAR = 2000  # arcs; with 800, a 2-gram of 39 phones, the loss takes 3.5 times as long as without stars

Merge = Literal["sum", "min"]

merge_option = option(
    click.Choice(["sum", "min"]),
    "Arcs out of the normalization's start that are alike: added up, or the best kept, as Kaldi does.",
    "--merge",
    default="sum",
)
den_option = option(FOLDER, "Folder made by `fsachain den-graph`.", "--den", required=True)
phones_per_loop_option = option(
    click.FloatRange(min=1, min_open=True),
    "Phones that anything, or <loop>, has on average.",
    "--phones-per-loop",
    default=10.0,
)


@command(phone_lm=FILE, out=OUT)
def den_graph(phone_lm: Path, out: Path, lang: Lang = lang_option, merge: Merge = merge_option) -> str:
    """Build the denominator graph.

    In: PHONE_LM, made by `fsachain phone-lm`.
    Out: folder OUT with den.fst and normalization.fst, OpenFst acceptors whose labels are pdf + 1.
    Example: fsachain den-graph graphs/phone_lm.fst graphs --lang lang
    """
    fsa = Fsa.read(phone_lm)
    check_phone_names(lang, phone_lm)
    if fsa.num_states == 1 and not fsa.log_prob.any():  # no distribution: a loop of weight one
        return write_denominator(lang, free_denominator(lang.tree.num_pdfs), out, merge)
    try:
        with counter("denominator graph"):
            return write_denominator(lang, build_denominator(fsa, lang.tree), out, merge)
    except GraphError as error:
        raise GraphError(f"{phone_lm}: no phone language model for these phones: {error}") from error


def write_denominator(lang: Lang, fsa: Fsa, out: Path, merge: Merge) -> str:
    """Write den.fst, normalization.fst and the tree they were made with, tree.npz, to the folder `out`."""
    denominator = DenominatorGraph(fsa, lang.tree.num_pdfs)
    lang.tree.save(out / TREE)
    fsa.write(out / DENOMINATOR)
    denominator.normalization_fsa(merge).write(out / NORMALIZATION)
    pdfs, used = counted(lang.tree.num_pdfs, "pdf"), len(np.unique(fsa.pdf))
    if used < lang.tree.num_pdfs:
        pdfs = f"{used} of {pdfs}"
    return f"denominator graph of {counted(fsa.num_states, 'state')}, {counted(fsa.num_arcs, 'arc')}, {pdfs}"


def load_denominator(lang: Lang, folder: Path) -> DenominatorGraph:
    return DenominatorGraph(_read_graph(lang, folder, DENOMINATOR), lang.tree.num_pdfs)


def load_normalization(lang: Lang, folder: Path) -> Fsa:
    return _read_graph(lang, folder, NORMALIZATION)


def _read_graph(lang: Lang, folder: Path, graph: str) -> Fsa:
    for name in (graph, TREE):
        if not (folder / name).is_file():
            inner = next((part for part in ("graphs", "den") if (folder / part / name).is_file()), None)
            expected = f"; expected {folder / inner}" if inner else advice(folder)
            raise DataError(f"{folder}: no {name}{expected or '; make it with `fsachain den-graph`'}")
    difference = ContextTree.load(folder / TREE).difference(lang.tree, (str(folder), lang.name))
    if difference is not None:
        raise DataError(f"{folder}: made with another language folder: {difference}; build the graphs anew")
    return Fsa.read(folder / graph)


def normalization_option(use: str, *, required: bool = False) -> Any:
    """The option --den, for a command that also has --lang: it gets `normalization`, None without the option."""

    def load(context: click.Context, _: click.Parameter, folder: Path | None) -> Fsa | None:
        return None if folder is None else load_normalization(context.params["lang"], folder)

    text = f"Folder made by `fsachain den-graph`{use}."
    return option(FOLDER, text, "--den", "normalization", required=required, callback=load)


normalizing_option = normalization_option("; normalises the numerators")
floor_option = option(
    click.FloatRange(min=0.0, max=1.0, max_open=True),
    "Probability of an n-gram that the phone language model never saw; utterances that need it count in a "
    "development set alone. 0: they are left out.",
    "--floor",
    default=FLOOR,
)

as_written_option = option(
    bool,
    "Nothing is forgiven, whatever section forgive says: a development set is judged by its transcripts.",
    "--as-written",
)


@command(data=DATA, out=OUT)
def num_graphs(
    data: DataDir,
    out: Path,
    lang: Lang = lang_option,
    normalization: Fsa | None = normalizing_option,
    floor: float = floor_option,
    as_written: bool = as_written_option,
    experiment: Experiment = config_option,
    resources: Resources = with_resources("jobs", "scheduler", "bad_data", "commands", beside=True),
    patterns: Path | None = None,
) -> str:
    """Build the numerator graph of every utterance.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.
    The section forgive of the configuration says what transcripts may be wrong in.
    Out: OUT, one npz file. Numerators that need --floor are counted; training sets go without them.
    Example: fsachain num-graphs train graphs/train.npz --lang lang --den graphs
    """
    forgive = None if as_written else experiment.settled(lang.tree).forgive.forgiveness()
    if forgive is not None:
        stars = f", star: {forgive.star}" if forgive.has_star else ""
        click.echo(
            f"transcripts may be wrong, by section forgive{stars}; those of a development set are not (--as-written)"
        )
    lines = {} if patterns is None else read_table(patterns)
    if lines and lines.keys().isdisjoint(data.transcripts):
        raise DataError(
            f"{patterns}: has {counted(len(lines), 'utterance')}, the first is {next(iter(lines))!r}; expected some of "
            "those in the data set"
        )
    made = build_numerators(lang, data, normalization, resources, forgive, floor, lines)
    written = _write(out, lang, *made, "graphs" if lines else "transcripts", resources, forgive)
    return f"{written}{told_stars(normalization, forgive)}"


def told_stars(normalization: Fsa | None, forgive: Forgiveness | None) -> str:
    """For summaries: that stars are dear."""
    has_star = forgive is not None and forgive.has_star and not forgive.has_star_of_frames
    arcs = normalization.num_arcs if normalization is not None and has_star else 0
    if arcs <= DEAR_STAR:
        return ""
    return (
        f"; each star has the {counted(arcs, 'arc')} of the phone language model: training is fastest with "
        "forgive.star: frames, or phone_lm.ngram_order: 2"
    )


def _write(
    out: Path,
    lang: Lang,
    numerators: Mapping[str, Numerator],
    faults: Sequence[Fault],
    source: NumeratorSource,
    resources: Resources,
    forgive: Forgiveness | None = None,
) -> str:
    resources.leave_out(faults, len(numerators), f"{out}: numerators")
    save_numerators(out, numerators, source, made_with(lang.lexicon, lang.tree, forgive))
    arcs = sum(numerator.fsa.num_arcs for numerator in numerators.values())
    floored = told_without_floored(sum(numerator.floored for numerator in numerators.values()))
    sizes = f"{counted(len(numerators), 'numerator')}, {counted(arcs, 'arc')}"
    return f"{sizes}{but_for(len(faults))}{floored}"


def build_numerators(
    lang: Lang,
    data: DataDir,
    normalization: Fsa | None,
    resources: Resources | None = None,
    forgive: Forgiveness | None = None,
    floor: float = 0.0,
    patterns: Mapping[str, str] | None = None,
) -> tuple[dict[str, Numerator], list[Fault]]:
    """The numerators by utterance id, and the faults of the utterances without one.

    An utterance has none if it is without words, has a word that the lexicon refuses, or says what the
    normalization does not accept, without a `floor`. Those that have `patterns` are made of these, whatever their
    transcripts are.
    """
    how = {"forgive": forgive, "floor": floor}
    make = partial(_of_words, _how(lang, normalization), {pattern.LOOP: any_phones(lang)}, how)
    transcripts, lines = data.transcripts, patterns or {}
    usable, bad = usable_transcripts({k: v for k, v in transcripts.items() if k not in lines}, lang.lexicon)
    said: dict[str, str | Sequence[str]] = {**usable, **lines}
    given = [(name, said[name]) for name in transcripts if name in said]
    found, refused = (resources or Resources()).collect(make, given, "numerators")
    faults = {fault.id: fault for fault in [*bad, *(replace(fault, kind="no path") for fault in refused)]}
    return found, [faults[one.id] for one in data if one.id in faults]


@command(data=DATA, out=OUT)
def num_tables(
    data: DataDir,
    out: Path,
    lang: Lang = lang_option,
    normalization: Fsa | None = normalizing_option,
    floor: float = floor_option,
    as_written: bool = as_written_option,
    shard_size: int = option(COUNT, "Utterances per file.", default=2000),
    experiment: Experiment = config_option,
    resources: Resources = with_resources("jobs", "scheduler", "bad_data", "commands"),
) -> None:
    """Build and compile the numerators of a large corpus; continues where an earlier run stood.

    In: DATA, a data set as `fsachain train` takes it. Utterances without words or with unknown words are named and left out.
    The section forgive of the configuration says what transcripts may be wrong in.
    Out: folder OUT with files of compiled tables, which `fsachain train` takes in place of numerators.
    Example: fsachain num-tables train graphs/tables --lang lang --den graphs --jobs 2
    """
    said, faults = usable_transcripts(data.transcripts, lang.lexicon)
    resources.leave_out(faults, len(said), f"{out}: numerators")
    forgive = None if as_written else experiment.settled(lang.tree).forgive.forgiveness()
    with counter("numerators") as update:
        summary = make_shards(
            [(name, tuple(words)) for name, words in said.items()],
            NumeratorMaker(lang.lexicon, lang.tree, normalization, forgive, floor),
            out,
            shard_size=shard_size,
            jobs=resources.jobs,
            executor=resources.executor,
            progress=update,
        )
    told = replace(summary, excluded={**{fault.id: fault.reason for fault in faults}, **summary.excluded})
    click.echo(f"{told} -> {out}")
    refused = [Fault(name, reason, "no path") for name, reason in summary.excluded.items()]
    resources.leave_out(refused, summary.num_tables, f"{out}: numerators")


@command(patterns=FILE, out=OUT)
def num_patterns(
    patterns: Path,
    out: Path,
    lang: Lang = lang_option,
    normalization: Fsa | None = normalizing_option,
    parts: tuple[tuple[str, Path], ...] = option(
        (str, FILE),
        "Acceptor over phones that NAME stands for in the patterns, such as '<spell>' phone_lm.fst.",
        "--part",
        multiple=True,
        metavar="NAME FST",
    ),
    phones_per_loop: float = phones_per_loop_option,
    resources: Resources = with_resources("jobs", "scheduler", "bad_data", beside=True),
) -> str:
    r"""Build numerators of alternatives, gaps, unknown words and keywords.

    In: PATTERNS, lines of an utterance and what it may say: words; `( 0.7 yes | 0.3 yes please )` for one of several;
    `[ please ]` for what may be missing; `<loop>` for any phones, one at least; `*` for a gap, any phones or none. A
    keyword among anything is `* hey robin *`, anything at all `<loop>`. `\*` is a word.
    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    Example: fsachain num-patterns patterns.txt graphs/patterns.npz --lang lang --den graphs
    """
    known = {pattern.LOOP: any_phones(lang, phones_per_loop)}
    for name, path in parts:
        graph = read_value(path, read_fst)
        check_phone_names(lang, path)
        try:
            known[name] = input_fsa(remove_epsilons(graph, range(len(graph.src)))[0])
        except GraphError as error:
            raise DataError(f"{path}: no acceptor over phones: {error}") from error
    make = partial(_of_words, _how(lang, normalization), known, {})
    made = resources.collect(make, list(read_table(patterns).items()), "numerators")
    return _write(out, lang, *made, "graphs", resources)


def any_phones(lang: Lang, phones_per_loop: float = 10.0) -> Fsa:
    """One phone or more, of any kind."""
    return phone_loop(range(1, len(lang.lexicon.phones) + 1), stop_prob=1 / phones_per_loop)


@command(table=str, out=OUT)
def num_fsts(
    table: str,
    out: Path,
    lang: Lang = lang_option,
    normalization: Fsa | None = normalizing_option,
    labels: str = option(
        click.Choice(["words", "phones", "pdfs", "transition-ids"]),
        "What input labels mean; pdfs as pdf + 1, transition ids with --model.",
        default="words",
    ),
    words: Path | None = option(FILE, "words.txt of the graphs; without it that of --lang."),
    model: Path | None = option(FILE, "0.trans_mdl or final.mdl, for transition ids."),
    resources: Resources = with_resources("jobs", "scheduler", "bad_data", beside=True),
) -> str:
    """Build numerators from graphs in OpenFst files or AT&T text.

    In: TABLE, an archive of FSTs (ark:graphs.ark, .gz too) or an scp file that names a file for each utterance. Graphs of
    words and of phones are spelled out and expanded; graphs over pdfs or transition ids, such as those of
    compile-train-graphs, are taken as they are. Cycles are fine; output labels are ignored.
    Out: OUT, one npz file, as `fsachain num-graphs` writes it. Refused utterances are named and left out.
    Example: fsachain num-fsts graphs.scp graphs/fsts.npz --lang lang
    """
    if (labels == "transition-ids") != (model is not None):
        raise click.UsageError("--model goes with --labels transition-ids, and these with --model")
    symbols = lang.lexicon.words if words is None else read_symbols(words)
    transitions = None if model is None else read_transition_model(model)
    make = partial(_of_graph, _how(lang, normalization), labels, symbols, transitions)
    made = resources.collect(make, list(read_archive(table, read_fst)), "numerators")
    return _write(out, lang, *made, "graphs", resources)


# What makes a numerator of what is known of one utterance; `how` are arguments that all numerators have.


def _how(lang: Lang, normalization: Fsa | None) -> dict[str, Any]:
    return {"lexicon": lang.lexicon, "tree": lang.tree, "normalization": normalization}


def _of_words(
    how: dict[str, Any],
    parts: Mapping[str, Fsa],
    options: dict[str, Any],
    name: str,
    said: str | Sequence[str],
) -> Numerator:
    """`said` are words, or the text of a pattern, which `parts` are for; `options` are for words."""
    if not isinstance(said, str):
        return build_numerator(said, name=name, **how, **options)
    try:
        found = pattern.parse_pattern(said, parts)
        if not found:
            raise GraphError("the pattern is empty: a numerator needs at least one word")
    except GraphError as error:
        raise GraphError(f"utterance {name!r}: {error}") from error
    return pattern.build_pattern_numerator(found, name=name, **how)


def _of_graph(
    how: dict[str, Any],
    labels: str,
    words: Sequence[str],
    model: TransitionModel | None,
    name: str,
    graph: Transducer,
) -> Numerator:
    graph = replace(graph, olabel=graph.ilabel)
    try:
        if labels == "words":
            return pattern.numerator_of_words(
                grammar_over(graph, words, how["lexicon"].words), name=name, **how
            )
        if model is not None:
            graph = pdf_graph(graph, model)
        plain = remove_epsilons(graph, range(len(graph.src)))[0]
        if labels == "phones":
            return numerator_of_phones(plain, [NO_WORD] * len(plain.src), (), name=name, **how)
        fsa, num_pdfs = input_fsa(plain), how["tree"].num_pdfs
        if fsa.num_arcs and fsa.pdf.max() >= num_pdfs:
            raise GraphError(f"has pdf {fsa.pdf.max()}; the tree has {num_pdfs}")
        if how["normalization"] is not None:
            fsa, _ = product(fsa, how["normalization"])
        if not fsa.num_arcs:
            raise GraphError("no path is left, or none that the normalization accepts")
        none = np.zeros(fsa.num_arcs, dtype=np.int32)
        return Numerator(fsa, (), none, none + NO_WORD, none.astype(np.bool_))
    except (DataError, GraphError) as error:
        text = str(error)
        raise GraphError(text if repr(name) in text else f"utterance {name!r}: {text}") from error
