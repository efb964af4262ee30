"""Many compiled tables in one file: any table by its name, without reading the others.

Layout, little-endian, every part at a multiple of 8 bytes:

    header     64 bytes: mark, version, place and size of the index, its CRC-32, number of tables
    bodies     the arrays of one table after another
    index      per table place, size, CRC-32 and sizes; all names and the facts, as JSON

A table is read and checked whenever it is asked for: its CRC-32, and that every number in it points into the table, so
that a damaged file cannot send a kernel out of its arrays.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError
from fsachain.files import parse_json, replacing
from fsachain.table import ArcView, TransitionTable, check_indices

VERSION = 1
_MARK = b"fsachain tables\n"
# Mark, version, CRC of the index, its place and size, number of tables.
_HEADER = struct.Struct("<16sIIQQQ16x")
_ENTRY = np.dtype(
    [
        ("place", "<u8"),
        ("size", "<u8"),
        ("crc", "<u4"),
        ("has_leak", "<u4"),
        ("num_states", "<i8"),
        ("num_arcs", "<i8"),
        ("num_pdfs", "<i8"),
        ("num_columns", "<i8"),
        ("num_kept", "<i8"),
    ]
)
_VIEWS = ("by_dst", "by_src", "by_column")
_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_FLOAT64 = np.dtype("<f8")
_CHUNK = 8
_LONGEST_NAME = 1 << 14  # letters; that of a file has 255


def write_tables(
    path: str | os.PathLike[str],
    tables: Mapping[str, TransitionTable] | Iterable[tuple[str, TransitionTable]],
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Write tables by name, taken one at a time; returns their number. Readers see the old file, or all of the new one.

    `facts`, such as where the tables come from, are kept beside them as JSON.
    """
    with replacing(path) as file:
        return _write(
            file, tables.items() if isinstance(tables, Mapping) else tables, facts or {}, Path(path)
        )


def _write(
    file: Any, tables: Iterable[tuple[str, TransitionTable]], facts: Mapping[str, Any], path: Path
) -> int:
    file.write(bytes(_HEADER.size))
    place, names, entries = _HEADER.size, dict[str, None](), []
    for name, table in tables:
        if name in names:
            raise DataError(f"{path}: the table {name!r} is given twice")
        names[name] = None
        body = b"".join(_padded(array) for array in _arrays(table))
        columns, kept = len(table.active_pdfs), len(table.by_dst.arc)
        sizes = (table.num_states, table.num_arcs, table.num_pdfs, columns, kept)
        has_leak = int(table.leaky_log_prob is not None)
        entries.append((place, len(body), zlib.crc32(body), has_leak, *sizes))
        file.write(body)
        place += len(body)
    text = json.dumps({"names": list(names), "facts": dict(facts)}, ensure_ascii=False).encode("utf-8")
    index = np.array(entries, dtype=_ENTRY).tobytes() + text
    file.write(index)
    file.seek(0)
    file.write(_HEADER.pack(_MARK, VERSION, zlib.crc32(index), place, len(index), len(entries)))
    return len(entries)


def _arrays(table: TransitionTable) -> Iterator[npt.NDArray[Any]]:
    yield np.asarray(table.active_pdfs, _INT32)
    for name in _VIEWS:
        view: ArcView = getattr(table, name)
        yield np.asarray(view.offsets, _INT64)
        for field in ("src", "dst", "column", "arc"):
            yield np.asarray(getattr(view, field), _INT32)
        yield np.asarray(view.log_prob, _FLOAT64)
    yield np.asarray(table.initial_log_prob, _FLOAT64)
    yield np.asarray(table.final_log_prob, _FLOAT64)
    if table.leaky_log_prob is not None:
        yield np.asarray(table.leaky_log_prob, _FLOAT64)


def _padded(array: npt.NDArray[Any]) -> bytes:
    data = array.tobytes()
    return data + bytes(-len(data) % _CHUNK)


class TableFile(Mapping[str, TransitionTable]):
    """The tables of a file by name, in its order.

    A file of another version or with a damaged index is a DataError; `facts` are those that `write_tables` was given.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with self._opened() as file:
            size, header = os.fstat(file.fileno()).st_size, file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise DataError(f"{self.path}: {size} bytes are no file of compiled tables")
            mark, version, crc, place, length, count = _HEADER.unpack(header)
            index = os.pread(file.fileno(), length, place) if place + length == size else b""
        if mark != _MARK:
            raise DataError(f"{self.path}: no file of compiled tables (it does not begin as one)")
        if version != VERSION:
            raise DataError(
                f"{self.path}: version {version} of the format; expected {VERSION}, compile the tables anew"
            )
        if len(index) < max(length, count * _ENTRY.itemsize) or zlib.crc32(index) != crc:
            raise DataError(
                f"{self.path}: the index of {count} tables at byte {place} is damaged or cut short"
            )
        self._entries = np.frombuffer(index[: count * _ENTRY.itemsize], dtype=_ENTRY)
        record = parse_json(index[count * _ENTRY.itemsize :], self.path)
        try:
            self.facts: dict[str, Any] = dict(record["facts"])
            names = [_short(name) for name in record["names"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.path}: the index lacks names or facts ({error})") from error
        self._number = {name: number for number, name in enumerate(names)}
        if not len(self._number) == len(names) == count:
            raise DataError(f"{self.path}: the index has {len(self._number)} names for {count} tables")

    def __getitem__(self, name: str) -> TransitionTable:
        entry = self._entries[self._number[name]]
        with self._opened() as file:
            body = self._body(file, entry, name)
        try:
            table = _parse(body, entry)
            check_indices(table)
        except ValueError as error:
            raise self._damage(entry, name, f" ({error})") from error
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._number)

    def __len__(self) -> int:
        return len(self._number)

    def check_bodies(self) -> None:
        """Compare every table with its checksum; a DataError names the first that is damaged."""
        with self._opened() as file:
            for entry, name in zip(self._entries, self, strict=True):
                self._body(file, entry, name)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with Path(self.path).open("rb") as file:
                yield file
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _body(self, file: BinaryIO, entry: Any, name: str) -> memoryview:
        size, place = int(entry["size"]), int(entry["place"])
        fits = place + size <= os.fstat(file.fileno()).st_size
        body = os.pread(file.fileno(), size, place) if fits else b""
        if len(body) != size or zlib.crc32(body) != entry["crc"]:
            raise self._damage(entry, name)
        return memoryview(body)

    def _damage(self, entry: Any, name: str, reason: str = "") -> DataError:
        return DataError(f"{self.path}, byte {entry['place']}: the table {name[:80]!r} is damaged{reason}")


def _short(name: Any) -> str:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise ValueError(f"expected names of at most {_LONGEST_NAME} letters")
    return name


def _parse(body: memoryview, entry: Any) -> TransitionTable:
    place = 0

    def take(dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        nonlocal place
        size = count * dtype.itemsize
        if not 0 <= size <= len(body) - place:
            raise ValueError(f"{count} numbers do not fit")
        begin, place = place, place + size + -size % _CHUNK
        return np.frombuffer(body, dtype, count, begin)

    def view(rows: int) -> ArcView:
        offsets = take(_INT64, rows + 1)
        src, dst, column, arc = (take(_INT32, kept) for _ in range(4))
        return ArcView(offsets, src, dst, column, take(_FLOAT64, kept), arc)

    sizes = (int(entry[name]) for name in ("num_states", "num_arcs", "num_pdfs", "num_columns", "num_kept"))
    num_states, num_arcs, num_pdfs, columns, kept = sizes
    active = take(_INT32, columns)
    by_dst, by_src, by_column = (view(rows) for rows in (num_states, num_states, columns))
    vectors = [take(_FLOAT64, num_states) for _ in range(2 + bool(entry["has_leak"]))]
    return TransitionTable(num_states, num_arcs, num_pdfs, active, by_dst, by_src, by_column, *vectors)
