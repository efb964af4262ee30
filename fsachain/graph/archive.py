"""Npz archives of graphs: columns of one type each, which are checked before anything is made of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, ShapeError
from fsachain.files import read_npz
from fsachain.fsa import Fsa
from fsachain.names import Names
from fsachain.on_access import OnAccess

Contents = TypeVar("Contents")
Arrays = Mapping[str, npt.NDArray[Any]]

_LONGEST_ID = 1 << 14  # letters; that of a file name has 255


def join(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """The arrays one after another, as `dtype`."""
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)


def read_archive(
    path: str | os.PathLike[str],
    expected: str,
    make: Callable[[dict[str, npt.NDArray[Any]]], Contents],
    complaint: str,
) -> Contents:
    """What `make` makes of the arrays of an npz file whose array "format" is `expected`.

    Raises:
        GraphError: "path: complaint (reason)" if the file is not such an archive.
    """
    try:
        arrays = read_npz(path)
        found = arrays["format"].item() if arrays["format"].dtype.kind == "U" else ""
        if found != expected:
            raise GraphError(f"{path}: format {found[:80]!r}, expected {expected!r}")
        return make(arrays)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, ShapeError) as error:
        if isinstance(error, GraphError) and str(error).startswith(os.fspath(path)):
            raise
        reason = error if zipfile.is_zipfile(path) else "no npz file, or cut short"
        raise GraphError(f"{path}: {complaint} ({reason})") from error


def numbers(arrays: Arrays, name: str, dtype: npt.DTypeLike, length: int | None = None) -> npt.NDArray[Any]:
    """The column [length] of exactly this type: in a narrower one, a short file could hold any number of rows.

    Raises:
        KeyError, ValueError: there is none, or another array of this name.
    """
    column = arrays[name]
    if column.ndim != 1 or (column.size and column.dtype != dtype):
        raise ValueError(
            f"{name} is an array {list(column.shape)[:8]} of {column.dtype}; expected a column of {np.dtype(dtype)}"
        )
    if length is not None and len(column) != length:
        raise ValueError(f"{name} has {len(column)} rows; expected {length}")
    return column if column.size else np.empty(0, dtype)


def texts(arrays: Arrays, name: str) -> npt.NDArray[np.str_]:
    """The column of strings.

    Raises:
        KeyError, ValueError: there is none, or another array of this name, or one with what is no letter.
    """
    width = max(1, arrays[name].dtype.itemsize // 4)
    column = numbers(arrays, name, f"=U{width}")
    letters = column.view(np.uint32)
    if letters.max(initial=0) > 0x10FFFF or ((letters >= 0xD800) & (letters < 0xE000)).any():
        raise ValueError(f"{name} holds numbers that are no letters")
    return column


def ids(arrays: Arrays, name: str) -> Names:
    """The column of strings that are looked up.

    Raises:
        KeyError, ValueError: as `texts`; a string occurs twice, or may be very long.
    """
    column = texts(arrays, name)
    if column.dtype.itemsize > 4 * _LONGEST_ID:
        raise ValueError(f"{name} holds strings of up to {column.dtype.itemsize // 4} letters")
    found = Names(column[place].item() for place in range(len(column)))
    if repeats := found.repeats():
        raise ValueError(f"{name} holds {found[repeats[0]][:80]!r} twice")
    return found


def offsets(sizes: npt.NDArray[np.int64], total: int, what: str) -> npt.NDArray[np.int64]:
    """Where each of N pieces begins that `total` entries consist of, and where the last ends [N + 1].

    Raises:
        ValueError: "`what` do not share out ...": the sizes have another sum, or one is negative.
    """
    if sizes.min(initial=0) < 0 or sizes.sum(dtype=np.float64) != total:  # float64 does not wrap around
        raise ValueError(f"{what} do not share out the {total} entries")
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


# Many acceptors as a few long arrays, end to end with their sizes, for files that hold thousands of them.

_ARC_ARRAYS = {"src": np.int32, "dst": np.int32, "pdf": np.int32, "log_prob": np.float64}


def join_fsas(fsas: Sequence[Fsa]) -> dict[str, npt.NDArray[Any]]:
    """Sizes [N] (num_states, num_arcs, start), arcs [sum of A] and final weights [sum of S] of N acceptors."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(fsa, name) for fsa in fsas], dtype=np.int64)
        for name in ("num_states", "num_arcs", "start")
    }
    arrays["final_log_prob"] = join([fsa.final_log_prob for fsa in fsas])
    return arrays | {
        name: join([getattr(fsa, name) for fsa in fsas], dtype) for name, dtype in _ARC_ARRAYS.items()
    }


class JoinedFsas(OnAccess[Fsa]):
    """The acceptors that `join_fsas` joined, in their order; each is made anew when it is asked for.

    Attributes:
        first_arc: int64 [N + 1], where the arcs of each acceptor begin, and where those of the last end.

    Raises:
        KeyError, ValueError: an array is missing, of another type or length.
        GraphError: as `Fsa` for the first acceptor that cannot be.
    """

    def __init__(self, arrays: Arrays) -> None:
        num_states = numbers(arrays, "num_states", np.int64)
        num_arcs = numbers(arrays, "num_arcs", np.int64, len(num_states))
        self._start = numbers(arrays, "start", np.int64, len(num_states))
        self._final = numbers(arrays, "final_log_prob", np.float64)
        self._first_state = offsets(num_states, len(self._final), "num_states")
        self.first_arc = offsets(num_arcs, len(arrays["src"]), "num_arcs")
        total = int(self.first_arc[-1])
        self._arcs = [numbers(arrays, name, dtype, total) for name, dtype in _ARC_ARRAYS.items()]
        for column in (self._final, *self._arcs):
            column.setflags(write=False)  # then acceptors have views of it
        for _ in self:  # made once and thrown away: what is wrong is told now
            pass

    def __len__(self) -> int:
        return len(self._start)

    def at(self, place: int) -> Fsa:
        """The acceptor at a place in [0, len)."""
        states = slice(*self._first_state[place : place + 2].tolist())
        arcs = slice(*self.first_arc[place : place + 2].tolist())
        src, dst, pdf, log_prob = (column[arcs] for column in self._arcs)
        final = self._final[states]
        return Fsa(len(final), src, dst, pdf, log_prob, final, int(self._start[place]))
