"""Values that Kaldi's archives hold: matrices, vectors, alignments and posteriors.

Each function reads one value at a `Cursor`, binary or text. Formats: Kaldi's matrix/kaldi-matrix.cc,
matrix/compressed-matrix.cc, util/kaldi-holder-inl.h and hmm/posterior.cc.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, counted
from fsachain.files import replacing
from fsachain.stream import LONGEST_LIST, Cursor

Floats = npt.NDArray[np.floating]

_PRECISION = {"FM": "<f4", "DM": "<f8"}
_COMPRESSED = ("CM", "CM2", "CM3")
_BRACKETED = re.compile(rb"\[([^\]]*)\]([^\n]*)\n?")
_WIDTH_AND_INT = np.dtype([("width", "u1"), ("value", "<i4")])


def read_matrix(cursor: Cursor) -> Floats:
    """A matrix [rows, columns], float32 or float64, full (FM, DM), compressed (CM, CM2, CM3) or text."""
    if not cursor.binary:
        return _text_matrix(cursor)
    kind, rows, columns, low, span = _head(cursor)
    if kind in _PRECISION:
        what = f"a matrix of {rows} x {columns}"
        return cursor.array(_PRECISION[kind], rows * columns, what).reshape(rows, columns)
    what = f"a compressed matrix of {rows} x {columns}"
    if kind == "CM":  # 8 bits between quartiles of each column
        quartiles = _on_a_line(cursor, "<u2", 4 * columns, low, span / 65535, what)
        return _between_quartiles(cursor, quartiles.reshape(columns, 4), rows, what)
    dtype, steps = ("<u2", 65535) if kind == "CM2" else ("u1", 255)  # over one range of values
    return _on_a_line(cursor, dtype, rows * columns, low, span / steps, what).reshape(rows, columns)


def read_num_rows(cursor: Cursor) -> int:
    """How many rows the matrix here has; its elements are read only if it is text."""
    return _head(cursor)[1] if cursor.binary else len(_text_matrix(cursor))


def _head(cursor: Cursor) -> tuple[str, int, int, float, float]:
    """Kind, rows and columns of a matrix, which has both or, as in Kaldi, neither; low and span of a compressed one."""
    begin = cursor.position
    kind = cursor.token("a matrix")
    low = span = 0.0
    if kind in _PRECISION:
        rows, columns = cursor.integer("rows", 0), cursor.integer("columns", 0)
    elif kind in _COMPRESSED:
        header = cursor.take(16, "the header of a compressed matrix")
        low, span, rows, columns = struct.unpack("<ffii", header)
        highest = float(np.finfo(np.float32).max)
        if min(rows, columns) < 0 or not (abs(low) < highest / 2 and abs(span) < highest / 2):
            cursor.fail(f"compressed matrix of {rows} x {columns} from {low} over {span}", begin)
    else:
        cursor.fail(f"expected a matrix (FM, DM, {', '.join(_COMPRESSED)}), found {kind[:40]!r}", begin)
    return (kind, rows, columns, low, span) if rows * columns else (kind, 0, 0, low, span)


def read_vector(cursor: Cursor) -> Floats:
    """A vector [size], float32 or float64, binary (FV, DV) or text."""
    if not cursor.binary:
        values, widths = _text_rows(cursor)
        if len(widths) > 1:
            cursor.fail(f"expected a vector, found a matrix of {counted(len(widths), 'row')}")
        return np.array(values, dtype=np.float32)
    begin = cursor.position
    kind = cursor.token("a vector")
    if kind not in ("FV", "DV"):
        cursor.fail(f"expected a vector (FV, DV), found {kind[:40]!r}", begin)
    return cursor.array("<f4" if kind == "FV" else "<f8", cursor.integer("size", 0), "a vector")


def read_alignment(cursor: Cursor) -> npt.NDArray[np.int32]:
    """Integers, one for each frame, such as transition ids; in binary form a count, then each number with its width."""
    if not cursor.binary:
        begin = cursor.position
        return cursor.int32(cursor.line(LONGEST_LIST).split(), "expected a line of integers", begin)
    count = cursor.integer("size of the alignment", 0)
    begin = cursor.position
    what = f"an alignment of {counted(count, 'frame')}"
    packed = np.frombuffer(cursor.take(count * _WIDTH_AND_INT.itemsize, what), dtype=_WIDTH_AND_INT)
    bad = np.flatnonzero(packed["width"] != 4)
    if bad.size:
        cursor.fail(f"frame {bad[0]} of the alignment is no 32-bit integer", begin + 5 * int(bad[0]))
    return packed["value"].astype(np.int32)


def read_posterior(cursor: Cursor) -> list[list[tuple[int, float]]]:
    """For each frame the pairs (pdf or transition id, weight)."""
    frames: list[list[tuple[int, float]]] = []
    if cursor.binary:
        for _ in range(cursor.integer("number of frames", 0)):
            pairs = range(cursor.integer("number of pairs", 0))
            frames.append([(cursor.integer("id"), cursor.real("weight")) for _ in pairs])
        return frames
    begin = cursor.position
    fields = iter(cursor.line(LONGEST_LIST).split())
    try:
        for bracket in fields:
            if bracket != "[":
                raise ValueError(f"expected [, found {bracket[:40]!r}")
            frames.append([])
            while (field := next(fields)) != "]":
                if not -(2**31) <= int(field) < 2**31:
                    raise ValueError(f"expected ids of 32 bits, found {field[:40]}")
                frames[-1].append((int(field), array("f", [float(next(fields))])[0]))
    except (ValueError, StopIteration) as error:
        cursor.fail(
            f"expected frames as [ id weight ... ] ({str(error)[:80] or 'the line ends in a frame'})", begin
        )
    return frames


def _text_rows(cursor: Cursor) -> tuple[array[float], list[int]]:
    """The numbers between brackets, and how many each row has; rows without elements are left out."""
    cursor.skip_space()
    begin = cursor.position
    if cursor.peek(1) != b"[":
        cursor.fail(f"expected a matrix or vector in brackets, found {cursor.peek(16)!r}")
    found = _BRACKETED.match(cursor.data, begin)
    if found is None:
        cursor.fail("the file ends before the closing ]", begin)
    if found[2].strip():
        cursor.fail(f"expected the end of the line after ], found {found[2].strip()[:40]!r}", found.start(2))
    cursor.position = found.end()
    values, widths = array("f"), []
    try:
        for line in found[1].split(b"\n"):
            before = len(values)
            values.extend(map(float, line.split()))
            if len(values) > before:
                widths.append(len(values) - before)
    except ValueError as error:
        cursor.fail(f"expected a number ({str(error)[:80]})", begin)
    return values, widths


def _text_matrix(cursor: Cursor) -> Floats:
    begin = cursor.position
    values, widths = _text_rows(cursor)
    if len(set(widths)) > 1:
        cursor.fail(f"a matrix whose rows have {min(widths)} to {max(widths)} elements", begin)
    return np.array(values, dtype=np.float32).reshape(len(widths), widths[0] if widths else 0)


def _on_a_line(cursor: Cursor, dtype: str, count: int, low: float, step: float, what: str) -> Floats:
    """float32 [count]: low + step * code."""
    values = cursor.array(dtype, count, what).astype(np.float32)
    values *= np.float32(step)
    values += np.float32(low)
    return values


def _between_quartiles(cursor: Cursor, quartiles: Floats, rows: int, what: str) -> Floats:
    """[rows, columns] of 8-bit codes in column order; codes 0, 64, 192 and 255 stand for `quartiles` [columns, 4]."""
    columns = len(quartiles)
    codes = cursor.array("u1", rows * columns, what).reshape(columns, rows).T.astype(np.float32)
    q0, q25, q75, q100 = quartiles.T
    lower = q0 + (q25 - q0) * codes / 64
    middle = q25 + (q75 - q25) * (codes - 64) / 128
    upper = q75 + (q100 - q75) * (codes - 192) / 63
    return np.ascontiguousarray(np.where(codes <= 64, lower, np.where(codes <= 192, middle, upper)))


def write_matrices(
    path: str | os.PathLike[str],
    matrices: Mapping[str, npt.ArrayLike] | Iterable[tuple[str, npt.ArrayLike]],
) -> int:
    """Write matrices to a binary archive and, beside it, an scp file of the same name; returns how many.

    `path` is the archive, whose name ends in .ark; both files are replaced when all is written, and the scp file has the
    archive's absolute path. `matrices` are float [T, P] by utterance id, such as features or network outputs, rounded to
    float32; -inf is allowed, NaN and +inf are not. Kaldi's `latgen-faster-mapped 0.trans_mdl HCLG.fst ark:outputs.ark ...`
    reads the archive.
    """
    archive = Path(path)
    if archive.suffix != ".ark" or any(mark in os.fspath(archive) for mark in ",: "):
        raise DataError(f"{archive}: expected a name that ends in .ark, without comma, colon and space")
    items = matrices.items() if isinstance(matrices, Mapping) else matrices
    count, address = 0, archive.resolve()  # which Kaldi and our readers both find, from any folder
    with replacing(archive.with_suffix(".scp")) as addresses, replacing(archive) as file:
        for key, values in items:
            if key.split() != [key]:
                raise DataError(f"key {key!r}: expected a name without white space")
            matrix = np.ascontiguousarray(values, dtype="<f4")
            if matrix.ndim != 2 or not matrix.size:
                raise DataError(
                    f"{key!r} has shape {list(matrix.shape)}; expected [frames, columns], none of them 0"
                )
            if np.isnan(matrix).any() or np.isposinf(matrix).any():
                raise DataError(f"{key!r} has NaN or +inf among its scores")
            file.write(f"{key} ".encode())
            addresses.write(f"{key} {address}:{file.tell()}\n".encode())
            file.write(b"\0BFM " + struct.pack("<bibi", 4, len(matrix), 4, matrix.shape[1]))
            file.write(matrix.tobytes())
            count += 1
    return count
