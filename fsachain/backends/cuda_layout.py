"""What a table looks like to the CUDA kernels; `layout.cuh` has the terms, `cuda_tables` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_units import FIELDS, Direction, Floats, Integers

# Of a table: its shares, states, rows of pairs, active pdfs, and pairs without holes; the states, rows of pairs, arcs and
# partial sums of the share with most of them, the arcs and partial sums in either direction; the partial sums of all shares.
_NAMES = (
    "shares states pairs columns filled_pairs own_states own_pairs forward_arcs backward_arcs forward_parts backward_parts "
    "all_forward_parts all_backward_parts"
)
SIZES = {name: number for number, name in enumerate(_NAMES.split())}


@dataclass(frozen=True, eq=False)
class Layout:
    """A table, laid out.

    Attributes:
        forward, backward: the arcs.
        pairs: int32 [pair rows, 2], column and destination, -1 for holes.
        pdfs: int32, the active pdfs.
        column_ends: int32, where each column's pairs end in `pairs_by_column`.
        pairs_by_column: int32, rows of pairs.
        vectors: float64 [2 S + 2], logs: initial and final by the new numbers of the states, the sum of initial, and the sum
            of init final.
        sizes: int64, see `SIZES`.
    """

    forward: Direction
    backward: Direction
    pairs: npt.NDArray[np.int32]
    pdfs: npt.NDArray[np.int32]
    column_ends: npt.NDArray[np.int32]
    pairs_by_column: npt.NDArray[np.int32]
    vectors: Floats
    sizes: Integers


def split(together: Layout) -> list[Layout]:
    """The layouts of several tables that stand one after another; `together.sizes` is [tables, SIZES]."""
    sizes = together.sizes

    def pieces(values: npt.NDArray[Any], counts: Any) -> list[npt.NDArray[Any]]:
        # Copies, since a view would keep what belongs to all tables as long as one of them.
        ends = np.cumsum(counts).tolist()
        return [values[end - count : end].copy() for end, count in zip(ends, counts.tolist(), strict=True)]

    columns, pairs, filled = (sizes[:, SIZES[name]] for name in ("columns", "pairs", "filled_pairs"))
    parts = zip(
        _split_direction(together.forward, sizes),
        _split_direction(together.backward, sizes),
        pieces(together.pairs, pairs),
        pieces(together.pdfs, columns),
        pieces(together.column_ends, columns),
        pieces(together.pairs_by_column, filled),
        pieces(together.vectors, 2 * sizes[:, SIZES["states"]] + 2),
        [row.copy() for row in sizes],
        strict=True,
    )
    return [Layout(*part) for part in parts]


# What a share's arrays are, and the field that says where they begin.
_BEGINS = {
    "slices": "first_slice",
    "units": "first_unit",
    "arc_index": "first_arc",
    "arc_log": "first_arc",
    "entry_index": "first_entry",
    "entry_log": "first_entry",
}
_FIRSTS = [FIELDS[name] for name in ("first_slice", "first_unit", "first_arc", "first_entry", "first_pair")]


def _split_direction(together: Direction, sizes: Integers) -> list[Direction]:
    shares = sizes[:, SIZES["shares"]].tolist()
    ends = np.cumsum(shares).tolist()
    begins = [end - count for end, count in zip(ends, shares, strict=True)]
    cuts = {}
    for name, field in _BEGINS.items():
        values = getattr(together, name)
        at = [*together.fields[begins, FIELDS[field]].tolist(), len(values)]
        cuts[name] = [values[at[i] : at[i + 1]].copy() for i in range(len(shares))]
    result = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        fields = together.fields[begin:end].copy()
        fields[:, _FIRSTS] -= fields[0, _FIRSTS]
        arrays = {name: pieces[number] for name, pieces in cuts.items()}
        result.append(Direction(fields, **arrays, parts=together.parts[begin:end].copy()))
    return result


def join_fields(directions: Sequence[Direction], pairs: Sequence[int]) -> Integers:
    """`Direction.fields` of tables whose arrays stand one after another; `pairs`: the rows of pairs of each."""
    fields = np.concatenate([direction.fields for direction in directions])
    counts = [
        (len(d.slices), len(d.units), len(d.arc_index), len(d.entry_index), rows)
        for d, rows in zip(directions, pairs, strict=True)
    ]
    ends = np.cumsum(counts, axis=0)
    shares = [len(direction.fields) for direction in directions]
    fields[:, _FIRSTS] += np.repeat(ends - counts, shares, axis=0)
    return fields
