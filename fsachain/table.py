"""The form of an acceptor that the recursions read: arcs sorted three ways, pdfs remapped to the active ones.

Alpha gathers arcs by destination, beta by source, occupancy by pdf: each sum then has one fixed order, and no two
workers write to one place. The arcs of each view are one CSR matrix; `offsets[k]:offsets[k + 1]` are the arcs of row k.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, GraphError, ShapeError, brief, counted, integer
from fsachain.files import parse_json, read_npz, replacing
from fsachain.fsa import Floats, Fsa, Ints
from fsachain.opaque import opaque


@opaque
@dataclass(frozen=True, eq=False)
class ArcView:
    """Arcs grouped by one of their ends or by pdf; within a row in the caller's order.

    Attributes:
        offsets: int64 [rows + 1], row k holds arcs offsets[k] to offsets[k + 1] - 1; the last entry is the arc count.
        src, dst: int32 [arcs], states.
        column: int32 [arcs], index into `TransitionTable.active_pdfs`, not a pdf.
        log_prob: float64 [arcs].
        arc: int32 [arcs], the arc's number in the caller's Fsa.
    """

    offsets: npt.NDArray[np.int64]
    src: Ints
    dst: Ints
    column: Ints
    log_prob: Floats
    arc: Ints

    __repr__ = brief


@opaque
@dataclass(frozen=True, eq=False)
class TransitionTable:
    """An acceptor compiled for the recursions; make it with `compile_table`.

    Attributes:
        num_states, num_arcs: S and A of the caller's Fsa; its state and arc numbers are kept.
        num_pdfs: the least width of the network output that the table fits.
        active_pdfs: int32 [K], ascending, the pdfs that some arc carries.
        by_dst, by_src, by_column: the same arcs (weight > -inf) as three `ArcView`s with S, S and K rows.
        initial_log_prob: float64 [S], alpha(0, i) of equation (1).
        final_log_prob: float64 [S], equation (4).
        leaky_log_prob: float64 [S], log init of equation (3), or None where no leak is possible.
    """

    num_states: int
    num_arcs: int
    num_pdfs: int
    active_pdfs: Ints
    by_dst: ArcView
    by_src: ArcView
    by_column: ArcView
    initial_log_prob: Floats
    final_log_prob: Floats
    leaky_log_prob: Floats | None = None

    def __repr__(self) -> str:
        return (
            f"TransitionTable({counted(self.num_states, 'state')}, {counted(self.num_arcs, 'arc')}, "
            f"{counted(len(self.active_pdfs), 'active pdf')})"
        )

    @property
    def leak_target(self) -> Floats:
        """Log init [S], where a leak lands; -inf everywhere for a table without one, which is never run with a leak."""
        return np.full(self.num_states, -np.inf) if self.leaky_log_prob is None else self.leaky_log_prob

    def with_arc_log_probs(self, log_prob: Floats) -> TransitionTable:
        """The same arcs with other weights, `log_prob` [A] in the caller's arc order; -inf, NaN and +inf as in `Fsa`.

        An arc that was compiled away because its weight was -inf stays away.
        """
        log_prob = np.asarray(log_prob, dtype=np.float64)
        if log_prob.shape != (self.num_arcs,):
            raise ShapeError(
                f"arc log-probabilities have shape {list(log_prob.shape)}; expected [{self.num_arcs}]"
            )
        bad = np.flatnonzero(np.isnan(log_prob) | (log_prob == np.inf))
        if bad.size:
            raise GraphError(
                f"arc log-probability {bad[0]} = {log_prob[bad[0]]}; expected a finite number or -inf"
            )
        return replace(
            self,
            by_dst=replace(self.by_dst, log_prob=log_prob[self.by_dst.arc]),
            by_src=replace(self.by_src, log_prob=log_prob[self.by_src.arc]),
            by_column=replace(self.by_column, log_prob=log_prob[self.by_column.arc]),
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By name, those of a view as in "by_dst.src", in the order of files; without those that are None."""
        return {
            name: np.asarray(array, dtype)
            for name, dtype, _ in _LAYOUT
            if (array := attrgetter(name)(self)) is not None
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write an npz file that `load` reads back to an equal table."""
        arrays: dict[str, Any] = {"format": np.array(_NPZ_FORMAT)}
        arrays |= {name: getattr(self, name) for name in _SIZES} | self.arrays()
        with replacing(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> TransitionTable:
        """Read what `save` wrote.

        Raises:
            DataError: the file is not such a table.
        """
        try:
            arrays = read_npz(path)
            if str(arrays["format"]) != _NPZ_FORMAT:
                raise ValueError(f"format {arrays['format']}")
            return _of_arrays(arrays, *(int(arrays[name]) for name in _SIZES))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a saved TransitionTable ({error})") from error


_NPZ_FORMAT = "fsachain.TransitionTable/1"
_SIZES = ("num_states", "num_arcs", "num_pdfs")


def _layout() -> Iterator[tuple[str, npt.DTypeLike, str]]:
    """Name, type and length of the arrays of a table, in the order of files; the last is absent where there is no leak."""
    yield "active_pdfs", "<i4", "columns"
    for view, rows in (("by_dst", "states"), ("by_src", "states"), ("by_column", "columns")):
        yield f"{view}.offsets", "<i8", f"{rows} + 1"
        for part in ("src", "dst", "column", "arc"):
            yield f"{view}.{part}", "<i4", "kept arcs"
        yield f"{view}.log_prob", "<f8", "kept arcs"
    for name in ("initial_log_prob", "final_log_prob", "leaky_log_prob"):
        yield name, "<f8", "states"


_LAYOUT = [(name, np.dtype(kind), length) for name, kind, length in _layout()]


def _lengths(states: int, columns: int, kept: int) -> dict[str, int]:
    numbers = {"states": states, "columns": columns, "kept arcs": kept}
    return numbers | {"states + 1": states + 1, "columns + 1": columns + 1}


def _of_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], num_states: int, num_arcs: int, num_pdfs: int
) -> TransitionTable:
    """The table of arrays from a file, by the names of `_LAYOUT`.

    A ValueError unless they have their types and lengths and every index points into the table: a wrong one could send a
    kernel out of its arrays.
    """
    num_columns, num_kept = len(arrays["active_pdfs"]), len(arrays["by_dst.arc"])
    ends = {
        "active_pdfs": num_pdfs,
        "src": num_states,
        "dst": num_states,
        "column": num_columns,
        "arc": num_arcs,
    }
    parts: dict[str, dict[str, Any]] = {"": {}, "by_dst": {}, "by_src": {}, "by_column": {}}
    lengths = _lengths(num_states, num_columns, num_kept)
    for name, dtype, length_of in _LAYOUT:
        if name == "leaky_log_prob" and name not in arrays:
            continue
        values, length = arrays[name], lengths[length_of]
        if values.ndim != 1 or values.dtype != dtype or len(values) != length:
            raise ValueError(f"{name} is {values.dtype} {list(values.shape)}; expected {dtype} [{length}]")
        view, _, part = name.rpartition(".")
        end = ends.get(part)
        if end is not None and values.size and not 0 <= values.min() <= values.max() < end:
            raise ValueError(f"{name} reaches from {values.min()} to {values.max()}; expected [0, {end})")
        if part == "offsets" and (
            values[0] != 0 or values[-1] != num_kept or np.any(values[1:] < values[:-1])
        ):
            raise ValueError(f"{name} do not share out the arcs")
        parts[view][part] = values
    own: dict[str, Any] = parts.pop("") | {view: ArcView(**columns) for view, columns in parts.items()}
    return TransitionTable(num_states, num_arcs, num_pdfs, **own)


def compile_table(fsa: Fsa, num_pdfs: int | None = None, *, name: str | None = None) -> TransitionTable:
    """Sort the arcs of `fsa` three ways and remap its pdfs to the active ones.

    Arcs of weight -inf are dropped; states and arcs keep their numbers. The start state alone is initial.

    Args:
        fsa: the acceptor.
        num_pdfs: P, the width of the network output; None takes the largest pdf + 1.
        name: utterance or file, for errors.

    Raises:
        GraphError: a pdf is not below `num_pdfs`.
    """
    num_pdfs = None if num_pdfs is None else integer("num_pdfs", num_pdfs, GraphError)
    if num_pdfs is not None and num_pdfs < 0:
        raise GraphError(f"num_pdfs = {num_pdfs}; expected the width of the network output")
    least = int(fsa.pdf.max(initial=-1)) + 1
    if num_pdfs is not None and least > num_pdfs:
        arc = int(np.argmax(fsa.pdf))
        where = "" if name is None else f"{name}: "
        raise GraphError(
            f"{where}pdf {fsa.pdf[arc]} on arc {arc} out of state {fsa.src[arc]}; expected pdfs in [0, {num_pdfs})"
        )
    arcs = np.flatnonzero(fsa.log_prob > -np.inf)
    active, column = np.unique(fsa.pdf[arcs], return_inverse=True)
    initial = np.full(fsa.num_states, -np.inf)
    initial[fsa.start] = 0.0
    return TransitionTable(
        num_states=fsa.num_states,
        num_arcs=fsa.num_arcs,
        num_pdfs=least if num_pdfs is None else num_pdfs,
        active_pdfs=active.astype(np.int32),
        by_dst=_view(fsa, arcs, column, fsa.dst[arcs], fsa.num_states),
        by_src=_view(fsa, arcs, column, fsa.src[arcs], fsa.num_states),
        by_column=_view(fsa, arcs, column, column, len(active)),
        initial_log_prob=initial,
        final_log_prob=fsa.final_log_prob,
    )


def _view(
    fsa: Fsa, arcs: npt.NDArray[np.int64], column: npt.NDArray[Any], key: npt.NDArray[Any], rows: int
) -> ArcView:
    order = np.argsort(key, kind="stable")
    arcs = arcs[order]
    return ArcView(
        offsets=np.searchsorted(key[order], np.arange(rows + 1)).astype(np.int64),
        src=fsa.src[arcs],
        dst=fsa.dst[arcs],
        column=column[order].astype(np.int32),
        log_prob=fsa.log_prob[arcs],
        arc=arcs.astype(np.int32),
    )


# Many compiled tables in one file: any table by its name, without reading the others.
#
# Layout, little-endian, every part at a multiple of 8 bytes:
#
#     header     64 bytes: mark, version, place and size of the index, its CRC-32, number of tables
#     bodies     the arrays of one table after another
#     index      per table place, size, CRC-32 and sizes; all names and the facts, as JSON
#
# A table is read and checked whenever it is asked for: its CRC-32, and that every number in it points into the table, so
# that a damaged file cannot send a kernel out of its arrays.

VERSION = 1
_MARK = b"fsachain tables\n"
# Mark, version, CRC of the index, its place and size, number of tables.
_HEADER = struct.Struct("<16sIIQQQ16x")
_BODY_SIZES = (*_SIZES, "num_columns", "num_kept")
_ENTRY = np.dtype(
    [
        ("place", "<u8"),
        ("size", "<u8"),
        ("crc", "<u4"),
        ("has_leak", "<u4"),
        *((n, "<i8") for n in _BODY_SIZES),
    ]
)
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
    entries: dict[str, tuple[int, ...]] = {}
    with replacing(path) as file:
        file.write(bytes(_HEADER.size))
        for name, table in tables.items() if isinstance(tables, Mapping) else tables:
            if name in entries:
                raise DataError(f"{path}: the table {name!r} is given twice")
            body = b"".join(_padded(array) for array in table.arrays().values())
            columns, kept = len(table.active_pdfs), len(table.by_dst.arc)
            sizes = (table.num_states, table.num_arcs, table.num_pdfs, columns, kept)
            has_leak = int(table.leaky_log_prob is not None)
            entries[name] = (file.tell(), len(body), zlib.crc32(body), has_leak, *sizes)
            file.write(body)
        record = {"names": list(entries), "facts": dict(facts or {})}
        index = np.array(list(entries.values()), dtype=_ENTRY).tobytes()
        index += json.dumps(record, ensure_ascii=False).encode("utf-8")
        place = file.tell()
        file.write(index)
        file.seek(0)
        file.write(_HEADER.pack(_MARK, VERSION, zlib.crc32(index), place, len(index), len(entries)))
    return len(entries)


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
                raise DataError(
                    f"{self.path}: {counted(size, 'byte', verb='are')} no file of compiled tables"
                )
            mark, version, crc, place, length, count = _HEADER.unpack(header)
            index = _read_at(file, length, place) if place + length == size else b""
        if mark != _MARK:
            raise DataError(f"{self.path}: no file of compiled tables (it does not begin as one)")
        if version != VERSION:
            raise DataError(
                f"{self.path}: version {version} of the format; expected {VERSION}, compile the tables anew"
            )
        if len(index) < max(length, count * _ENTRY.itemsize) or zlib.crc32(index) != crc:
            raise DataError(
                f"{self.path}: the index of {counted(count, 'table')} at byte {place} is damaged or cut short"
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
            raise DataError(
                f"{self.path}: the index has {counted(len(self._number), 'name')} for {counted(count, 'table')}"
            )

    def __getitem__(self, name: str) -> TransitionTable:
        entry = self._entries[self._number[name]]
        with self._opened() as file:
            body = self._body(file, entry, name)
        try:
            return _parse(body, entry)
        except ValueError as error:
            raise self._damage(entry, name, f" ({error})") from error

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
        body = _read_at(file, size, place) if fits else b""
        if len(body) != size or zlib.crc32(body) != entry["crc"]:
            raise self._damage(entry, name)
        return memoryview(body)

    def _damage(self, entry: Any, name: str, reason: str = "") -> DataError:
        return DataError(f"{self.path}, byte {entry['place']}: the table {name[:80]!r} is damaged{reason}")


def _read_at(file: BinaryIO, size: int, place: int) -> bytes:
    file.seek(place)
    return file.read(size)


def _short(name: Any) -> str:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise ValueError(f"expected names of at most {_LONGEST_NAME} letters")
    return name


def _parse(body: memoryview, entry: Any) -> TransitionTable:
    sizes = (int(entry[name]) for name in _BODY_SIZES)
    num_states, num_arcs, num_pdfs, num_columns, num_kept = sizes
    lengths = _lengths(num_states, num_columns, num_kept)
    arrays, place = dict[str, npt.NDArray[Any]](), 0
    for name, dtype, length_of in _LAYOUT[: None if entry["has_leak"] else -1]:
        length = lengths[length_of]
        size = length * dtype.itemsize
        if not 0 <= size <= len(body) - place:
            raise ValueError(f"{counted(length, 'number', verb='do')} not fit")
        arrays[name] = np.frombuffer(body, dtype, length, place)
        place += size + -size % _CHUNK
    return _of_arrays(arrays, num_states, num_arcs, num_pdfs)
