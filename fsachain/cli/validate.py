"""The command `validate`: what is wrong with a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FOLDER,
    INPUT_PATH,
    OUTPUT,
    cache_option,
    commands_option,
    config_option,
    workers_option,
)


@click.command()
@click.argument("data", type=INPUT_DATA)
@click.option(
    "--lang", type=INPUT_FOLDER, help="Folder made by `fsachain lang`: words and lengths are checked too."
)
@click.option(
    "--numerators",
    type=INPUT_PATH,
    help="File or shards made for DATA: checksums and transcripts are compared.",
)
@click.option("--out", type=OUTPUT, help="File for all faults, one JSON object per line.")
@click.option(
    "--policy",
    type=click.Choice(["stop", "exclude"]),
    default="stop",
    show_default=True,
    help="stop: status 1 if there is any fault. exclude: only if nothing is left to train on.",
)
@config_option
@cache_option
@workers_option
@commands_option
def validate(data: Path, lang: Path | None, out: Path | None, policy: str, **arguments: Any) -> None:
    """List what is wrong with a data directory, before a training meets it.

    In: DATA, a Kaldi data directory; the sections features and network of the configuration. Tables, recordings and
    features are read as a training reads them: unreadable or empty audio, another sampling rate, missing files,
    duplicate ids, empty text, numbers that are not finite; with --lang unknown words and utterances too short for
    their words; with --numerators shards that are damaged, and utterances without numerator.

    Out: one table by kind of fault, printed; with --out all faults as a file. `fsachain train` prints the same
    table; its option `train: {bad_data: stop}` ends it there.
    """
    from fsachain.cli.lang import load_lang
    from fsachain.cli.training_data import validate_data
    from fsachain.data.utterance import write_faults
    from fsachain.errors import DataError

    found = validate_data(
        data,
        arguments["experiment"],
        None if lang is None else load_lang(lang),
        allow_commands=arguments["allow_commands"],
        numerators=arguments["numerators"],
        cache=arguments["cache"],
        num_workers=arguments["workers"],
    )
    click.echo(str(found))
    if out is not None:
        write_faults(out, found.faults)
    if not found.num_utterances or (found.faults and policy == "stop"):
        raise DataError(
            f"{data}: {len(found.faults)} faults, {found.num_utterances} utterances can be trained on"
        )
