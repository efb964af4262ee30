"""Files written all or nothing, locks on folders, and JSON, text and npz files read with bounds."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import math
import os
import re
import secrets
import struct
import time
import zipfile
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fsachain.errors import ConfigError, DataError, FsachainError, counted

PARTIAL = ".partial"  # ends the name of a file that is being written
LOCK = ".lock"
MAX_JSON_BYTES = 1 << 28
LONGEST_LINE = 1 << 18  # bytes: a line of text becomes many small objects before anybody looks at them
GZIP = b"\x1f\x8b"  # begins a file that gzip packed
_UNPACKED_AT_ONCE = 1 << 20
_LONGEST_NAME = 200  # file systems allow 255 bytes, of which the mark and a random part take some
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # file systems that cannot, or need not
_NO_LOCKS = (
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)  # as of some network file systems


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write, which takes the name `path` when the block ends without an error; its folder is made.

    Readers see the old file or all of the new one, and so does whoever comes after a kill or a power cut: the
    data reach the disk before the name is given, the name before the block is left. After an error the old file
    is as it was and nothing else is left. A link under this name is replaced, never followed.
    """
    target = Path(path)
    mark = f".{secrets.token_hex(6)}{PARTIAL}"
    partial = target.with_name(f".{target.name[:_LONGEST_NAME]}{mark}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(partial)):
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """An OSError inside the block that names no file, such as that of a full disk, is made to name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """UTF-8, all or nothing as in `replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until renames in the folder are on the disk; Windows, which opens no folders, has nothing to wait for."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_partials(folder: str | os.PathLike[str], *, older_than: float = 0.0) -> int:
    """Delete what killed writers have left in the folder; returns the number of files.

    Files younger than `older_than` seconds stay: their writer may be alive. The folder may be absent.
    """
    count = 0
    for path in Path(folder).glob(f".*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime >= older_than:
                path.unlink()
                count += 1
    return count


@contextmanager
def locked(folder: str | os.PathLike[str], purpose: str) -> Iterator[None]:
    """Own the folder, which is made if absent, while the block runs; a ConfigError if another process owns it.

    The system takes the lock back when the process ends, however it ends. `purpose` is for the message, such as
    "a training".
    """
    import filelock

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(place / LOCK)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise ConfigError(f"{place}: {purpose} is running in this folder; choose another or wait") from None
    except (
        NotImplementedError
    ):  # older versions of filelock, for a file system without locks: then nobody checks
        pass
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text; errors are a DataError whose message begins with `name`."""
    if len(text) > MAX_JSON_BYTES:
        raise DataError(f"{name}: {counted(len(text), 'byte')} of JSON; expected at most {MAX_JSON_BYTES}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{name}: the JSON is nested too deep") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: no JSON ({error})") from error


@contextmanager
def without_collector() -> Iterator[None]:
    """For work that makes many objects which all stay: Python's collector would go through them again and again.

    It rests for the whole process, since there is but one: what other threads leave in cycles waits until the work is done.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()  # and back: what was made counts as old, without a look at each object of it
                gc.unfreeze()
            gc.enable()


def binary_lines(
    path: str | os.PathLike[str], *, longest: int = LONGEST_LINE, opened: Callable[..., Any] = open
) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes with their end) of each line of a file, which is never in memory as a whole.

    A line of more than `longest` bytes is a DataError. `opened` is `open`, or `gzip.open` for a packed file.
    """
    try:
        with opened(path, "rb") as file:
            number = 0
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise DataError(f"{path}:{number}: a line of more than {counted(longest, 'byte')}")
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def line_text(line: bytes, where: str) -> str:
    """A line as text: UTF-8 without a byte order mark or zero bytes; an error begins with `where`."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"not a line of UTF-8 text ({error})"
        if line.startswith(GZIP):
            found = "compressed by gzip; unpack it"
        elif line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            found = "UTF-16; save the file as UTF-8"
        raise DataError(f"{where}: {found}") from error
    if text.startswith("\ufeff"):
        raise DataError(f"{where}: a byte order mark; save the file without")
    if b"\0" in line:
        raise DataError(f"{where}: a zero byte; expected text")
    return text


def text_lines(
    path: str | os.PathLike[str], error: type[FsachainError] = DataError, *, longest: int = LONGEST_LINE
) -> Iterator[tuple[int, list[str]]]:
    """(number from 1, fields between white space) of each line that is not blank; the file is read line by line.

    Lines end in a line feed, or carriage return and line feed. `error` is the class of errors that are raised.
    """
    try:
        for number, line in binary_lines(path, longest=longest):
            is_checked = line.isascii() and b"\0" not in line
            text = line.decode() if is_checked else line_text(line, f"{path}:{number}")
            if fields := text.split():
                yield number, fields
    except DataError as reason:
        if isinstance(reason, error):
            raise
        raise error(str(reason)) from reason


def unpack(path: str | os.PathLike[str], into: str | os.PathLike[str], most: int) -> None:
    """Write what gzip packed into the file `path` to `into`; a DataError where that is damaged or more than `most` bytes."""
    size = 0
    try:
        with gzip.open(path) as packed, naming(into), Path(into).open("wb") as file:
            while piece := packed.read(_UNPACKED_AT_ONCE):
                size += len(piece)
                if size > most:
                    raise DataError(
                        f"{path}: unpacks to more than {counted(most, 'byte')}; unpack it yourself"
                    )
                file.write(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be unpacked ({getattr(error, 'strerror', None) or error})"
        ) from error


def most_unpacked(size: int) -> int:
    """How many bytes a packed file of `size` bytes may unpack to: no bomb, and any text or graph."""
    return min(MAX_UNPACKED_BYTES, max(_FREE_BYTES, MAX_RATIO * size))


def said_words(path: str | os.PathLike[str]) -> list[str]:
    """The words of a transcript that is a file of its own, as editors save it: UTF-8 or, with a byte order mark, UTF-16."""
    try:
        data = Path(path).read_bytes()
        if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            data = data.decode("utf-16").encode()
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    lines = data.removeprefix(BOM_UTF8).splitlines()
    return [word for n, line in enumerate(lines, 1) for word in line_text(line, f"{path}:{n}").split()]


# Arrays from untrusted npz files: no pickles, and no more memory than the file can account for.

MAX_UNPACKED_BYTES = 1 << 34
MAX_RATIO = 200  # of unpacked to packed bytes; graphs have about 10, a bomb 1000
_FREE_BYTES = 1 << 24  # that any file may unpack to
_MOST_ARRAYS = 1000
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
    array claims with its member's. Every member has a CRC-32. Errors of any kind are a DataError.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file, zipfile.ZipFile(file) as archive:
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


def _check_sizes(name: str, members: list[zipfile.ZipInfo], size: int) -> None:
    if len(members) > _MOST_ARRAYS:
        raise DataError(f"{name}: {counted(len(members), 'array')}; expected at most {_MOST_ARRAYS}")
    claimed = sum(member.file_size for member in members)
    allowed = most_unpacked(size)
    if claimed > allowed:
        raise DataError(
            f"{name}: claims {counted(len(members), 'array')} of {counted(claimed, 'byte')} together; "
            f"expected at most {allowed}, of a "
            f"file of {counted(size, 'byte')}"
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
            raise DataError(f"{where} claims {counted(size, 'byte')}, its member has {left}")
        content = bytearray(stream.read())  # up to the claimed size and no further; the end checks the CRC
        if len(content) != size:
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
