"""Many acceptors as a few long arrays, end to end with their sizes, for files that hold thousands of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, ShapeError
from fsachain.fsa import Fsa
from fsachain.npz_file import read_npz

Contents = TypeVar("Contents")

_ARC_ARRAYS = ("src", "dst", "pdf", "log_prob")


def join(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The arrays one after another; an empty float array where there are none."""
    return np.concatenate(arrays) if arrays else np.empty(0)


def join_fsas(fsas: Sequence[Fsa]) -> dict[str, npt.NDArray[Any]]:
    """Sizes [N] (num_states, num_arcs, start), arcs [sum of A] and final weights [sum of S] of N acceptors."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(fsa, name) for fsa in fsas], dtype=np.int64)
        for name in ("num_states", "num_arcs", "start")
    }
    arrays["final_log_prob"] = join([fsa.final_log_prob for fsa in fsas])
    return arrays | {name: join([getattr(fsa, name) for fsa in fsas]) for name in _ARC_ARRAYS}


def split_fsas(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Fsa]:
    """The acceptors that `join_fsas` joined, in their order; a missing array raises KeyError."""
    fsas = []
    state = arc = 0
    sizes = zip(*(arrays[name].tolist() for name in ("num_states", "num_arcs", "start")), strict=True)
    for num_states, num_arcs, start in sizes:
        src, dst, pdf, log_prob = (arrays[name][arc : arc + num_arcs] for name in _ARC_ARRAYS)
        final = arrays["final_log_prob"][state : state + num_states]
        fsas.append(Fsa(num_states, src, dst, pdf, log_prob, final, start))
        state, arc = state + num_states, arc + num_arcs
    return fsas


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
        if arrays["format"].item() != expected:
            raise GraphError(f"{path}: format {arrays['format'].item()!r}, expected {expected!r}")
        return make(arrays)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, ShapeError) as error:
        if isinstance(error, GraphError) and str(error).startswith(os.fspath(path)):
            raise
        reason = error if zipfile.is_zipfile(path) else "no npz file, or cut short"
        raise GraphError(f"{path}: {complaint} ({reason})") from error
