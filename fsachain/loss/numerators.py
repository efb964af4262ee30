"""Numerators as a batch of tables, each acceptor compiled once in its life."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from fsachain.batch import TableBatch
from fsachain.errors import ShapeError
from fsachain.fsa import Fsa
from fsachain.table import TransitionTable, compile_table

Numerators = TableBatch | Sequence[Fsa | TransitionTable]
_compiled: WeakKeyDictionary[Fsa, TransitionTable] = WeakKeyDictionary()


def pack_numerators(numerators: Sequence[Fsa | TransitionTable], num_pdfs: int) -> TableBatch:
    """Compile what is not yet compiled (each Fsa once in its life) and pack.

    Raises:
        ShapeError: not a sequence of acceptors and tables.
        GraphError: an acceptor that does not fit `num_pdfs`.
    """
    if isinstance(numerators, Fsa | TransitionTable):
        raise ShapeError(
            f"numerators is one {type(numerators).__name__}; expected a list, one for each sequence"
        )
    for n, graph in enumerate(numerators):
        if not isinstance(graph, Fsa | TransitionTable):
            raise ShapeError(
                f"numerators[{n}] is a {type(graph).__name__}; expected an Fsa or a TransitionTable"
            )
    return TableBatch.pack(
        [
            _compile(graph, num_pdfs, n) if isinstance(graph, Fsa) else graph
            for n, graph in enumerate(numerators)
        ]
    )


def _compile(fsa: Fsa, num_pdfs: int, n: int) -> TransitionTable:
    if fsa not in _compiled or _compiled[fsa].num_pdfs != num_pdfs:
        _compiled[fsa] = compile_table(fsa, num_pdfs, name=f"numerators[{n}]")
    return _compiled[fsa]
