"""Lexica and language models of text: spell, phone-lm, word-lm, estimate-arpa, arpa-lm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fsachain.cli.config import Experiment, PhoneLmConfig, config_option
from fsachain.cli.lang import Lang, lang_option, read_transcripts
from fsachain.cli.options import INPUT_DATA, INPUT_FILE, OUTPUT, reasons, seed_option
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.graph.grammar import estimate_arpa as estimate
from fsachain.graph.grammar import ngram_acceptor
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.patterns import phone_model_of_words
from fsachain.graph.phone_lm import estimate_phone_lm

units_option = click.option(
    "--units",
    type=click.Choice(["words", "phones"]),
    required=True,
    help="What the n-gram is over. Units of a lexicon without phones (BPE pieces, characters) are its phones.",
)


@click.command()
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
def spell(text: Path, out: Path) -> None:
    """Make a lexicon of characters, where there is no dictionary.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set.

    Out: OUT, a lexicon for `fsachain lang`: each word of TEXT is spelled by its characters.
    """
    lexicon = Lexicon.characters(usable_transcripts(read_transcripts(text), {}, out), silence=None)
    prob = ["1.0"] if "lexiconp" in out.name else []
    write(out, "".join(" ".join([word, *prob, *word]) + "\n" for word in lexicon.words))
    click.echo(f"{len(lexicon.words)} words, {len(lexicon.phones)} characters -> {out}")


@click.command("phone-lm")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@config_option
@seed_option
def phone_lm(text: Path, out: Path, lang: Lang, experiment: Experiment, seed: int) -> None:
    """Estimate the phone language model of the denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set; section `phone_lm` of the configuration.
    Utterances with unknown words are named and left out.

    Out: OUT, an OpenFst acceptor over phone ids.
    """
    click.echo(f"{make_phone_lm(lang, read_transcripts(text), out, experiment.phone_lm, seed)} -> {out}")


@dataclass(frozen=True)
class PhoneLmSummary:
    fsa: Fsa
    excluded: dict[str, str]

    def __str__(self) -> str:
        head = f"phone language model of {self.fsa.num_states} states, {self.fsa.num_arcs} arcs"
        if self.excluded:
            head += f", {len(self.excluded)} utterances excluded"
        return reasons(head, [*self.excluded.values()])


def make_phone_lm(
    lang: Lang, transcripts: Mapping[str, Sequence[str]], out: Path, config: PhoneLmConfig, seed: int
) -> PhoneLmSummary:
    """Estimate the phone language model on pronunciations of the transcripts; writes an OpenFst file.

    Transcripts with a word that the lexicon refuses are left out and named, as they have no numerator either. `seed` is that
    of the pronunciations and silences.
    """
    excluded = refused(lang, transcripts)
    phones = _drawn_phones(lang, usable_transcripts(transcripts, excluded, out), config, seed)
    fsa = estimate_phone_lm(
        phones,
        ngram_order=config.ngram_order,
        num_extra_lm_states=config.num_extra_lm_states,
        no_prune_ngram_order=config.no_prune_ngram_order,
    )
    return PhoneLmSummary(write_fsa(out, fsa), excluded)


def _drawn_phones(
    lang: Lang, transcripts: Iterable[Sequence[str]], config: PhoneLmConfig, seed: int
) -> list[list[int]]:
    return lm_phones(
        transcripts,
        lang.lexicon,
        edge_silence=config.edge_silence,
        between_silence=config.between_silence,
        seed=seed,
    )


@click.command("word-lm")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--order",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="Words in an n-gram; none is pruned.",
)
def word_lm(text: Path, out: Path, lang: Lang, order: int) -> None:
    """Estimate a word n-gram and spell it out in phones, for a denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set. Only word sequences whose n-grams TEXT has
    are left, so the denominator is smaller and knows more than that of `fsachain phone-lm`.

    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    """
    transcripts = read_transcripts(text)
    excluded = refused(lang, transcripts)
    usable = usable_transcripts(transcripts, excluded, out)
    ids = [[lang.lexicon.word_id(word) for word in words] for words in usable]
    model = estimate_phone_lm(ids, ngram_order=order, num_extra_lm_states=0, no_prune_ngram_order=order)
    fsa = phone_model_of_words(model, _summing_to_one(lang.lexicon))
    click.echo(f"{PhoneLmSummary(write_fsa(out, fsa), excluded)} -> {out}")


@click.command("estimate-arpa")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@units_option
@click.option("--order", type=click.IntRange(min=1), default=3, show_default=True, help="Longest n-gram.")
@config_option
@seed_option
def estimate_arpa(
    text: Path, out: Path, lang: Lang, units: str, order: int, experiment: Experiment, seed: int
) -> None:
    """Estimate an n-gram with modified Kneser-Ney smoothing.

    In: TEXT, transcripts in Kaldi's format; section `phone_lm` of the configuration says where silence stands among phones.

    Out: OUT, an ARPA file: of words for `fsachain decode --arpa`, of either for `fsachain arpa-lm`.
    """
    transcripts = read_transcripts(text)
    excluded = refused(lang, transcripts)
    usable = usable_transcripts(transcripts, excluded, out)
    vocabulary: Sequence[str] = lang.spoken_words
    if units == "phones":
        vocabulary = tuple(lang.lexicon.phones)
        drawn = _drawn_phones(lang, usable, experiment.phone_lm, seed)
        usable = [[vocabulary[phone - 1] for phone in phones] for phones in drawn]
    write(out, estimate(usable, order, vocabulary=vocabulary))
    head = f"{order}-gram of {units}, {len(excluded)} utterances excluded -> {out}"
    click.echo(reasons(head, [*excluded.values()]))


@click.command("arpa-lm")
@click.argument("arpa", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@units_option
def arpa_lm(arpa: Path, out: Path, lang: Lang, units: str) -> None:
    """Turn an ARPA file into a language model for a denominator.

    In: ARPA, an n-gram over words or phones, such as lmplz, SRILM or `fsachain estimate-arpa` make. Each history gets an arc
    for each unit, with the one probability that the model gives it: meant for phones and small vocabularies.

    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    """
    if units == "phones":
        fsa = ngram_acceptor(arpa, lang.lexicon.phones)
    else:
        words = ngram_acceptor(arpa, lang.lexicon.words)
        fsa = phone_model_of_words(words, _summing_to_one(lang.lexicon))
    click.echo(f"{PhoneLmSummary(write_fsa(out, fsa), {})} -> {out}")


def make_grammar(
    transcripts: Iterable[Sequence[str]], vocabulary: Sequence[str], out: Path, order: int
) -> None:
    write(out, estimate(list(transcripts), order, vocabulary=vocabulary))


def refused(lang: Lang, transcripts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found = {name: lang.refusal(words, name) for name, words in transcripts.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def usable_transcripts(
    transcripts: Mapping[str, Sequence[str]], excluded: Mapping[str, str], out: Path
) -> list[Sequence[str]]:
    """The transcripts with words, without those in `excluded`."""
    usable = [words for name, words in transcripts.items() if words and name not in excluded]
    if not usable:
        reason = next(iter(excluded.values()), f"{len(transcripts)} utterances, none with words")
        raise DataError(f"{out}: no transcript for a language model; the first reason: {reason}")
    return usable


def write(out: Path, text: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


def write_fsa(out: Path, fsa: Fsa) -> Fsa:
    out.parent.mkdir(parents=True, exist_ok=True)
    fsa.write(out)
    return fsa


def _summing_to_one(lexicon: Lexicon) -> Lexicon:
    """The lexicon with the pronunciations of each word as a distribution; Kaldi's lexiconp.txt scales the best to one."""
    scaled = []
    for ways in lexicon.pronunciations:
        total = sum(way.prob for way in ways)
        scaled.append(tuple(way._replace(prob=way.prob / total) for way in ways))
    return replace(lexicon, pronunciations=tuple(scaled))
