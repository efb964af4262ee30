"""Which table each sequence of a batch uses."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from fsachain.errors import BackendUnavailable, ShapeError, brief, counted, integer, refuse_text
from fsachain.fsa import Fsa
from fsachain.opaque import opaque
from fsachain.table import TransitionTable, compile_table

# By name, since backends import this file.
_DEVICE_BACKEND, _LAUNCHES = "fsachain.backends.cuda.backend", "fsachain.backends.cuda.launch"

_numbers = count()
_batches: WeakValueDictionary[int, TableBatch] = WeakValueDictionary()
_compiled: WeakKeyDictionary[Fsa, TransitionTable] = WeakKeyDictionary()


class HasFsa(Protocol):
    """Such as `Numerator` and `Supervision`; of a `DenominatorGraph`, which has a `table` too, that is taken."""

    @property
    def fsa(self) -> Fsa: ...


Graph = Fsa | TransitionTable | HasFsa


@opaque
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
        laid_out: see `lay_out`.
    """

    tables: tuple[TransitionTable, ...]
    size: int
    _names: tuple[str, ...] | None
    is_shared: bool
    key: npt.NDArray[np.int64] = field(init=False, repr=False)
    laid_out: Any = field(init=False, repr=False, default=None)

    __repr__ = brief

    def __post_init__(self) -> None:
        number = next(_numbers)
        object.__setattr__(self, "key", np.array([number]))
        _batches[number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or a batch read in another process, needs a key of its own.
        fields = self.tables, self.size, self._names, self.is_shared
        return TableBatch, fields, {"laid_out": self.laid_out} if self.laid_out else None

    @classmethod
    def pack(cls, tables: Iterable[Graph], names: Sequence[str] | None = None) -> TableBatch:
        """One graph for each sequence: `Fsa`, `Numerator` or `TransitionTable`; an `Fsa` is compiled once in its life.

        Raises:
            ShapeError: no graphs, an element that is none, or another number of names than of graphs.
        """
        return pack_graphs(tables, "tables", names)

    @classmethod
    def share(cls, table: Graph, batch_size: int, names: Sequence[str] | None = None) -> TableBatch:
        """The same graph for `batch_size` sequences.

        Raises:
            ShapeError: no graph, `batch_size` below 1 or a wrong number of names.
        """
        batch_size = integer("batch_size", batch_size, ShapeError)
        if batch_size < 1:
            raise ShapeError(f"batch_size = {batch_size}; expected at least 1")
        shared = table if isinstance(table, TransitionTable) else _table_of(table, "table")
        return cls((shared,), batch_size, _checked_names(names, batch_size), is_shared=True)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """N utterance names."""
        return self._names or tuple([f"sequence {n}" for n in range(self.size)])

    def __len__(self) -> int:
        return self.size

    def table(self, n: int) -> TransitionTable:
        """The table of sequence n."""
        return self.tables[0 if self.is_shared else n]

    def lay_out(self) -> TableBatch:
        """This batch, laid out as a GPU reads it, which travels with it to another process.

        Call it where the workers of a `DataLoader` make batches: tables that a GPU has not seen then cost the training's
        thread a tenth. A `Trainer` on a GPU has it done by the thread that makes its batches. The CPU reads nothing of it.
        """
        if self.laid_out is None:
            laid_out = importlib.import_module(_LAUNCHES).lay_out_batch(self)
            object.__setattr__(self, "laid_out", laid_out)
        return self

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


Graphs = TableBatch | Sequence[Graph]


def pack_graphs(
    graphs: Graphs | Iterable[Graph], argument: str, names: Sequence[str] | None = None
) -> TableBatch:
    """The batch of what a caller gave as `argument`: a list of graphs, or a batch, which is returned as it is."""
    if isinstance(graphs, TableBatch):
        return graphs
    if _is_product(graphs):
        raise ShapeError(_PAIR.format(f"{argument} is", f"{argument}[0] in a list"))
    if not isinstance(graphs, Iterable):
        raise ShapeError(
            f"{argument} is one {type(graphs).__name__}; expected a TableBatch or a list of graphs, one for each sequence "
            "(one for all: TableBatch.share)"
        )
    tables = tuple(
        [
            graph if isinstance(graph, TransitionTable) else _table_of(graph, f"{argument}[{n}]")
            for n, graph in enumerate(graphs)
        ]
    )
    if not tables:
        raise ShapeError(f"{argument} is empty; expected at least one graph")
    return TableBatch(tables, len(tables), _checked_names(names, len(tables)), is_shared=False)


_PAIR = "{} a pair of a graph and its arcs, as product() returns; expected the graph alone, {}"


def _is_product(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], Fsa)
        and isinstance(value[1], np.ndarray)
    )


def _table_of(graph: Any, argument: str) -> TransitionTable:
    table = getattr(graph, "table", None)
    if isinstance(table, TransitionTable):
        return table
    fsa = graph if isinstance(graph, Fsa) else getattr(graph, "fsa", None)
    if _is_product(graph):
        raise ShapeError(_PAIR.format(f"{argument} is", f"{argument}[0]"))
    if not isinstance(fsa, Fsa):
        raise ShapeError(
            f"{argument} is a {type(graph).__name__}; expected an Fsa, a Numerator or a TransitionTable"
        )
    if fsa not in _compiled:
        _compiled[fsa] = compile_table(fsa)
    return _compiled[fsa]


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
    refuse_text("names", names, ShapeError, "a name for each sequence, such as ['u1', 'u2']")
    if len(names) != size:
        raise ShapeError(f"names has {counted(len(names), 'entry')}; expected {size}, one for each sequence")
    return tuple(str(name) for name in names)
