"""Values that Kaldi's archives hold: matrices, vectors, alignments and posteriors.

Each function reads one value at a `Cursor`, binary or text. Formats: Kaldi's matrix/kaldi-matrix.cc,
matrix/compressed-matrix.cc, util/kaldi-holder-inl.h and hmm/posterior.cc.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from fsachain.kaldi.stream import Cursor

Floats = npt.NDArray[np.floating]
Posterior = list[list[tuple[int, float]]]

_PRECISION = {"F": "<f4", "D": "<f8"}
_COMPRESSED = ("CM", "CM2", "CM3")
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
        if len(rows) > 1:
            cursor.fail(f"expected a vector, found a matrix of {len(rows)} rows")
        return np.array(rows[0] if rows else [], dtype=np.float32)
    begin = cursor.position
    kind = cursor.token("a vector")
    if kind not in ("FV", "DV"):
        cursor.fail(f"expected a vector (FV, DV), found {kind[:40]!r}", begin)
    return cursor.array(_PRECISION[kind[0]], cursor.integer("size", 0), "a vector")


def read_alignment(cursor: Cursor) -> npt.NDArray[np.int64]:
    """Integers, one for each frame, such as transition ids: a count, then each number with its width."""
    if not cursor.binary:
        begin = cursor.position
        fields = cursor.line().split()
        try:
            values = [int(field) for field in fields]
        except ValueError:
            cursor.fail("expected a line of integers", begin)
        return cursor.int64(values, "alignment", begin)
    count = cursor.integer("size of the alignment", 0)
    begin = cursor.position
    packed = cursor.array(_WIDTH_AND_INT, count, f"an alignment of {count} frames")
    bad = np.flatnonzero(packed["width"] != 4)
    if bad.size:
        cursor.fail(f"frame {bad[0]} of the alignment is no 32-bit integer", begin + 5 * int(bad[0]))
    return packed["value"].astype(np.int64)


def read_posterior(cursor: Cursor) -> Posterior:
    """For each frame the pairs (pdf or transition id, weight)."""
    if not cursor.binary:
        return _text_posterior(cursor)
    frames = []
    for _ in range(cursor.integer("number of frames", 0)):
        count = cursor.integer("number of pairs", 0)
        if 10 * count > cursor.left:
            cursor.fail(f"{count} pairs take {10 * count} bytes, {cursor.left} are left")
        frames.append([(cursor.integer("id"), cursor.real("weight")) for _ in range(count)])
    return frames


def _text_posterior(cursor: Cursor) -> Posterior:
    begin = cursor.position
    frames: Posterior = []
    fields = iter(cursor.line().split())
    try:
        for bracket in fields:
            if bracket != "[":
                raise ValueError(f"expected [, found {bracket!r}")
            frame = []
            while (field := next(fields)) != "]":
                frame.append((int(field), float(next(fields))))
            frames.append(frame)
    except (ValueError, StopIteration) as error:
        cursor.fail(
            f"expected frames as [ id weight ... ] ({str(error) or 'the line ends in a frame'})", begin
        )
    return frames


def _text_rows(cursor: Cursor) -> list[list[float]]:
    cursor.skip_space()
    begin = cursor.position
    if cursor.peek(1) != b"[":
        cursor.fail(f"expected a matrix or vector in brackets, found {cursor.peek(16)!r}")
    rows: list[list[float]] = []
    closed = False
    cursor.position += 1
    while not closed:
        if not cursor.left:
            cursor.fail("the file ends before the closing ]", begin)
        line_begin = cursor.position
        body, bracket, rest = cursor.line().partition("]")
        closed = bool(bracket)
        try:
            row = [float(field) for field in body.split()]
        except ValueError as error:
            cursor.fail(str(error), line_begin)
        if rest.strip():
            cursor.fail(f"expected the end of the line after ], found {rest.strip()[:40]!r}", line_begin)
        if row:
            rows.append(row)
    return rows


def _text_matrix(cursor: Cursor) -> Floats:
    begin = cursor.position
    rows = _text_rows(cursor)
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        cursor.fail(f"a matrix whose rows have {min(widths)} to {max(widths)} elements", begin)
    return np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)


def _compressed(cursor: Cursor, kind: str) -> Floats:
    """Lossy forms: 8 bits between quartiles of each column (CM), 16 bits (CM2) or 8 bits (CM3) of a range."""
    low, span, rows, columns = struct.unpack("<ffii", cursor.take(16, "the header of a compressed matrix"))
    highest = float(np.finfo(np.float32).max)
    if rows < 0 or columns < 0 or not (abs(low) < highest / 2 and abs(span) < highest / 2):
        cursor.fail(f"compressed matrix of {rows} x {columns} from {low} over {span}", cursor.position - 16)
    what = f"a compressed matrix of {rows} x {columns}"
    if kind != "CM":
        steps = 65535 if kind == "CM2" else 255
        packed = cursor.array("<u2" if kind == "CM2" else "u1", rows * columns, what)
        values = np.float32(low) + packed.astype(np.float32) * np.float32(span / steps)
        return values.reshape(rows, columns)
    quartiles = cursor.array("<u2", 4 * columns, what).astype(np.float32).reshape(columns, 4)
    quartiles = np.float32(low) + quartiles * np.float32(span / 65535)
    codes = cursor.array("u1", rows * columns, what).astype(np.float32).reshape(columns, rows)
    q0, q25, q75, q100 = (quartiles[:, k : k + 1] for k in range(4))
    lower = q0 + (q25 - q0) * codes / 64
    middle = q25 + (q75 - q25) * (codes - 64) / 128
    upper = q75 + (q100 - q75) * (codes - 192) / 63
    return np.where(codes <= 64, lower, np.where(codes <= 192, middle, upper)).T.copy()
