"""Every option of a configuration, from the docstrings of its dataclasses: `fsachain config`, docs/configuration.md."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from fsachain.cli.config import BUILT_IN, DERIVED, Experiment, NetworkSpec, read_experiment
from fsachain.cli.options import FILE, command, option
from fsachain.errors import require
from fsachain.train.config import flat, to_dict

# The networks of the package: what they need beside these options follows from features and tree.
NETWORKS: dict[str, Any] = {kind: NetworkSpec(kind, {}, 1, 1).config for kind in BUILT_IN}
SECTIONS = tuple(field.name for field in dataclasses.fields(Experiment))
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*)(?: \((?P<unit>[^)]+)\))?: (?P<meaning>.*)", re.DOTALL)
_WIDTH = 120
_HEAD = """\
# Configuration

The options of the YAML file that commands take as `--config`, each with its default, its unit in parentheses, and its
meaning. An option that is left out keeps its default. `--set SECTION.OPTION=VALUE` changes one for one command.
`fsachain config` prints this page, `fsachain config --section train` a part of it, `fsachain config --defaults` a file
of all defaults to begin with, and `fsachain config --diff FILE` what a file changes.
"""
_NETWORK = """\
- `network.kind` = `tdnnf`: "tdnnf", "conformer", or package.module:Class, a class of yours (docs/networks.md).
- `network.init_from` = `null`: file of weights that a training begins with.
"""


class Option(NamedTuple):
    """`name` is SECTION.OPTION; `unit` is empty for text and switches."""

    name: str
    default: Any
    unit: str
    meaning: str

    def __str__(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        text = f"- `{self.name}` = `{_yaml(self.default)}`{unit}: {self.meaning}"
        return "\n".join(
            textwrap.wrap(
                text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        )


def options_of(section: Any, place: str) -> Iterator[Option]:
    """The options of a dataclass with its defaults; those of dataclasses within it follow theirs."""
    described = _described(type(section))
    values = to_dict(section)
    for field in dataclasses.fields(section):
        inner, name = getattr(section, field.name), f"{place}.{field.name}"
        if dataclasses.is_dataclass(inner) and isinstance(values[field.name], dict):
            yield from options_of(inner, name)
        elif field.name not in DERIVED:
            yield Option(name, values[field.name], *described[field.name])


def _described(kind: type) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each attribute, from the docstring."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    found = {}
    for entry in re.split(r"\n(?=    \S)", listed.rstrip()):
        match = _ENTRY.match(" ".join(entry.split()))
        if match is None:
            continue
        for name in match["names"].split(", "):
            found[name] = (match["unit"] or "", re.sub(r"\bNone\b", "null", match["meaning"]))
    return found


def section_text(name: str) -> str:
    """A section of the page."""
    if name == "network":
        parts = ["## network\n\n" + _NETWORK]
        for kind, config in NETWORKS.items():
            lines = [str(option) for option in options_of(config, name)]
            parts.append("\n".join([f"### network, kind: {kind}\n", *lines, ""]))
        return "\n".join(parts)
    section = getattr(Experiment(), name)
    about = (inspect.getdoc(type(section)) or "").partition("\nAttributes:\n")[0].strip()
    lines = [str(option) for option in options_of(section, name)]
    return "\n".join([f"## {name}\n", about, "", *lines, ""])


def page() -> str:
    """The text of docs/configuration.md."""
    return "\n".join([_HEAD, *map(section_text, SECTIONS)])


def defaults() -> str:
    """A YAML file with every option at its default."""
    sections = Experiment().to_dict()
    sections["network"] = _network("tdnnf", {})
    return "".join(_dump({name: options}) for name, options in sections.items())


def differences(experiment: Experiment) -> Iterator[str]:
    """A line for each option that differs from its default."""
    kind = experiment.network.get("kind", "tdnnf")
    before = {**Experiment().to_dict(), "network": _network("tdnnf", {})}
    after = {**experiment.to_dict(), "network": _network(kind, experiment.network)}
    if kind != "tdnnf":
        before["network"] = {**_network(kind, {}), "kind": "tdnnf"}
    known = dict(flat(before))
    for name, value in flat(after):
        if name not in known:
            yield f"{name}: {_yaml(value)}"
        elif value != known[name]:
            yield f"{name}: {_yaml(value)} (default {_yaml(known[name])})"


def _network(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    plain = to_dict(NETWORKS[kind]) if kind in NETWORKS else {}
    for name in DERIVED:
        plain.pop(name, None)
    return {"kind": kind, "init_from": None, **plain, **options}


def _dump(value: Any, **how: Any) -> str:
    yaml = require("yaml", extra="recipes")
    return str(yaml.safe_dump(value, sort_keys=False, width=_WIDTH, **how))


def _yaml(value: Any) -> str:
    return _dump(value, default_flow_style=True).removesuffix("...\n").strip()


@command()
def config(
    sections: tuple[str, ...] = option(
        click.Choice(SECTIONS), "Only this section.", "--section", multiple=True
    ),
    as_file: bool = option(bool, "A YAML file of all defaults, to begin with.", "--defaults"),
    file: Path | None = option(FILE, "Only what this configuration changes.", "--diff"),
) -> None:
    """Explain every option of a configuration.

    In: with --diff a YAML file as other commands take it with --config.
    Out: default, unit and meaning of each option, printed; the text of docs/configuration.md.
    Example: fsachain config --section train
    """
    if sum([bool(sections), as_file, file is not None]) > 1:
        raise click.UsageError("--section, --defaults and --diff: expected one of them")
    if file is not None:
        click.echo("\n".join(differences(read_experiment(file))) or f"{file}: every option has its default")
    elif as_file:
        click.echo(defaults(), nl=False)
    else:
        click.echo("\n".join(map(section_text, sections)) if sections else page(), nl=False)
