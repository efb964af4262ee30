"""Options that `fsachain run` chooses for the data, and `fsachain config --for` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from fsachain.asr.cli.config import (
    SECTIONS,
    Experiment,
    defaults_text,
    differences,
    dump,
    merged,
    page_text,
    plain_options,
    read_experiment,
)
from fsachain.asr.cli.options import DATA, FILE, command, option
from fsachain.asr.cli.resources import Resources
from fsachain.asr.pipeline.defaults import Choice, choose, describe_data
from fsachain.asr.train.config import flat
from fsachain.graph.lexicon import Lexicon


@dataclass(frozen=True)
class Chosen:
    """Which options were chosen for the data, and which were given, by their place; `data` says what the data is."""

    choices: tuple[Choice, ...]
    given: Mapping[str, Any]
    data: str

    @property
    def lines(self) -> list[str]:
        """For people, as the head of config.yaml."""
        told = ", ".join(f"{name}={json.dumps(value)}" for name, value in self.given.items())
        return [
            f"Data: {self.data}",
            f"Given: {told or 'nothing'}",
            "Chosen for the data, each with its reason; all other options have their defaults:",
            *(f"  {choice}" for choice in self.choices),
        ]

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        chosen = {one.option: [one.value, one.reason] for one in self.choices}
        return {"data": self.data, "given": dict(self.given), "chosen": chosen}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Chosen:
        choices = [Choice(option, *pair) for option, pair in kept["chosen"].items()]
        return cls(tuple(choices), kept["given"], kept["data"])

    def changed(self, settings: Mapping[str, Any]) -> Chosen:
        """With options that are given now."""
        left = tuple(one for one in self.choices if one.option not in settings)
        return Chosen(left, {**self.given, **settings}, self.data)

    def without(self, section: str, experiment: Experiment) -> tuple[Experiment, Chosen]:
        """The configuration and the choices without those whose place begins with `section`: these have their defaults."""
        gone = {one.option for one in self.choices if one.option.startswith(section)}
        plain = dict(flat(plain_options(Experiment())))
        left = replace(self, choices=tuple(one for one in self.choices if one.option not in gone))
        defaults = Chosen(tuple(Choice(option, plain[option], "") for option in gone), {}, "")
        return Experiment.from_dict(merged(experiment.to_dict(), defaults.sections())), left

    def sections(self) -> dict[str, Any]:
        """The choices as sections of a configuration."""
        found: dict[str, Any] = {}
        for one in self.choices:
            *tables, name = one.option.split(".")
            table = found
            for inner in tables:
                table = table.setdefault(inner, {})
            table[name] = one.value
        return found


def choose_options(
    experiment: Experiment, given: Mapping[str, Any], inputs: Mapping[str, Path], resources: Resources
) -> Chosen:
    """Choose the options that are not `given`; `experiment` has those that are.

    `inputs` are the training set "train", other data sets by any name, and, if there are, "lexicon" and "arpa".
    """
    sets = {
        name: resources.read(path).utterances
        for name, path in inputs.items()
        if name not in ("lexicon", "patterns", "arpa", "rescore")
    }
    train = sets.pop("train")
    config = experiment.lang
    if "lexicon" in inputs:
        lexicon = Lexicon.read(
            inputs["lexicon"], silence=config.silence, silence_prob=config.silence_prob, oov=config.oov
        )
    else:
        lexicon = Lexicon.characters([one.words for one in train if one.words], silence=config.silence)
    summary = describe_data(train, list(sets.values()), lexicon, experiment.features, experiment.train.seed)
    choices = choose(summary, given, dict(flat(plain_options(experiment))), has_arpa="arpa" in inputs)
    return Chosen(tuple(choices), given, str(summary))


@command()
@option(DATA, "Print the options that `fsachain run` chooses for this training set.", "--for", "train")
def config(
    train: Path | None = None,
    lexicon: Path | None = option(FILE, "With --for: words and their phones; without it words are spelled."),
    others: tuple[Path, ...] = option(
        DATA, "With --for: development or test set, whose speakers count.", "--with", multiple=True
    ),
    sections: tuple[str, ...] = option(
        click.Choice(SECTIONS), "Only this section.", "--section", multiple=True
    ),
    as_file: bool = option(bool, "A YAML file of all defaults, to begin with.", "--defaults"),
    file: Path | None = option(FILE, "Only what this configuration changes.", "--diff"),
) -> None:
    """Explain every option of a configuration, or choose them for data.

    In: with --for a data set, as `fsachain train` takes it; with --diff a YAML file as other commands take it with --config.
    Out: default, unit and meaning of each option, printed; the text of docs/configuration.md. With --for a YAML file for
    --config, with the reason of each choice.
    Example: fsachain config --for train --lexicon lexicon.txt > config.yaml
    """
    if sum([bool(sections), as_file, file is not None, train is not None]) > 1:
        raise click.UsageError("--section, --defaults, --diff and --for: expected one of them")
    if train is None and (lexicon is not None or others):
        raise click.UsageError("--lexicon and --with go with --for")
    if train is not None:
        sets = {f"set {number}": path for number, path in enumerate(others)}
        inputs = {"train": train, **sets, **({} if lexicon is None else {"lexicon": lexicon})}
        chosen = choose_options(Experiment(), {}, inputs, Resources())
        head = "".join(f"# {line}\n" for line in chosen.lines)
        click.echo(head + dump(chosen.sections(), default_flow_style=None), nl=False)
    elif file is not None:
        click.echo("\n".join(differences(read_experiment(file))) or f"{file}: every option has its default")
    elif as_file:
        click.echo(defaults_text(), nl=False)
    else:
        click.echo(page_text(sections), nl=False)
