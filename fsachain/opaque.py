"""Objects that trainers hand on whole, however they walk over a batch."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)


class _Fields:
    """The fields of a class as it declares them; to those who ask an object, arguments of its constructor."""

    def __init__(self, kind: Any) -> None:
        arguments = [part.name for part in dataclasses.fields(kind) if part.init]
        as_init_vars = [(name, dataclasses.InitVar[Any], None) for name in arguments]
        self._declared: dict[str, Any] = kind.__dataclass_fields__
        made: Any = dataclasses.make_dataclass("Arguments", as_init_vars)
        self._arguments: dict[str, Any] = made.__dataclass_fields__

    def __get__(self, instance: Any, owner: type | None = None) -> dict[str, Any]:
        return self._declared if instance is None else self._arguments


def opaque(kind: Kind) -> Kind:
    """Hide the fields of a frozen dataclass from whoever walks over the parts of a batch.

    Trainers look for tensors in dataclasses too: Lightning copies one and sets its fields, which a frozen one refuses, and
    torch builds another from what it made of the fields. A graph holds no tensors, and caches know it by its identity. So
    `dataclasses.fields` of an object shows none, and its copies are the object itself. `dataclasses.replace` takes the
    names that it always took, since it also passes on what was declared as `dataclasses.InitVar`.
    """
    kind.__dataclass_fields__ = _Fields(kind)  # type: ignore[attr-defined]
    kind.__copy__ = _itself  # type: ignore[attr-defined]
    kind.__deepcopy__ = _itself  # type: ignore[attr-defined]
    return kind


def _itself(self: Any, memo: Any = None) -> Any:
    return self
