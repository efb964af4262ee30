"""Values that Kaldi's archives hold: matrices, vectors, alignments and posteriors.

Each function reads one value at a `Cursor`, binary or text. Formats: Kaldi's matrix/kaldi-matrix.cc,
matrix/compressed-matrix.cc, util/kaldi-holder-inl.h and hmm/posterior.cc.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, require
from fsachain.on_access import OnAccess
from fsachain.stream import Cursor

Floats = npt.NDArray[np.floating]

_PRECISION = {"F": "<f4", "D": "<f8"}
_COMPRESSED = ("CM", "CM2", "CM3")
_FEW_CODES = 1 << 12  # which are unpacked at a time
_WIDTH_AND_INT = np.dtype([("width", "u1"), ("value", "<i4")])


def read_matrix(cursor: Cursor) -> Floats:
    """A matrix [rows, columns], float32 or float64, full (FM, DM), compressed (CM, CM2, CM3) or text.

    Raises:
        DataError: something else is there, or the file ends before the matrix does.
    """
    if not cursor.binary:
        return _text_matrix(cursor)
    begin = cursor.position
    kind = cursor.token("a matrix")
    if kind in _COMPRESSED:
        return _compressed(cursor, kind)
    if kind not in ("FM", "DM"):
        cursor.fail(f"expected a matrix (FM, DM, {', '.join(_COMPRESSED)}), found {kind[:40]!r}", begin)
    rows, columns = cursor.integer("rows", 0), cursor.integer("columns", 0)
    return _table(cursor, _PRECISION[kind[0]], rows, columns)


def read_num_rows(cursor: Cursor) -> int:
    """How many rows the matrix here has; its elements are read only if it is text.

    Raises:
        DataError: no matrix is there.
    """
    if not cursor.binary:
        return len(_text_matrix(cursor))
    begin = cursor.position
    kind = cursor.token("a matrix")
    if kind in _COMPRESSED:
        return int(struct.unpack("<ffii", cursor.take(16, "the header of a compressed matrix"))[2])
    if kind not in ("FM", "DM"):
        cursor.fail(f"expected a matrix (FM, DM, {', '.join(_COMPRESSED)}), found {kind[:40]!r}", begin)
    return cursor.integer("rows", 0)


def _table(cursor: Cursor, dtype: str, rows: int, columns: int) -> Floats:
    """`rows` times `columns` packed numbers; a matrix without elements has no rows, as in Kaldi."""
    if not rows * columns:
        return np.zeros((0, 0), dtype=dtype)
    values = cursor.array(dtype, rows * columns, f"a matrix of {rows} x {columns}")
    return values.reshape(rows, columns)


def read_vector(cursor: Cursor) -> Floats:
    """A vector [size], float32 or float64, binary (FV, DV) or text."""
    if not cursor.binary:
        rows = _text_rows(cursor)
        if rows.num_rows > 1:
            cursor.fail(f"expected a vector, found a matrix of {rows.num_rows} rows")
        return rows.values
    begin = cursor.position
    kind = cursor.token("a vector")
    if kind not in ("FV", "DV"):
        cursor.fail(f"expected a vector (FV, DV), found {kind[:40]!r}", begin)
    return cursor.array(_PRECISION[kind[0]], cursor.integer("size", 0), "a vector")


def read_alignment(cursor: Cursor) -> npt.NDArray[np.int32]:
    """Integers, one for each frame, such as transition ids: a count, then each number with its width."""
    if not cursor.binary:
        begin = cursor.position
        return cursor.int32(cursor.fields(), "expected a line of integers", begin)
    count = cursor.integer("size of the alignment", 0)
    begin = cursor.position
    what = f"an alignment of {count} frames"
    packed = np.frombuffer(cursor.take(count * _WIDTH_AND_INT.itemsize, what), dtype=_WIDTH_AND_INT)
    bad = np.flatnonzero(packed["width"] != 4)
    if bad.size:
        cursor.fail(f"frame {bad[0]} of the alignment is no 32-bit integer", begin + 5 * int(bad[0]))
    return packed["value"].astype(np.int32)


class Posterior(OnAccess[list[tuple[int, float]]]):
    """For each frame the pairs (pdf or transition id, weight), kept as arrays; equal to any sequence of such lists.

    Attributes:
        offsets: int32 [T + 1], first pair of each frame, and their number.
        ids: int32; weights: float32, one for each pair.
    """

    def __init__(self, offsets: array[int], ids: array[int], weights: array[float]) -> None:
        self.offsets = np.frombuffer(offsets, dtype=np.int32)
        self.ids = np.frombuffer(ids, dtype=np.int32)
        self.weights = np.frombuffer(weights, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, frame: int) -> list[tuple[int, float]]:
        """The pairs of a frame in [0, T)."""
        pairs = slice(self.offsets[frame], self.offsets[frame + 1])
        return list(zip(self.ids[pairs].tolist(), self.weights[pairs].tolist(), strict=True))

    def some(self, frames: range) -> list[list[tuple[int, float]]]:
        """The frames of a slice: a list."""
        return list(map(self.at, frames))

    def __repr__(self) -> str:
        return f"Posterior({len(self)} frames, {len(self.ids)} pairs)"


def read_posterior(cursor: Cursor) -> Posterior:
    """For each frame the pairs (pdf or transition id, weight)."""
    if not cursor.binary:
        return _text_posterior(cursor)
    offsets, ids, weights = array("i", [0]), array("i"), array("f")
    for _ in range(cursor.integer("number of frames", 0)):
        count = cursor.integer("number of pairs", 0)
        if 10 * count > cursor.left:
            cursor.fail(f"{count} pairs take {10 * count} bytes, {cursor.left} are left")
        for _ in range(count):
            ids.append(cursor.integer("id"))
            weights.append(cursor.real("weight"))
        offsets.append(len(ids))
    return Posterior(offsets, ids, weights)


def _text_posterior(cursor: Cursor) -> Posterior:
    begin = cursor.position
    offsets, ids, weights = array("i", [0]), array("i"), array("f")
    fields = cursor.fields()
    try:
        for bracket in fields:
            if bracket != "[":
                raise ValueError(f"expected [, found {bracket[:40]!r}")
            while (field := next(fields)) != "]":
                ids.append(int(field))
                weights.append(float(next(fields)))
            offsets.append(len(ids))
    except DataError:
        raise
    except OverflowError:
        cursor.fail(f"expected ids of 32 bits, found {field[:40]}", begin)
    except (ValueError, StopIteration) as error:
        cursor.fail(
            f"expected frames as [ id weight ... ] ({str(error)[:80] or 'the line ends in a frame'})", begin
        )
    return Posterior(offsets, ids, weights)


class _Rows(NamedTuple):
    """The numbers of rows of text, float32 [all elements]; rows without elements are left out."""

    values: Floats
    num_rows: int
    shortest: int
    longest: int


def _text_rows(cursor: Cursor) -> _Rows:
    cursor.skip_space()
    begin = cursor.position
    if cursor.peek(1) != b"[":
        cursor.fail(f"expected a matrix or vector in brackets, found {cursor.peek(16)!r}")
    values = array("f")
    count, shortest, longest = 0, len(cursor.data), 0
    closed = False
    cursor.position += 1
    while not closed:
        if not cursor.left:
            cursor.fail("the file ends before the closing ]", begin)
        line_begin, before = cursor.position, len(values)
        for field in cursor.fields():
            if closed:
                cursor.fail(f"expected the end of the line after ], found {field[:40]!r}", line_begin)
            number, bracket, rest = field.partition("]")
            closed = bool(bracket)
            if rest:
                cursor.fail(f"expected the end of the line after ], found {rest[:40]!r}", line_begin)
            try:
                values.extend([float(number)] if number else ())
            except ValueError:
                cursor.fail(f"expected a number, found {number[:40]!r}", line_begin)
        width = len(values) - before
        if width:
            count, shortest, longest = count + 1, min(shortest, width), max(longest, width)
    return _Rows(np.frombuffer(values, dtype=np.float32), count, shortest, longest)


def _text_matrix(cursor: Cursor) -> Floats:
    begin = cursor.position
    rows = _text_rows(cursor)
    if rows.num_rows and rows.shortest != rows.longest:
        cursor.fail(f"a matrix whose rows have {rows.shortest} to {rows.longest} elements", begin)
    return rows.values.reshape(rows.num_rows, rows.longest)


def _compressed(cursor: Cursor, kind: str) -> Floats:
    """Lossy forms: 8 bits between quartiles of each column (CM), 16 bits (CM2) or 8 bits (CM3) of a range."""
    low, span, rows, columns = struct.unpack("<ffii", cursor.take(16, "the header of a compressed matrix"))
    highest = float(np.finfo(np.float32).max)
    if rows < 0 or columns < 0 or not (abs(low) < highest / 2 and abs(span) < highest / 2):
        cursor.fail(f"compressed matrix of {rows} x {columns} from {low} over {span}", cursor.position - 16)
    what = f"a compressed matrix of {rows} x {columns}"
    if kind == "CM":
        quartiles = _on_a_line(cursor, "<u2", 4 * columns, low, span / 65535, what)
        return _between_quartiles(cursor, quartiles.reshape(columns, 4), rows, what)
    dtype, steps = ("<u2", 65535) if kind == "CM2" else ("u1", 255)
    return _on_a_line(cursor, dtype, rows * columns, low, span / steps, what).reshape(rows, columns)


def _on_a_line(cursor: Cursor, dtype: str, count: int, low: float, step: float, what: str) -> Floats:
    """float32 [count]: low + step * code."""
    codes = np.frombuffer(cursor.take(count * np.dtype(dtype).itemsize, what), dtype=dtype)
    values = codes.astype(np.float32)
    values *= np.float32(step)
    values += np.float32(low)
    return values


def _between_quartiles(cursor: Cursor, quartiles: Floats, rows: int, what: str) -> Floats:
    """[rows, columns] of codes that stand column by column; `quartiles` [columns, 4] have the codes 0, 64, 192 and 255."""
    columns = len(quartiles)
    packed = np.frombuffer(cursor.take(rows * columns, what), dtype=np.uint8)
    values = np.empty((rows, columns), dtype=np.float32)
    by_column = values.T.flat
    for begin in range(0, packed.size, _FEW_CODES):
        codes = packed[begin : begin + _FEW_CODES].astype(np.float32)
        q0, q25, q75, q100 = quartiles[np.arange(begin, begin + codes.size) // rows].T
        lower = q0 + (q25 - q0) * codes / 64
        middle = q25 + (q75 - q25) * (codes - 64) / 128
        upper = q75 + (q100 - q75) * (codes - 192) / 63
        found = np.where(codes <= 64, lower, np.where(codes <= 192, middle, upper))
        by_column[begin : begin + codes.size] = found
    return values


# Matrices for Kaldi: network outputs as an archive that Kaldi's own decoders read.
#
# `latgen-faster-mapped 0.trans_mdl HCLG.fst ark:outputs.ark ...` takes the archive as it is.


def write_matrices(
    path: str | os.PathLike[str],
    matrices: Mapping[str, npt.ArrayLike] | Iterable[tuple[str, npt.ArrayLike]],
) -> int:
    """Write matrices to a binary archive and, beside it, an scp file of the same name; returns how many.

    Args:
        path: the archive, whose name ends in .ark. Both files are replaced when all is written.
        matrices: float [T, P] by utterance id, such as network outputs; rounded to float32.

    Raises:
        DataError: a key with white space, a matrix with NaN, +inf or another number of axes, another name.
    """
    archive = Path(path)
    if archive.suffix != ".ark" or any(mark in os.fspath(archive) for mark in ",: "):
        raise DataError(f"{archive}: expected a name that ends in .ark, without comma, colon and space")
    kaldi_native_io = require("kaldi_native_io", extra="recipes")
    written = archive.with_name(archive.name + ".part")
    addresses = []
    items = matrices.items() if isinstance(matrices, Mapping) else matrices
    with kaldi_native_io.FloatMatrixWriter(f"ark:{written}") as writer:
        end = 0
        for key, values in items:
            matrix = _checked(key, values)
            # key, a space; then the binary mark, "FM ", two integers of five bytes, and the numbers
            addresses.append(f"{key} {archive}:{end + len(key.encode()) + 1}\n")
            end += len(key.encode()) + 16 + matrix.nbytes
            writer.write(key, matrix)
    if written.stat().st_size != end:
        raise DataError(
            f"{archive}: {written.stat().st_size} bytes were written, expected {end}; is the disk full?"
        )
    written.replace(archive)
    archive.with_suffix(".scp").write_text("".join(addresses), encoding="utf-8")
    return len(addresses)


def _checked(key: str, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    if not key or key.split() != [key]:
        raise DataError(f"key {key!r}: expected a name without white space")
    matrix = np.ascontiguousarray(values, dtype=np.float32)
    if matrix.ndim != 2 or not matrix.size:
        raise DataError(f"{key!r} has shape {list(matrix.shape)}; expected [frames, pdfs], none of them 0")
    if np.isnan(matrix).any() or np.isposinf(matrix).any():
        raise DataError(f"{key!r} has NaN or +inf among its scores")
    return matrix
