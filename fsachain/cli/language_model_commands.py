"""Commands that make lexica and language models of text: spelled, of words, smoothed, from ARPA files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsachain.cli.options import INPUT_DATA, INPUT_FILE, OUTPUT, config_option, lang_option, seed_option

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
    from fsachain.cli.steps.language_models import make_spelling
    from fsachain.cli.steps.transcripts import read_transcripts

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
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.language_models import make_word_lm
    from fsachain.cli.steps.transcripts import read_transcripts

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
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.language_models import make_arpa
    from fsachain.cli.steps.transcripts import read_transcripts

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
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.language_models import make_arpa_lm

    fsa = make_arpa_lm(load_lang(lang), arpa, out, units)
    click.echo(f"phone language model of {fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


LANGUAGE_MODEL_COMMANDS = (spell, word_lm, estimate_arpa, arpa_lm)
