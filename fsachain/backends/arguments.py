"""Checks of the arguments that every recursion shares, the same for all backends and kinds of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, ShapeError

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_scores(batch: Any, shape: tuple[int, ...]) -> None:
    """Raise unless `batch` is a TableBatch and scores of this shape are its sequences' [N, T, P].

    Raises:
        ShapeError: they are not.
    """
    if not isinstance(batch, TableBatch):
        raise ShapeError(
            f"batch is a {type(batch).__name__}; expected a TableBatch (see TableBatch.pack and TableBatch.share)"
        )
    if len(shape) != 3:
        raise ShapeError(f"scores has shape {list(shape)}; expected [N, T, P]")
    if shape[0] != batch.size:
        raise ShapeError(
            f"scores has {shape[0]} sequences (shape {list(shape)}); expected {batch.size} as in the batch"
        )
    for n, table in enumerate(batch.tables):
        if table.num_pdfs > shape[2]:
            raise ShapeError(
                f"scores has {shape[2]} pdfs (shape {list(shape)}); "
                f"expected at least {table.num_pdfs} for {batch.names[n]}"
            )


def check_dtype(name: str) -> None:
    """Raise unless scores of the dtype of this name can be used.

    Raises:
        ShapeError: they cannot.
    """
    if name not in FLOATS:
        raise ShapeError(f"scores has dtype {name}; expected {', '.join(FLOATS[:-1])} or {FLOATS[-1]}")


def check_lengths(lengths: Any, batch: TableBatch, num_frames: int) -> npt.NDArray[np.int64]:
    """int64 [N] on the host, each in [0, num_frames]; None stands for num_frames everywhere.

    Raises:
        ShapeError: they are not.
    """
    if lengths is None:
        return np.full(batch.size, num_frames, dtype=np.int64)
    if getattr(getattr(lengths, "device", None), "type", "cpu") != "cpu":
        # Reading them would wait for the device, each time, without a word.
        raise ShapeError(f"lengths are on {lengths.device}; expected {batch.size} integers on the host")
    array = np.asarray(lengths)
    if array.shape != (batch.size,) or array.dtype.kind not in "iu":
        raise ShapeError(
            f"lengths has shape {list(array.shape)} and dtype {array.dtype}; expected {batch.size} integers"
        )
    bad = np.flatnonzero((array < 0) | (array > num_frames))
    if bad.size:
        n = int(bad[0])
        raise ShapeError(
            f"lengths[{n}] = {array[n]} ({batch.names[n]}); expected 0 to {num_frames}, the frames of scores"
        )
    return array.astype(np.int64)


def check_budget(memory_budget: float | None) -> None:
    """Raise unless it is a number of bytes, infinity, or None.

    Raises:
        ConfigError: it is not.
    """
    if memory_budget is not None and not memory_budget >= 0.0:
        raise ConfigError(
            f"memory_budget = {memory_budget}; expected bytes, a number >= 0, or None for a share of the free memory"
        )


def check_leak(batch: TableBatch, coefficient: float) -> None:
    """Raise unless every table can leak with this coefficient.

    Raises:
        ConfigError: one cannot, or the coefficient is not in [0, 1].
    """
    if not 0.0 <= coefficient <= 1.0:
        raise ConfigError(f"leaky_hmm_coefficient = {coefficient}; expected a number in [0, 1]")
    for n, table in enumerate(batch.tables):
        if coefficient > 0.0 and table.leaky_log_prob is None:
            raise ConfigError(
                f"leaky_hmm_coefficient = {coefficient}, but the table of {batch.names[n]} has no leaky_log_prob; "
                "expected tables of a DenominatorGraph, or coefficient 0"
            )
