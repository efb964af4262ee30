"""Commands, with kinds of arguments and options. Light: what `--help` needs and no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from fsachain.asr.cli.advice import advice
from fsachain.errors import ConfigError, FsachainError, without_python
from fsachain.progress import counter


class AdvisedPath(click.Path):
    """A path whose error says what is there instead, such as a folder of Kaldi."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            told = error.message.rstrip(".") + (advice(Path(str(value))) or ".")
            raise click.BadParameter(told, ctx=error.ctx, param=error.param) from error


FILE = AdvisedPath(exists=True, dir_okay=False, path_type=Path)
FOLDER = AdvisedPath(exists=True, file_okay=False, path_type=Path)
PATH = click.Path(exists=True, path_type=Path)
DATA = PATH  # a Kaldi data directory, a lhotse manifest of cuts, or a folder of Shar shards
OUT = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


class Read(AdvisedPath):
    """A file or folder whose argument or option comes as what `read` makes of it.

    A `folder` is expected if that is True, a file if False, either if None.
    """

    def __init__(self, read: Callable[[Path], Any], *, folder: bool | None = False) -> None:
        super().__init__(exists=True, file_okay=folder is not True, dir_okay=folder is not False)
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
                try:
                    for one in options.values():
                        if one.prepare is not None:
                            one.prepare(given, stack)
                    found = work(**given)
                except FsachainError as error:
                    told = _with_options_named(str(error))
                    if isinstance(error, ConfigError):
                        told = located(told)
                    error.args = (told, *error.args[1:])
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


# In a context: a function that says where a configuration has the option that a message begins with.
LOCATE = f"{__name__}.locate"


def located(told: str) -> str:
    """The message of an error about an option of the configuration, with the file and line that have it."""
    locate: Callable[[str], str] | None = click.get_current_context().meta.get(LOCATE)
    return told if locate is None else locate(told)


class SuggestingGroup(click.Group):
    """A group that names the nearest commands when one does not exist, whatever version of click is there."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name.lower().replace("_", "-"), self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _with_options_named(text: str) -> str:
    """Of an error: arguments of Python become the options of the command that gave them."""
    text = without_python(text)
    for one in click.get_current_context().command.params:
        if isinstance(one, click.Option) and one.name:
            text = re.sub(rf"(?<![\w.'-]){one.name} = ", f"{one.opts[0]} ", text)
            text = re.sub(rf"(?<![\w.'-]){one.name}=(?:True\b)?(?![^\s(),;:])", one.opts[0], text)
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
