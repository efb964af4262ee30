"""Which table each sequence of a batch uses."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.table import TransitionTable

# By name, since backends import this file.
_DEVICE_BACKEND = "fsachain.backends.cuda.backend"

_numbers = count()
_batches: WeakValueDictionary[int, TableBatch] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class TableBatch:
    """N sequences, each with a table of its own (`pack`) or all with the same one (`share`).

    Attributes:
        tables: the tables: N of them when packed, a single one when shared.
        size: N.
        names: N utterance names for messages; "sequence 0", "sequence 1", ... where none were given.
        is_shared: made by `share`.
        key: int64 [1], the number by which `find_batch` finds this batch while it lives: what a torch operator, which takes
            only tensors, is given in its place.
    """

    tables: tuple[TransitionTable, ...]
    size: int
    _names: tuple[str, ...] | None
    is_shared: bool
    key: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        number = next(_numbers)
        object.__setattr__(self, "key", np.array([number]))
        _batches[number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or a batch read in another process, needs a key of its own.
        return TableBatch, (self.tables, self.size, self._names, self.is_shared)

    @classmethod
    def pack(cls, tables: Sequence[TransitionTable], names: Sequence[str] | None = None) -> TableBatch:
        """One table for each sequence.

        Raises:
            ShapeError: no tables, an element that is not a table, or another number of names than of tables.
        """
        tables = tuple(tables)
        if not tables:
            raise ShapeError("tables is empty; expected at least one TransitionTable")
        for index, table in enumerate(tables):
            if not isinstance(table, TransitionTable):
                raise ShapeError(
                    f"tables[{index}] is a {type(table).__name__}; expected a TransitionTable (see compile_table)"
                )
        return cls(tables, len(tables), _checked_names(names, len(tables)), is_shared=False)

    @classmethod
    def share(cls, table: TransitionTable, batch_size: int, names: Sequence[str] | None = None) -> TableBatch:
        """The same table for `batch_size` sequences.

        Raises:
            ShapeError: `batch_size` below 1 or a wrong number of names.
        """
        if not isinstance(table, TransitionTable):
            raise ShapeError(
                f"table is a {type(table).__name__}; expected a TransitionTable (see compile_table)"
            )
        if batch_size < 1:
            raise ShapeError(f"batch_size = {batch_size}; expected at least 1")
        return cls((table,), batch_size, _checked_names(names, batch_size), is_shared=True)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """N utterance names."""
        return self._names or tuple([f"sequence {n}" for n in range(self.size)])

    def __len__(self) -> int:
        return self.size

    def table(self, n: int) -> TransitionTable:
        """The table of sequence n."""
        return self.tables[0 if self.is_shared else n]

    def to(self, device: Any) -> TableBatch:
        """This batch, its tables copied to `device` if that is a CUDA device: before the first use, or before a capture.

        A batch is used with scores of any device: what is not there yet is copied by the first call, and stays as long as
        this batch (a shared table: as long as the table) lives.

        Args:
            device: "cpu", "cuda" (the current device), "cuda:1", or a torch.device.

        Raises:
            BackendUnavailable: there is no such device, or no backend for it.
        """
        name, _, index = str(device).partition(":")
        if name not in ("cpu", "cuda") or not (index.isdecimal() or not index):
            raise BackendUnavailable(f"device {str(device)!r}: no backend; expected 'cpu' or 'cuda'")
        if name == "cuda":
            backend = importlib.import_module(_DEVICE_BACKEND)
            backend.place_tables(self, int(index) if index else None)
        return self

    def pin_memory(self) -> TableBatch:
        """This batch: what travels to a device goes through pinned memory of the library's own anyway."""
        return self


def find_batch(key: int) -> TableBatch:
    """The batch whose `key` holds this number; whoever passes a key keeps the batch until the call returns."""
    batch = _batches.get(key)
    if batch is None:
        raise ShapeError(
            f"batch key {key}: no such TableBatch is alive; expected the caller to keep it during the call"
        )
    return batch


def _checked_names(names: Sequence[str] | None, size: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) != size:
        raise ShapeError(f"names has {len(names)} entries; expected {size}, one for each sequence")
    return tuple(str(name) for name in names)
