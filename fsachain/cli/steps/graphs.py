"""Graphs of an experiment, as files: phone language model, denominator, numerators, word grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.config import PhoneLmConfig
from fsachain.cli.progress import track
from fsachain.cli.steps.lang import Lang
from fsachain.data.kaldi_dir import DataDir
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.denominator import build_denominator
from fsachain.graph.grammar import estimate_arpa
from fsachain.graph.lm_phones import lm_phones
from fsachain.graph.numerator import Numerator, build_numerator
from fsachain.graph.numerator_files import save_numerators
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


def make_phone_lm(
    lang: Lang, transcripts: Iterable[Sequence[str]], out: Path, config: PhoneLmConfig, seed: int
) -> Fsa:
    """Estimate the phone language model on pronunciations of the transcripts; writes an OpenFst file."""
    phones = lm_phones(
        list(transcripts),
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
    return phone_lm


def make_denominator(lang: Lang, phone_lm: Path, out: Path) -> DenominatorGraph:
    """Build the denominator from a phone language model; writes den.fst and normalization.fst to `out`."""
    denominator = DenominatorGraph(build_denominator(Fsa.read(phone_lm), lang.tree), lang.tree.num_pdfs)
    out.mkdir(parents=True, exist_ok=True)
    denominator.fsa.write(out / DENOMINATOR)
    denominator.normalization_fsa().write(out / NORMALIZATION)
    return denominator


def load_denominator(lang: Lang, folder: Path) -> DenominatorGraph:
    """The denominator that `make_denominator` wrote.

    Raises:
        DataError: the folder has none.
    """
    if not (folder / DENOMINATOR).is_file():
        raise DataError(f"{folder}: no {DENOMINATOR}; make it with `fsachain den-graph`")
    return DenominatorGraph(Fsa.read(folder / DENOMINATOR), lang.tree.num_pdfs)


def build_numerators(
    lang: Lang, data: DataDir, normalization: Fsa | None
) -> tuple[dict[str, Numerator], dict[str, str]]:
    """The numerators of all utterances by id, and for those that have none the reason.

    An utterance has none if it is without words, has a word that the lexicon refuses, or says what the
    normalization does not accept.
    """
    numerators: dict[str, Numerator] = {}
    excluded: dict[str, str] = {}
    for utterance in track(data.utterances, "numerators"):
        try:
            numerators[utterance.id] = build_numerator(
                utterance.words, lang.lexicon, lang.tree, normalization=normalization, name=utterance.id
            )
        except GraphError as error:
            excluded[utterance.id] = str(error)
    return numerators, excluded


def make_numerators(lang: Lang, data: DataDir, out: Path, normalization: Fsa | None) -> NumeratorSummary:
    """Build the numerators of a data directory and write them to one npz file.

    Args:
        lang: lexicon and tree.
        data: the utterances; those that `build_numerators` excludes are left out and named.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.

    Raises:
        DataError: no utterance is left.
    """
    numerators, excluded = build_numerators(lang, data, normalization)
    if not numerators:
        reason = next(iter(excluded.values()), "there are no utterances")
        raise DataError(f"{out}: no numerator could be built; the first reason: {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_numerators(out, numerators)
    num_arcs = sum(numerator.fsa.num_arcs for numerator in numerators.values())
    return NumeratorSummary(len(numerators), num_arcs, excluded)


def make_grammar(
    transcripts: Iterable[Sequence[str]], vocabulary: Sequence[str], out: Path, order: int
) -> None:
    """Estimate a word n-gram of the transcripts and write it in ARPA format."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(estimate_arpa(list(transcripts), order, vocabulary=vocabulary), encoding="utf-8")
