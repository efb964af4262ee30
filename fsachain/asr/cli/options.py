"""Commands, with kinds of arguments and options. Light: what `--help` needs and no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from fsachain.errors import FsachainError
from fsachain.progress import counter

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
PATH = click.Path(exists=True, path_type=Path)
DATA = PATH  # a Kaldi data directory, a lhotse manifest of cuts, or a folder of Shar shards
OUT = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


class Read(click.Path):
    """A file or folder whose argument or option comes as what `read` makes of it."""

    def __init__(self, read: Callable[[Path], Any], *, folder: bool = False) -> None:
        super().__init__(exists=True, file_okay=not folder, dir_okay=folder)
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.read(Path(str(super().convert(value, param, ctx))))


Item = TypeVar("Item")
Work = TypeVar("Work", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """Options of a command, as the default of a parameter of its function.

    `declare` makes them, by the parameter's name; `default` is what the function gets where Python calls it. `prepare` may
    change the arguments in place before the command works; what it leaves on the stack ends behind the work.
    """

    declare: Callable[[str], list[click.Parameter]]
    default: Any = None
    prepare: Callable[[dict[str, Any], ExitStack], None] | None = None

    def __call__(self, work: Work) -> Work:
        """As a decorator of a command's function: the options go to its keyword arguments."""
        work.__dict__.setdefault("options", []).insert(0, self)
        return work


def option(kind: Any, help: str, *names: str, prepare: Any = None, **settings: Any) -> Any:
    """One option; the name is the parameter's if none is given. Of kind bool it is a switch."""
    settings |= {"is_flag": True} if kind is bool else {"type": kind}

    def declare(parameter: str) -> list[click.Parameter]:
        given = names or (f"--{parameter.replace('_', '-')}",)
        return [click.Option([*given, *({parameter} - {"", *given})], help=help, **settings)]

    return Option(declare, settings.get("default", False if kind is bool else None), prepare)


def together(*options: Option) -> Any:
    """Several options as one decorator, or the first of them as a default, in the order of `--help`."""
    first, *others = options
    return Option(lambda name: [*first.declare(name), *(made for one in others for made in one.declare(""))])


def command(
    group: click.Group | None = None, name: str | None = None, /, **kinds: Any
) -> Callable[[Work], Work]:
    """A command with these arguments, in order: the type of each, or what `click.Argument` takes.

    The names are those of the function; its parameters with an `Option` as their default are options, others are for Python
    alone. What it returns is printed with "-> OUT" behind it. In its help "Out:" and "Example:" begin paragraphs; lines of
    the latter stay whole. The function itself stays one for Python, with the defaults of its options; `as_command` has the
    command.
    """

    def decorate(work: Work) -> Work:
        defaults = {one.name: one.default for one in signature(work).parameters.values()}
        options = {name: one for name, one in defaults.items() if isinstance(one, Option)}
        declared = [*(("", one) for one in getattr(work, "options", ())), *options.items()]
        arguments = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in kinds.items()}

        def run(**given: Any) -> None:
            with ExitStack() as stack:
                for one in options.values():
                    if one.prepare is not None:
                        one.prepare(given, stack)
                try:
                    found = work(**given)
                except FsachainError as error:
                    error.args = (_with_options_named(str(error)), *error.args[1:])
                    raise
                if found is not None:
                    click.echo(f"{found} -> {given['out']}")

        @wraps(work)
        def call(*given: Any, **named: Any) -> Any:
            left = {name: one.default for name, one in options.items()}
            return work(**left | dict(zip(defaults, given, strict=False)) | named)

        parameters: list[click.Parameter] = [click.Argument([name], **how) for name, how in arguments.items()]
        parameters += [made for name, one in declared for made in one.declare(name)]
        text = (work.__doc__ or "").replace("\n    Out:", "\n\n    Out:")
        first = " ".join(text.split("\n\n")[0].split())  # whole in the help of a group
        text = text.replace("\n    Example:", "\n\n    \b\n    Example:")
        made = click.Command(
            name or work.__name__.replace("_", "-"),
            callback=run,
            params=parameters,
            help=text,
            short_help=first,
        )
        if group is not None:
            group.add_command(made)
        call.as_command = made  # type: ignore[attr-defined]
        return cast(Work, call)

    return decorate


def _with_options_named(text: str) -> str:
    """Of an error: arguments of Python become the options of the command that gave them."""
    for one in click.get_current_context().command.params:
        if isinstance(one, click.Option) and one.name:
            text = re.sub(rf"(?<![\w.'-]){one.name} = ", f"{one.opts[0]} ", text)
            if "_" in one.name:
                text = re.sub(rf"(?<![\w.'-]){one.name}\b", one.opts[0], text)
    return text


def many(kind: click.ParamType | type) -> dict[str, Any]:
    """One or more arguments."""
    return {"type": kind, "nargs": -1, "required": True}


seed_option = option(int, "Seed of everything that is drawn.", "--seed", default=1)


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    with counter(what) as update:
        for done, item in enumerate(items, start=1):
            yield item
            update(done, len(items))


@lru_cache
def note(text: str) -> None:
    """A line on the standard error, once."""
    click.echo(text, err=True)


def fresh(path: Path, *names: str) -> Path:
    """The folder without the files of these names that an earlier run left there: what it holds belongs to one run."""
    for name in names:
        (path / name).unlink(missing_ok=True)
    path.mkdir(parents=True, exist_ok=True)
    return path
