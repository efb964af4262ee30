"""Graphs of an experiment, as files: phone language model, denominator, numerators, word grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsachain.cli.config import PhoneLmConfig
from fsachain.cli.lang import TREE, Lang
from fsachain.cli.parallel import collect
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator, free_denominator
from fsachain.graph.grammar import estimate_arpa
from fsachain.graph.lexicon import lm_phones
from fsachain.graph.numerator import Numerator, NumeratorSource, build_numerator, save_numerators
from fsachain.graph.phone_lm import estimate_phone_lm

DENOMINATOR = "den.fst"
NORMALIZATION = "normalization.fst"


@dataclass(frozen=True)
class NumeratorSummary:
    """What `make_numerators` built, and which utterances it left out, each with the reason."""

    num_graphs: int
    num_arcs: int
    excluded: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"{self.num_graphs} numerators, {self.num_arcs} arcs, {len(self.excluded)} utterances excluded"
        ]
        return "\n  ".join([*lines, *self.excluded.values()])


@dataclass(frozen=True)
class PhoneLmSummary:
    """What `make_phone_lm` estimated, and which utterances it left out, each with the reason."""

    fsa: Fsa
    excluded: dict[str, str]

    def __str__(self) -> str:
        lines = [f"phone language model of {self.fsa.num_states} states, {self.fsa.num_arcs} arcs"]
        if self.excluded:
            lines[0] += f", {len(self.excluded)} utterances excluded"
        return "\n  ".join([*lines, *self.excluded.values()])


def make_phone_lm(
    lang: Lang, transcripts: Mapping[str, Sequence[str]], out: Path, config: PhoneLmConfig, seed: int
) -> PhoneLmSummary:
    """Estimate the phone language model on pronunciations of the transcripts; writes an OpenFst file.

    Args:
        lang: lexicon and tree.
        transcripts: words by utterance; those with a word that the lexicon refuses are left out and named, as
            they have no numerator either.
        out: the OpenFst file.
        config: order and size, and where silence stands.
        seed: of the pronunciations and silences.

    Raises:
        DataError: no utterance with words is left.
    """
    excluded = refused(lang, transcripts)
    usable = usable_transcripts(transcripts, excluded, out)
    phones = lm_phones(
        usable,
        lang.lexicon,
        edge_silence=config.edge_silence,
        between_silence=config.between_silence,
        seed=seed,
    )
    phone_lm = estimate_phone_lm(
        phones,
        ngram_order=config.ngram_order,
        num_extra_lm_states=config.num_extra_lm_states,
        no_prune_ngram_order=config.no_prune_ngram_order,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    phone_lm.write(out)
    return PhoneLmSummary(phone_lm, excluded)


def usable_transcripts(
    transcripts: Mapping[str, Sequence[str]], excluded: Mapping[str, str], out: Path
) -> list[Sequence[str]]:
    """The transcripts with words that are not excluded.

    Raises:
        DataError: there are none; the message begins with `out`.
    """
    usable = [words for name, words in transcripts.items() if words and name not in excluded]
    if not usable:
        reason = next(iter(excluded.values()), f"{len(transcripts)} utterances, none with words")
        raise DataError(f"{out}: no transcript for a language model; the first reason: {reason}")
    return usable


def refused(lang: Lang, transcripts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The utterances that have a word which the lexicon refuses, with the reason."""
    found: dict[str, str] = {}
    for name, words in transcripts.items():
        try:
            for word in words:
                lang.lexicon.pronunciations_of(word, name=name)
        except GraphError as error:
            found[name] = str(error)
    return found


def make_denominator(
    lang: Lang, phone_lm: Path, out: Path, merge: Literal["sum", "min"] = "sum"
) -> DenominatorGraph:
    """Build the denominator from a phone language model.

    Writes den.fst, normalization.fst and the tree they were made with, tree.npz, to `out`.

    Raises:
        GraphError: the file holds no phone language model over the phones of `lang`.
    """
    fsa = Fsa.read(phone_lm)
    try:
        denominator = DenominatorGraph(build_denominator(fsa, lang.tree), lang.tree.num_pdfs)
    except GraphError as error:
        raise GraphError(f"{phone_lm}: no phone language model for these phones: {error}") from error
    write_denominator(lang, denominator, out, merge)
    return denominator


def make_free_denominator(lang: Lang, out: Path) -> DenominatorGraph:
    """Write the denominator that accepts every sequence of pdfs, with the files of `make_denominator`."""
    denominator = DenominatorGraph(free_denominator(lang.tree.num_pdfs), lang.tree.num_pdfs)
    write_denominator(lang, denominator, out, "sum")
    return denominator


def write_denominator(
    lang: Lang, denominator: DenominatorGraph, out: Path, merge: Literal["sum", "min"]
) -> None:
    """Write den.fst, normalization.fst and the tree they were made with, tree.npz."""
    out.mkdir(parents=True, exist_ok=True)
    lang.tree.save(out / TREE)
    denominator.fsa.write(out / DENOMINATOR)
    denominator.normalization_fsa(merge).write(out / NORMALIZATION)


def load_denominator(lang: Lang, folder: Path) -> DenominatorGraph:
    """The denominator that `make_denominator` wrote.

    Raises:
        DataError: the folder has none, or it was made with another tree.
    """
    return DenominatorGraph(_read_graph(lang, folder, DENOMINATOR), lang.tree.num_pdfs)


def load_normalization(lang: Lang, folder: Path) -> Fsa:
    """The normalization FSA that `make_denominator` wrote; errors as for `load_denominator`."""
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


@dataclass(frozen=True, eq=False)
class TranscriptMaker:
    """Turns an utterance into the numerator of its transcript."""

    lang: Lang
    normalization: Fsa | None

    def __call__(self, utterance: Utterance) -> Numerator:
        """The numerator; a `GraphError` names the utterance."""
        return build_numerator(
            utterance.words,
            self.lang.lexicon,
            self.lang.tree,
            normalization=self.normalization,
            name=utterance.id,
        )


def build_numerators(
    lang: Lang,
    data: DataDir,
    normalization: Fsa | None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
) -> tuple[dict[str, Numerator], dict[str, str]]:
    """The numerators of all utterances by id, and for those that have none the reason.

    An utterance has none if it is without words, has a word that the lexicon refuses, or says what the
    normalization does not accept. `jobs` processes work, or the executor.
    """
    items = [(utterance.id, utterance) for utterance in data.utterances]
    return collect(TranscriptMaker(lang, normalization), items, "numerators", jobs, executor)


def make_numerators(
    lang: Lang,
    data: DataDir,
    out: Path,
    normalization: Fsa | None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
) -> NumeratorSummary:
    """Build the numerators of a data directory and write them to one npz file.

    Args:
        lang: lexicon and tree.
        data: the utterances; those that `build_numerators` excludes are left out and named.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.
        jobs: processes.
        executor: used in place of processes of our own.

    Raises:
        DataError: no utterance is left.
    """
    return write_numerators(out, *build_numerators(lang, data, normalization, jobs=jobs, executor=executor))


def write_numerators(
    out: Path,
    numerators: Mapping[str, Numerator],
    excluded: dict[str, str],
    source: NumeratorSource = "transcripts",
) -> NumeratorSummary:
    """Write numerators to one npz file.

    Raises:
        DataError: there are none.
    """
    if not numerators:
        reason = next(iter(excluded.values()), "there are no utterances")
        raise DataError(f"{out}: no numerator could be built; the first reason: {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_numerators(out, numerators, source)
    num_arcs = sum(numerator.fsa.num_arcs for numerator in numerators.values())
    return NumeratorSummary(len(numerators), num_arcs, excluded)


def make_grammar(
    transcripts: Iterable[Sequence[str]], vocabulary: Sequence[str], out: Path, order: int
) -> None:
    """Estimate a word n-gram of the transcripts and write it in ARPA format."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(estimate_arpa(list(transcripts), order, vocabulary=vocabulary), encoding="utf-8")
