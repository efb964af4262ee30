"""The command `fsachain keyword`: how well a model finds a keyword."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    lang_option,
    workers_option,
)


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("words")
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; weighs both graphs by it."
)
@click.option(
    "--false-alarms-per-hour",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="At most so many, in the utterances without the keyword.",
)
@click.option(
    "--phones-per-loop",
    type=click.FloatRange(min=1, min_open=True),
    default=10.0,
    show_default=True,
    help="Phones that anything else has on average.",
)
@cache_option
@workers_option
@bad_data_option
@commands_option
def keyword(model: Path, data: Path, words: str, out: Path, lang: Path, **arguments: Any) -> None:
    """Look for a keyword, and count misses at a given rate of false alarms.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory with and without the keyword, whose transcripts tell;
    WORDS, the keyword, in quotes if it has several words.

    Out: the false-reject rate, printed; folder OUT with scores.txt (utterance, score per frame, 1 with the keyword or 0).
    """
    from fsachain.cli.steps.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.steps.graphs import load_normalization
    from fsachain.cli.steps.keyword import spot_keyword
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel

    language = load_lang(lang)
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        summary = spot_keyword(
            AcousticModel.load(model),
            language,
            bad_data.read(data),
            words.split(),
            out,
            false_alarms_per_hour=arguments["false_alarms_per_hour"],
            phones_per_loop=arguments["phones_per_loop"],
            normalization=load_normalization(language, arguments["den"]) if arguments["den"] else None,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")
