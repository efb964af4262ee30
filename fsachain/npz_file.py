"""Arrays from npz files that nobody vouches for: no pickles, and no more memory than the file can account for."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Container
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fsachain.errors import DataError

MAX_UNPACKED_BYTES = 1 << 34
MAX_RATIO = 200  # of unpacked to packed bytes; graphs have about 10, a bomb 1000
_FREE_BYTES = 1 << 24  # that any file may unpack to
_LARGEST_READ = 70_000  # bytes: a directory of a thousand members; zipfile makes half a kilobyte of 46 bytes
_PIECE = 1 << 16  # bytes of an array that are read at once
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others unpack as much at once as they like
_LONGEST_HEADER = 1024
_HEADER = re.compile(
    rb"\{'descr': '(?P<endian>[<>|=])(?P<kind>[biufcUSO])(?P<width>\d{0,9})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,18}(?:, ?|(?=\)))){0,32})\), \}[ \n]*"
)


def read_npz(
    path: str | os.PathLike[str], names: Container[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file by name; with `names`, only those of them that are there.

    Sizes are compared before anything is unpacked: what the members claim with the file's own size, and what each
    array claims with its member's.

    Raises:
        DataError: the file cannot be read, is damaged (every member has a CRC-32), holds objects, or claims sizes
            that it cannot have.
    """
    name = os.fspath(path)
    try:
        with _SmallReads(io.FileIO(name)) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_sizes(name, members, os.fstat(file.fileno()).st_size)
            found = ((member.filename.removesuffix(".npy"), member) for member in members)
            return {
                key: _array(name, archive, member) for key, member in found if names is None or key in names
            }
    except DataError:
        raise
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, MemoryError) as error:
        raise DataError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (zipfile.BadZipFile, zlib.error, struct.error, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{name}: no npz file, or damaged ({error})") from error


class _SmallReads(io.BufferedReader):
    """A file whose directory zipfile can only read if it is short."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _LARGEST_READ:
            raise DataError(
                f"{self.name}: claims a directory of {size} bytes; expected at most {_LARGEST_READ}"
            )
        return super().read(size)


def _check_sizes(name: str, members: list[zipfile.ZipInfo], size: int) -> None:
    claimed = sum(member.file_size for member in members)
    allowed = min(MAX_UNPACKED_BYTES, max(_FREE_BYTES, MAX_RATIO * size))
    if claimed > allowed:
        raise DataError(
            f"{name}: claims {len(members)} arrays of {claimed} bytes together; expected at most {allowed}, of a "
            f"file of {size} bytes"
        )
    if any(member.compress_type not in _PLAIN for member in members):
        raise DataError(f"{name}: an array is packed in another way than by deflating")
    if len({member.filename for member in members}) < len(members):
        raise DataError(f"{name}: two arrays have the same name")


def _array(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(member) as stream:
        where = f"{name}: the array {member.filename!r}"
        shape, order, dtype = _header(where, stream)
        size, left = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if size != left:
            raise DataError(f"{where} claims {size} bytes, its member has {left}")
        content = bytearray(size)
        filled = 0
        while piece := stream.read(_PIECE):  # up to the claimed size and no further; the end checks the CRC
            content[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled != size:
            raise DataError(f"{where} is cut short")
        return np.ndarray(shape, dtype, buffer=content, order=order)


def _header(where: str, stream: IO[bytes]) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any]]:
    """Shape, order and type of a plain array. NumPy's own parser evaluates the header as Python source."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{where} has version {version} of the npy format")
    length = int.from_bytes(stream.read(2 * version[0]), "little")
    found = _HEADER.fullmatch(stream.read(length)) if length <= _LONGEST_HEADER else None
    if found is None:
        raise DataError(f"{where} has a header of another kind than plain arrays have")
    if found["kind"] == b"O":
        raise DataError(f"{where} holds Python objects, which are not read")
    dtype = np.dtype((found["endian"] + found["kind"] + found["width"]).decode())
    shape = tuple(int(length) for length in found["shape"].replace(b",", b" ").split())
    return shape, "F" if found["fortran"] == b"True" else "C", dtype
