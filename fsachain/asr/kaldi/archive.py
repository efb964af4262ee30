"""Kaldi's tables: archives (ark), lists of addresses (scp), and one value at an address `file:offset[rows]`.

An entry of an archive is a key, one space, and the value, binary or text. The caller passes the function that reads
the values: `read_matrix`, `read_alignment`, `read_posterior`, `read_fst`, `read_example`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from fsachain.errors import DataError, counted
from fsachain.openfst import MAGIC
from fsachain.stream import BINARY_MARK, MAX_DIGITS, Cursor, open_file

Value = TypeVar("Value")
Reader = Callable[[Cursor], Value]

_INDEX = rf"\d{{0,{MAX_DIGITS}}}"
_SLICE = rf"{_INDEX}:{_INDEX}"
_ROWS_BEYOND = 3  # as in Kaldi: times of segments are rounded, and the last frames may lack samples
_ADDRESS = re.compile(
    rf"(?P<path>.*?)(?::(?P<offset>\d{{1,{MAX_DIGITS}}}))?(?:\[(?P<rows>{_SLICE})(?:,(?P<columns>{_SLICE}))?\])?",
    re.DOTALL,
)
_OPEN_FILES = 8
_SHOWN = 100  # letters of a key in a message


def read_table(table: str | os.PathLike[str], read: Reader[Value]) -> Iterator[tuple[str, Value]]:
    """(key, value) of each entry of a table, in order; a key that occurs twice is a DataError.

    `table` is `ark:file`, `scp:file`, or a file whose name ends in .scp (addresses) or not (an archive). Kaldi's options
    before the colon (`ark,t:`, `scp,p:`) may stand there; text and binary are told apart by content. Paths in an scp file
    are relative to its folder, then to the working directory.
    """
    name = os.fspath(table)
    prefix, colon, rest = name.partition(":")
    is_script = name.endswith(".scp")
    if colon and prefix.split(",")[0] in ("ark", "scp"):
        name, is_script = rest, prefix.startswith("scp")
    seen = set[str]()
    for key, value in (_read_script if is_script else read_archive)(name, read):
        if key in seen:
            raise DataError(f"{name}: the key {key[:_SHOWN]!r} occurs twice")
        seen.add(key)
        yield key, value


def read_any(source: str | os.PathLike[str], read: Reader[Value]) -> Iterator[tuple[str, Value]]:
    """(key, value) of each entry of a table, as `read_table`; of one value that is no table, with an empty key.

    A value by itself is a file such as final.mat, binary or in brackets, or an address such as feats.ark:17.
    """
    name = os.fspath(source)
    found = _ADDRESS.fullmatch(name)
    is_address = (
        found is not None and found["path"] != name and not _is_file(name) and _is_file(found["path"])
    )
    if is_address or (_is_file(name) and _is_one_value(name)):
        yield "", read_value(name, read)
    else:
        yield from read_table(name, read)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name too long for the system, or with a zero byte
        return False


def _is_one_value(path: str) -> bool:
    """Whether a file begins with a value, where an archive begins with a key."""
    cursor = open_file(path)
    if cursor.peek(len(BINARY_MARK)) == BINARY_MARK or cursor.peek(len(MAGIC)) == MAGIC:
        return True
    cursor.skip_space()
    return cursor.peek(1) == b"["


def read_archive(path: str | os.PathLike[str], read: Reader[Value]) -> Iterator[tuple[str, Value]]:
    cursor = open_file(path)
    while True:
        cursor.binary = False
        cursor.skip_space()
        if not cursor.left:
            return
        key = cursor.token("a key")
        if key.startswith("\ufeff"):
            cursor.fail("a byte order mark; save the file without", 0)
        if cursor.data[cursor.position - 1] == ord("\n"):
            cursor.position -= 1  # an empty text value; an FST in text form begins on the next line
        cursor.detect_binary()
        begin = cursor.position
        try:
            value = read(cursor)
        except DataError as error:
            raise DataError(f"{error} (entry {key[:_SHOWN]!r}, which begins at byte {begin})") from error
        yield key, value


def read_value(address: str | os.PathLike[str], read: Reader[Value]) -> Value:
    """The value at `file`, `file:offset` or, for matrices, `file:offset[first:last,first:last]` (inclusive)."""
    return _read_at(os.fspath(address), read, open_file)


def _read_at(address: str, read: Reader[Value], opened: Callable[[str], Cursor]) -> Value:
    found = _ADDRESS.fullmatch(address)
    assert found is not None  # every part may be absent
    data, offset = opened(found["path"]), int(found["offset"] or 0)
    cursor = Cursor(data.data, data.name, offset)
    if offset > len(cursor.data):
        cursor.fail(f"expected a value, the file has {counted(len(cursor.data), 'byte')}")
    cursor.detect_binary()
    value: Any = read(cursor)
    if found["rows"] is None:
        return cast(Value, value)
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        raise DataError(f"{address}: a range of rows, but the value is no matrix")
    rows, columns = value.shape
    return cast(
        Value,
        value[
            _slice(found["rows"], rows, address, _ROWS_BEYOND),
            _slice(found["columns"] or ":", columns, address),
        ],
    )


def _slice(text: str, size: int, address: str, beyond: int = 0) -> slice:
    """Kaldi's ranges include their last index, which may lie by so many `beyond` the last one there is."""
    first, last = (int(part) if part else None for part in text.split(":"))
    begin, end = first or 0, size if last is None else last + 1
    if not (0 <= begin < end <= size + beyond and begin < size):
        raise DataError(f"{address}: the range {text} lies not in 0:{size - 1}")
    return slice(begin, end)


def _read_script(path: str, read: Reader[Value]) -> Iterator[tuple[str, Value]]:
    opened = lru_cache(maxsize=_OPEN_FILES)(open_file)
    cursor = open_file(path)
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split(None, 1)
        if not fields:
            continue
        if len(fields) != 2:
            raise DataError(f"{path}:{number}: {fields[0][:_SHOWN]!r}, expected a key and an address")
        key, address = fields
        places = [os.fspath(Path(path).parent / address), address]
        place = next(filter(_exists, places), None)
        if place is None and "|" not in address:  # commands are refused where files are opened
            tried = " and ".join(f"{name:.300}" for name in dict.fromkeys(places))
            raise DataError(f"{path}:{number}: cannot be read: no such file: tried {tried}")
        try:
            yield key, _read_at(place or address, read, opened)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from error


def _exists(address: str) -> bool:
    found = _ADDRESS.fullmatch(address)
    try:
        return found is not None and Path(found["path"]).exists()
    except (OSError, ValueError):  # a name too long for the system, or with a zero byte
        return False
