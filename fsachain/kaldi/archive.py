"""Kaldi's tables: archives (ark), lists of addresses (scp), and one value at an address `file:offset[rows]`.

An entry of an archive is a key, one space, and the value, binary or text. The caller passes the function that reads
the values: `read_matrix`, `read_alignment`, `read_posterior`, `read_fst`, `read_example`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fsachain.errors import DataError
from fsachain.stream import MAX_DIGITS, Cursor, open_file

Value = TypeVar("Value")
Reader = Callable[[Cursor], Value]

_INDEX = rf"\d{{0,{MAX_DIGITS}}}"
_SLICE = rf"{_INDEX}:{_INDEX}"
_RANGE = re.compile(rf"^(?P<address>.*)\[(?P<rows>{_SLICE})(?:,(?P<columns>{_SLICE}))?\]$")
_OFFSET = re.compile(rf"^(?P<path>.*):(?P<offset>\d{{1,{MAX_DIGITS}}})$")
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
    kind = prefix.split(",")[0] if colon else ""
    if kind in ("ark", "scp"):
        name = rest
    else:
        kind = "scp" if name.endswith(".scp") else "ark"
    seen = set[str]()
    for key, value in (_read_script if kind == "scp" else read_archive)(name, read):
        if key in seen:
            raise DataError(f"{name}: the key {key[:_SHOWN]!r} occurs twice")
        seen.add(key)
        yield key, value


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
    return _Addresses().read(os.fspath(address), read)


class _Addresses:
    """Reads values at addresses; at most `_OPEN_FILES` files stay open."""

    def __init__(self) -> None:
        self.files: dict[str, Cursor] = {}

    def read(self, address: str, read: Reader[Value]) -> Value:
        found = _RANGE.match(address)
        rows, columns = (found["rows"], found["columns"]) if found else (None, None)
        path, offset = self.split(found["address"] if found else address)
        known = self.files.get(path)
        if known is None:
            if len(self.files) >= _OPEN_FILES:
                self.files.pop(next(iter(self.files)))
            known = self.files[path] = open_file(path)
        cursor = Cursor(known.data, known.name, offset)
        if offset > len(cursor.data):
            cursor.fail(f"expected a value, the file has {len(cursor.data)} bytes")
        cursor.detect_binary()
        value = read(cursor)
        return value if rows is None else _cut(value, rows, columns, address)

    @staticmethod
    def split(address: str) -> tuple[str, int]:
        found = _OFFSET.match(address)
        return (found["path"], int(found["offset"])) if found else (address, 0)


def _cut(value: Any, rows: str, columns: str | None, address: str) -> Any:
    """Rows and columns of a matrix; Kaldi's ranges include their last index."""
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        raise DataError(f"{address}: a range of rows, but the value is no matrix")
    picked = value[_slice(rows, value.shape[0], address)]
    return picked if columns is None else picked[:, _slice(columns, value.shape[1], address)]


def _slice(text: str, size: int, address: str) -> slice:
    first, last = (int(part) if part else None for part in text.split(":"))
    begin, end = first or 0, size if last is None else last + 1
    if not 0 <= begin < end <= size:
        raise DataError(f"{address}: the range {text} lies not in 0:{size - 1}")
    return slice(begin, end)


def _read_script(path: str, read: Reader[Value]) -> Iterator[tuple[str, Value]]:
    addresses = _Addresses()
    folder = Path(path).parent
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
        beside = folder / address
        place = os.fspath(beside) if _exists(os.fspath(beside)) else address
        try:
            yield key, addresses.read(place, read)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from error


def _exists(address: str) -> bool:
    try:
        return Path(_Addresses.split(address.split("[")[0])[0]).exists()
    except (OSError, ValueError):  # a name too long for the system, or with a zero byte
        return False
