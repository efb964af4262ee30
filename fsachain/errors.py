"""Every error that fsachain raises on purpose, the import of optional packages, and what `repr` shows of objects.

Each class also derives from the builtin that a caller would expect, so that `except ValueError` keeps working.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import operator
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

_warned_under: dict[str, object] = {}  # the filters of the first warning of each kind


class FsachainError(Exception):
    """Base of all errors raised on purpose; its message is one line that a user can act on."""


class GraphError(FsachainError, ValueError):
    """A graph, lexicon, tree or language model is malformed."""


class ShapeError(FsachainError, ValueError):
    """An array has the wrong shape, dtype or length."""


class DataError(FsachainError, ValueError):
    """A corpus file, recording or transcript cannot be used."""


class AlignmentError(DataError, RuntimeError):
    """Utterances have no alignment with their transcripts; `utterances` are their numbers in the batch."""

    def __init__(self, message: str, utterances: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.utterances = list(utterances)


class ConfigError(FsachainError, ValueError):
    """An option is unknown or has an illegal value."""


class LeftOutError(FsachainError):
    """A command has done its work, but for utterances that could not be used; it ends with a status of its own."""


class BackendUnavailable(FsachainError, RuntimeError):
    """The backend asked for cannot run here; the message lists those that can."""


class MissingExtraError(FsachainError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def require(module: str, *, extra: str) -> Any:
    """Import `module`, which the optional dependency set `extra` installs; a MissingExtraError names the pip command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module!r} is needed here and could not be imported ({error}); "
            f"install it with: pip install 'fsachain[{extra}]'"
        ) from error


def check_choices(options: object, **known: Collection[str]) -> None:
    """A ConfigError for the first of these attributes that has another value than those known."""
    for name, values in known.items():
        if getattr(options, name) not in values:
            raise ConfigError(f"{name}: {getattr(options, name)!r} is not one of {', '.join(values)}")


def as_number(name: str, value: Any) -> Any:
    """The value; a ConfigError where it is no number, as those of a file or a command line that nobody converted.

    A tensor that wants a gradient is refused: as a number it would have none.
    """
    if isinstance(value, float | int):  # which a compiler can ask, too
        return value
    if not hasattr(value, "__float__"):
        raise ConfigError(f"{name} = {value!r}; expected a number")
    if getattr(value, "requires_grad", False):
        raise ConfigError(
            f"{name} wants a gradient, and is a constant here; expected a number, {name}.item()"
        )
    return value


def check_finite(name: str, value: Any, least: float = -math.inf) -> float:
    """The value as a float; a ConfigError where it is no finite number, or below `least`."""
    if not (-math.inf < as_number(name, value) < math.inf and value >= least):
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise ConfigError(f"{name} = {value}; expected a finite number{bound}")
    return float(value)


def added_option(neutral: Any) -> Any:
    """Field of a dataclass of options that earlier versions lack; `neutral` is its default and does what they did.

    Digests and comparisons with folders of earlier versions leave the option out where it has this value.
    """
    return dataclasses.field(default=neutral, metadata={"neutral": neutral})


def check_range(options: object, allowed: str, *names: str) -> None:
    """A ConfigError for the first of these attributes that is not in a range such as "[0, 1)", where None always is."""
    low, high = map(float, allowed[1:-1].split(","))
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        above = as_number(name, value) > low or (value == low and allowed[0] == "[")
        below = value < high or (value == high and allowed[-1] == "]")
        if not (above and below):
            least = f"{'at least' if allowed[0] == '[' else 'more than'} {low:g}"
            expected = least if high == math.inf and value != high else f"a number in {allowed}"
            raise ConfigError(f"{name} is {value!r}; expected {expected}")


def integer(
    name: str, value: Any, error: type[FsachainError] = ConfigError, expected: str = "an integer"
) -> int:
    """`value` as an int; this error, which names it, for what is none, such as 2.0 or "2"."""
    try:
        return operator.index(value)
    except TypeError:
        raise error(f"{name} = {value!r}; expected {expected}") from None


def warn(message: str, category: type[Warning]) -> None:
    """`warnings.warn` for the line of the first caller who is neither here nor in torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("fsachain", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_once(kind: str, message: str, category: type[Warning]) -> None:
    """As `warn`, the first time for this kind, and again where someone set filters anew."""
    if _warned_under.get(kind) is not warnings.filters:
        _warned_under[kind] = warnings.filters
        warn(message, category)


_SINGULAR = {"are": "is", "do": "does", "have": "has", "lie": "lies", "were": "was"}


def counted(number: float, noun: str, spec: str = "", verb: str = "") -> str:
    """Return a number with its noun, and a verb if there is one: "1 utterance", "2 entries", "1 byte is".

    `spec` formats the number; `verb` is the plural's.
    """
    shown = f"{number:{spec}}"
    if verb:
        verb = f" {_SINGULAR[verb] if shown == '1' else verb}"
    return f"{shown} {noun if shown == '1' else _plural(noun)}{verb}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    hisses = noun.endswith(("s", "x", "ch", "sh")) and not noun.endswith("epoch")
    return f"{noun}es" if hisses else f"{noun}s"


def refuse_text(
    name: str,
    value: object,
    error: type[FsachainError] = GraphError,
    expected: str = "a sequence of words, such as text.split()",
) -> None:
    """Raise this error for a string in the place of a sequence of strings, which Python would take letter by letter."""
    if isinstance(value, str | bytes):
        raise error(f"{name} = {value!r:.80}: expected {expected}")


_MOST_LISTED = 10  # things of one kind in a message


def listed(things: Sequence[str], separator: str = "; ") -> str:
    """Return the first of many things, and how many more there are."""
    left = len(things) - _MOST_LISTED
    more = f"{separator}and {left} more" if left > 0 else ""
    return separator.join(things[:_MOST_LISTED]) + more


def but_for(number: int) -> str:
    """As in "96 numerators, 2 utterances left out": what is said behind a number of utterances; nothing for 0."""
    return f", {counted(number, 'utterance')} left out" if number else ""


_IN_PYTHON = re.compile(r" \(in Python [^()]*\)")


def without_python(text: str) -> str:
    """A message without what it says about Python, for those who gave a command."""
    return _IN_PYTHON.sub("", text)


def printable(text: str) -> str:
    """The text without characters that move a terminal's cursor or change its colours; they become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# What `repr` shows of objects that hold arrays: kinds and shapes, and the first few of many.


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 3
        self.maxstring, self.maxother = 60, 300

    def repr1(self, x: Any, level: int) -> str:
        text = super().repr1(x, level)
        is_cut = type(x) in (list, tuple, dict) and "..." in text[-4:]
        return f"{text[:-1]} {len(x)} in all{text[-1]}" if is_cut else text

    def repr_instance(self, x: Any, level: int) -> str:
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            return super().repr_instance(x, level)
        if not x.shape and hasattr(x, "item"):
            return f"{x.item():.7g}"
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


_shorten = _Brief().repr


def brief(self: Any) -> str:
    """The `__repr__` of dataclasses and NamedTuples that hold arrays or many things: one line."""
    names = getattr(self, "_fields", None) or [part.name for part in dataclasses.fields(self) if part.repr]
    names = names or self.__match_args__  # of an opaque one, which shows no fields
    shown = [f"{name}={_shorten(getattr(self, name))}" for name in names if not name.startswith("_")]
    return f"{type(self).__name__}({', '.join(shown)})"


def brief_of(*names: str) -> Callable[[Any], str]:
    """Make a `__repr__` of one line that shows these attributes, for classes that are not dataclasses."""

    def shown(self: Any) -> str:
        parts = ", ".join(f"{name}={_shorten(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({parts})"

    return shown
