"""What `repr` shows of objects that hold arrays: kinds and shapes, and the first few of many."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Sized
from typing import Any


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 3
        self.maxstring, self.maxother = 60, 300

    def repr_list(self, x: list[Any], level: int) -> str:
        return _counted(super().repr_list(x, level), x)

    def repr_tuple(self, x: tuple[Any, ...], level: int) -> str:
        return _counted(super().repr_tuple(x, level), x)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return _counted(super().repr_dict(x, level), x)

    def repr_instance(self, x: Any, level: int) -> str:
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            return super().repr_instance(x, level)
        if not x.shape and hasattr(x, "item"):
            return f"{x.item():.7g}"
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


_shorten = _Brief().repr


def _counted(text: str, items: Sized) -> str:
    return f"{text[:-1]} {len(items)} in all{text[-1]}" if "..." in text[-4:] else text


def brief(self: Any) -> str:
    """The `__repr__` of dataclasses and NamedTuples that hold arrays or many things: one line."""
    names = getattr(self, "_fields", None) or [part.name for part in dataclasses.fields(self) if part.repr]
    shown = [f"{name}={_shorten(getattr(self, name))}" for name in names if not name.startswith("_")]
    return f"{type(self).__name__}({', '.join(shown)})"
