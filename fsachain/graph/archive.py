"""Npz archives of graphs: columns of one type each, checked before use."""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, ShapeError, counted
from fsachain.files import parse_json, read_npz
from fsachain.fsa import Fsa

Contents = TypeVar("Contents")
Arrays = Mapping[str, npt.NDArray[Any]]

_LONGEST_ID = 1 << 14  # letters; that of a file name has 255
_LONGEST_ORIGIN = 1 << 20


def join(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)


def read_archive(
    path: str | os.PathLike[str],
    expected: str,
    make: Callable[[dict[str, npt.NDArray[Any]]], Contents],
    complaint: str,
) -> Contents:
    """What `make` makes of the arrays of an npz file whose array "format" is `expected`.

    Another file is a GraphError "path: complaint (reason)".
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

    Here and in the readers below, a KeyError or ValueError is for `read_archive`, which turns it into a GraphError.
    """
    column = arrays[name]
    if column.ndim != 1 or (column.size and column.dtype != dtype):
        raise ValueError(
            f"{name} is an array {list(column.shape)[:8]} of {column.dtype}; expected a column of {np.dtype(dtype)}"
        )
    if length is not None and len(column) != length:
        raise ValueError(f"{name} has {counted(len(column), 'row')}; expected {length}")
    return column if column.size else np.empty(0, dtype)


def texts(arrays: Arrays, name: str) -> npt.NDArray[np.str_]:
    """The column of strings; code points that are no letters (surrogates, beyond 0x10FFFF) are refused."""
    width = max(1, arrays[name].dtype.itemsize // 4)
    column = numbers(arrays, name, f"=U{width}")
    letters = column.view(np.uint32)
    if letters.max(initial=0) > 0x10FFFF or ((letters >= 0xD800) & (letters < 0xE000)).any():
        raise ValueError(f"{name} holds numbers that are no letters")
    return column


def unique_names(arrays: Arrays, name: str) -> list[str]:
    """The column of strings, all different and none wider than `_LONGEST_ID`."""
    column = texts(arrays, name)
    if column.dtype.itemsize > 4 * _LONGEST_ID:
        raise ValueError(f"{name} holds strings of up to {counted(column.dtype.itemsize // 4, 'letter')}")
    names: list[str] = column.tolist()
    twice, count = Counter(names).most_common(1)[0] if names else ("", 1)
    if count > 1:
        raise ValueError(f"{name} holds {twice[:80]!r} twice")
    return names


def offsets(sizes: npt.NDArray[np.int64], total: int, what: str) -> npt.NDArray[np.int64]:
    """int64 [N + 1]: where each of N pieces begins, and where the last ends; the sizes [N] must sum to `total`."""
    if sizes.min(initial=0) < 0 or sizes.sum(dtype=np.float64) != total:  # float64 does not wrap around
        raise ValueError(f"{what} do not share out the {counted(total, 'entry')}")
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


_ARC_ARRAYS = {"src": np.int32, "dst": np.int32, "pdf": np.int32, "log_prob": np.float64}


def join_fsas(fsas: Sequence[Fsa]) -> dict[str, npt.NDArray[Any]]:
    """N acceptors end to end: num_states, num_arcs, start [N], arcs [sum of A] and final weights [sum of S]."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(fsa, name) for fsa in fsas], dtype=np.int64)
        for name in ("num_states", "num_arcs", "start")
    }
    arrays["final_log_prob"] = join([fsa.final_log_prob for fsa in fsas])
    return arrays | {
        name: join([getattr(fsa, name) for fsa in fsas], dtype) for name, dtype in _ARC_ARRAYS.items()
    }


def split_fsas(arrays: Arrays) -> tuple[list[Fsa], npt.NDArray[np.int64]]:
    """The acceptors that `join_fsas` joined, as views of the columns, and the `offsets` of their arcs."""
    num_states = numbers(arrays, "num_states", np.int64)
    num_arcs = numbers(arrays, "num_arcs", np.int64, len(num_states))
    starts = numbers(arrays, "start", np.int64, len(num_states)).tolist()
    final = numbers(arrays, "final_log_prob", np.float64)
    first_state = offsets(num_states, len(final), "num_states").tolist()
    first_arc = offsets(num_arcs, len(arrays["src"]), "num_arcs")
    columns = [numbers(arrays, name, dtype, int(first_arc[-1])) for name, dtype in _ARC_ARRAYS.items()]
    for column in (final, *columns):
        column.setflags(write=False)  # then acceptors have views of it
    fsas = []
    for start, states, arcs in zip(starts, pairwise(first_state), pairwise(first_arc.tolist()), strict=True):
        src, dst, pdf, log_prob = (column[slice(*arcs)] for column in columns)
        fsas.append(Fsa(states[1] - states[0], src, dst, pdf, log_prob, final[slice(*states)], start))
    return fsas, first_arc


def origin_array(origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `fsachain.graph.numerator.made_with` says, as an array of an archive."""
    return {} if origin is None else {"made_with": np.array(json.dumps(origin))}


def origin_of(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The `origin` that numerators or chunks were written with; None for a file without."""
    text = read_npz(path, ("made_with",)).get("made_with")
    if text is None or text.dtype.kind != "U" or text.ndim or text.itemsize > 4 * _LONGEST_ORIGIN:
        return None
    found = parse_json(text.item(), str(path))
    return found if isinstance(found, dict) else None
