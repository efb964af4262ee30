"""The command `fsachain rescore`: a second language model over what the search found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
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
@click.argument("second", metavar="ARPA", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--dev", type=INPUT_DATA, required=True, help="Data directory on which the weights are chosen.")
@click.option("--arpa", type=INPUT_FILE, help="Word language model of the search, as for `fsachain decode`.")
@click.option(
    "--lm-weight",
    type=float,
    default=1.0,
    show_default=True,
    help="Of the search, as `fsachain decode` prints it.",
)
@click.option(
    "--word-insertion-penalty", type=float, default=0.0, show_default=True, help="Of the search, likewise."
)
@cache_option
@workers_option
@bad_data_option
@commands_option
def rescore(model: Path, data: Path, second: Path, out: Path, **arguments: Any) -> None:
    """Let a larger language model choose among the best word sequences.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory; ARPA, the larger model, which the search does
    not need to hold. Section `rescoring` of the model's configuration says how many sequences, and what is tried.

    Out: folder OUT with hyp.txt, wer.txt, wer.json, tuning.txt and tuning.json.
    """
    from fsachain.cli.steps.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.steps.decoding import DecodingGraphs
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.cli.steps.rescoring import rescore_data

    acoustic = AcousticModel.load(model)
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        report = rescore_data(
            acoustic,
            DecodingGraphs(load_lang(arguments["lang"]), arguments["arpa"]),
            second,
            bad_data.read(arguments["dev"]),
            bad_data.read(data),
            out,
            arguments["lm_weight"],
            arguments["word_insertion_penalty"],
            acoustic.experiment.rescoring,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{report.total} -> {out}")
