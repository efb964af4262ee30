"""Commands that make lexica and language models of text: spelled, of words, smoothed, from ARPA files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsachain.cli.config import PhoneLmConfig
from fsachain.cli.graphs import PhoneLmSummary, refused, usable_transcripts
from fsachain.cli.lang import Lang
from fsachain.cli.options import INPUT_DATA, INPUT_FILE, OUTPUT, config_option, lang_option, seed_option
from fsachain.errors import ConfigError
from fsachain.fsa import Fsa
from fsachain.graph.grammar import estimate_arpa as estimate_arpa_language_models
from fsachain.graph.grammar import ngram_acceptor
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.spelling import phone_model_of_words

if TYPE_CHECKING:
    from fsachain.cli.config import Experiment

units_option = click.option(
    "--units",
    type=click.Choice(["words", "phones"]),
    required=True,
    help="What the n-gram is over. Units of a lexicon without phones (BPE pieces, characters) are its phones.",
)
order_option = click.option(
    "--order", type=click.IntRange(min=1), default=3, show_default=True, help="Longest n-gram."
)


@click.command("spell")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
def spell(text: Path, out: Path) -> None:
    """Make a lexicon of characters, where there is no dictionary.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set.

    Out: OUT, a lexicon for `fsachain lang`: each word of TEXT is spelled by its characters.
    """
    from fsachain.cli.lang import read_transcripts

    lexicon = make_spelling(read_transcripts(text), out)
    click.echo(f"{len(lexicon.words)} words, {len(lexicon.phones)} characters -> {out}")


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
def word_lm(text: Path, out: Path, lang: Path, order: int) -> None:
    """Estimate a word n-gram and spell it out in phones, for a denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set. Only word sequences whose n-grams TEXT has
    are left, so the denominator is smaller and knows more than that of `fsachain phone-lm`.

    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    """
    from fsachain.cli.lang import load_lang, read_transcripts

    click.echo(f"{make_word_lm(load_lang(lang), read_transcripts(text), out, order)} -> {out}")


@click.command("estimate-arpa")
@click.argument("text", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@units_option
@order_option
@config_option
@seed_option
def estimate_arpa(
    text: Path, out: Path, lang: Path, units: str, order: int, experiment: Experiment, seed: int
) -> None:
    """Estimate an n-gram with modified Kneser-Ney smoothing.

    In: TEXT, transcripts in Kaldi's format; section `phone_lm` of the configuration says where silence stands among phones.

    Out: OUT, an ARPA file: of words for `fsachain decode --arpa`, of either for `fsachain arpa-lm`.
    """
    from fsachain.cli.lang import load_lang, read_transcripts

    excluded = make_arpa(
        load_lang(lang),
        read_transcripts(text),
        out,
        order=order,
        units=units,
        config=experiment.phone_lm,
        seed=seed,
    )
    click.echo(
        "\n  ".join(
            [f"{order}-gram of {units}, {len(excluded)} utterances excluded -> {out}", *excluded.values()]
        )
    )


@click.command("arpa-lm")
@click.argument("arpa", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@units_option
def arpa_lm(arpa: Path, out: Path, lang: Path, units: str) -> None:
    """Turn an ARPA file into a language model for a denominator.

    In: ARPA, an n-gram over words or phones, such as lmplz, SRILM or `fsachain estimate-arpa` make. Each history gets an arc
    for each unit, with the one probability that the model gives it: meant for phones and small vocabularies.

    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    """
    from fsachain.cli.lang import load_lang

    fsa = make_arpa_lm(load_lang(lang), arpa, out, units)
    click.echo(f"phone language model of {fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


LANGUAGE_MODEL_COMMANDS = (spell, word_lm, estimate_arpa, arpa_lm)


# Lexica of characters, and language models beside `make_phone_lm`: of words, smoothed, and in ARPA format.

UNITS = ("words", "phones")


def make_spelling(transcripts: Mapping[str, Sequence[str]], out: Path) -> Lexicon:
    """Write a lexicon in which each word of the transcripts is its characters; returns it, without silence.

    Args:
        transcripts: words by utterance.
        out: the file, in the form of Kaldi's lexiconp.txt if its name says so, else of lexicon.txt.

    Raises:
        DataError: no words.
    """
    lexicon = Lexicon.characters(usable_transcripts(transcripts, {}, out), silence=None)
    prob = ["1.0"] if "lexiconp" in out.name else []
    lines = [" ".join([word, *prob, *word]) + "\n" for word in lexicon.words]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines), encoding="utf-8")
    return lexicon


def make_word_lm(
    lang: Lang, transcripts: Mapping[str, Sequence[str]], out: Path, order: int
) -> PhoneLmSummary:
    """Estimate an unsmoothed word n-gram, spell it out in phones, and write it as `make_phone_lm` does.

    Args:
        lang: lexicon and tree. The probabilities of a word's pronunciations are scaled to sum to one.
        transcripts: words by utterance; those with a word that the lexicon refuses are left out and named.
        out: an OpenFst file, for `make_denominator`.
        order: words in an n-gram, the predicted one included; at least 2. All word pairs seen are kept, and all n-grams.

    Raises:
        DataError: no utterance with words is left.
    """
    excluded = refused(lang, transcripts)
    usable = usable_transcripts(transcripts, excluded, out)
    ids = [[lang.lexicon.word_id(word) for word in words] for words in usable]
    model = estimate_phone_lm(ids, ngram_order=order, num_extra_lm_states=0, no_prune_ngram_order=order)
    return PhoneLmSummary(_write(phone_model_of_words(model, _summing_to_one(lang.lexicon)), out), excluded)


def make_arpa_lm(lang: Lang, arpa: Path, out: Path, units: str) -> Fsa:
    """Turn an ARPA file over words or phones into an acceptor over phones without epsilon arcs, and write it.

    Args:
        lang: lexicon and tree; names that it lacks are left out of the n-gram, and their probability is lost.
        arpa: the n-gram.
        out: an OpenFst file, for `make_denominator`.
        units: "words" or "phones": what the n-gram is over.

    Raises:
        ConfigError: other units.
        GraphError: no ARPA file, or more arcs than `ngram_acceptor` makes.
    """
    _check_units(units)
    if units == "phones":
        return _write(ngram_acceptor(arpa, lang.lexicon.phones), out)
    words = ngram_acceptor(arpa, lang.lexicon.words)
    return _write(phone_model_of_words(words, _summing_to_one(lang.lexicon)), out)


def make_arpa(
    lang: Lang,
    transcripts: Mapping[str, Sequence[str]],
    out: Path,
    *,
    order: int,
    units: str,
    config: PhoneLmConfig,
    seed: int,
) -> dict[str, str]:
    """Estimate an n-gram with modified Kneser-Ney smoothing and write it in ARPA format.

    Args:
        lang: lexicon and tree; each of its words, or phones, gets a probability.
        transcripts: words by utterance; those with a word that the lexicon refuses are left out.
        out: the ARPA file.
        order: longest n-gram.
        units: "words", or "phones" of drawn pronunciations.
        config: where silence stands among phones.
        seed: of the pronunciations and silences.

    Returns:
        Why utterances were left out.

    Raises:
        ConfigError: other units, or an order below 1.
        DataError: no utterance with words is left.
    """
    _check_units(units)
    excluded = refused(lang, transcripts)
    usable = usable_transcripts(transcripts, excluded, out)
    vocabulary: Sequence[str] = lang.spoken_words
    if units == "phones":
        vocabulary = tuple(lang.lexicon.phones)
        drawn = lm_phones(
            usable,
            lang.lexicon,
            edge_silence=config.edge_silence,
            between_silence=config.between_silence,
            seed=seed,
        )
        usable = [[vocabulary[phone - 1] for phone in phones] for phones in drawn]
    text = estimate_arpa_language_models(usable, order, vocabulary=vocabulary)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return excluded


def _check_units(units: str) -> None:
    if units not in UNITS:
        raise ConfigError(f"units = {units!r}: expected one of {', '.join(UNITS)}")


def _write(fsa: Fsa, out: Path) -> Fsa:
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
