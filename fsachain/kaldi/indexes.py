"""Index vectors of Kaldi's examples: which sequence and time each row of a matrix belongs to.

Format: Kaldi's nnet3/nnet-common.cc. A row takes one byte where only the time changes, and little; it is kept so.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from fsachain.kaldi.stream import Cursor

Ints = npt.NDArray[np.int32]

_ESCAPE = 127
_LARGEST_STEP = 124
_HIGHEST = 2**31 - 1


class Indexes:
    """Rows (n, t, x): sequence, time and extra, each made on access as int32 [rows].

    Args:
        steps: int8 [rows], by how much t is larger than in the row before; 127 for a row that stands in `full`.
        full: int32 [such rows, 3]. Before the first row n, t and x are 0.
    """

    def __init__(self, steps: npt.NDArray[np.int8], full: Ints) -> None:
        self._steps, self._full = steps, full

    def __len__(self) -> int:
        return len(self._steps)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.integer]:
        """All of n, t and x as [rows, 3]."""
        return np.stack((self.n, self.t, self.x), axis=1).astype(dtype or np.int64)

    @property
    def n(self) -> Ints:
        """The sequence of each row."""
        return self._repeated(self._full[:, 0])

    @property
    def t(self) -> Ints:
        """The time of each row, in frames."""
        steps, begins = self._steps.astype(np.int32), np.flatnonzero(self._steps == _ESCAPE)
        if begins.size:
            times = self._full[:, 1]
            last = times + np.add.reduceat(steps, begins) - _ESCAPE  # before the next full row
            steps[begins] = times - np.append(steps[: begins[0]].sum(), last[:-1])
        return np.cumsum(steps, out=steps)

    @property
    def x(self) -> Ints:
        """The extra index of each row."""
        return self._repeated(self._full[:, 2])

    def _repeated(self, values: Ints) -> Ints:
        """A value for each row: that of the last full row, 0 before the first."""
        begins = np.flatnonzero(self._steps == _ESCAPE)
        sizes = np.diff(begins, prepend=0, append=len(self))
        return np.repeat(np.append(np.int32(0), values), sizes)


def read_indexes(cursor: Cursor) -> Indexes:
    """An index vector, binary or text.

    Raises:
        DataError: something else is there, it is cut short, or a time is beyond 32 bits.
    """
    cursor.expect("<I1V>")
    begin = cursor.position
    count = cursor.integer("number of indexes", 0)
    if count > cursor.left:
        cursor.fail(f"{count} indexes, {cursor.left} bytes are left", begin)
    steps, full, time = array("b"), array("i"), 0
    for _ in range(count):
        if not cursor.binary:
            cursor.expect("<I1>")
        step = int.from_bytes(cursor.take(1, "an index"), "little", signed=True) if cursor.binary else _ESCAPE
        if step == _ESCAPE:
            full.extend(cursor.integer(f"{name} of an index") for name in "ntx")
            time = full[-2]
        elif abs(step) <= _LARGEST_STEP:
            time += step
        else:
            cursor.fail(f"step {step} of an index: expected -124 to 124, or {_ESCAPE}")
        if abs(time) > _HIGHEST:
            cursor.fail(f"time {time} of an index: expected at most {_HIGHEST}")
        steps.append(step)
    return Indexes(np.frombuffer(steps, np.int8), np.frombuffer(full, np.int32).reshape(-1, 3))
