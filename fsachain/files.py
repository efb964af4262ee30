"""Files that survive a kill: all or nothing, one owner for a folder; and JSON that cannot hurt its reader."""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from fsachain.errors import ConfigError, DataError, FsachainError

PARTIAL = ".partial"  # ends the name of a file that is being written
LOCK = ".lock"
MAX_JSON_BYTES = 1 << 28
LONGEST_LINE = 1 << 18  # bytes: a line of text becomes many small objects before anybody looks at them
_PIECE = 1 << 14  # bytes
_LONGEST_NAME = 200  # file systems allow 255 bytes, of which the mark and a random part take some
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # file systems that cannot, or need not


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write, which takes the name `path` when the block ends without an error.

    Readers see the old file or all of the new one, and so does whoever comes after a kill or a power cut: the
    data reach the disk before the name is given, the name before the block is left. After an error the old file
    is as it was and nothing else is left. A link under this name is replaced, never followed.

    Raises:
        OSError: as from the system (disk full, read-only); it names the file.
    """
    target = Path(path)
    mark = f".{secrets.token_hex(6)}{PARTIAL}"
    partial = target.with_name(f".{target.name[:_LONGEST_NAME]}{mark}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, 0o666), "wb") as file:
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
    """Errors of the system inside the block that name no file, such as that of a full disk, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text to `path`, as `replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until names given in the folder are on the disk."""
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

    Args:
        folder: an absent one has none.
        older_than: seconds; younger files may have a writer that lives.
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
    """Own the folder while the block runs; the system takes the lock back when the process ends, however it ends.

    Args:
        folder: made if absent.
        purpose: of the owner, for the message, such as "a training".

    Raises:
        ConfigError: another process owns it.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{place}: {purpose} is running in this folder; choose another or wait"
            ) from None
        except OSError:  # a network file system without locks: then nobody checks
            pass
        yield
    finally:
        os.close(descriptor)


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text; `name` begins the message of an error.

    Raises:
        DataError: the text is too long, nested too deep, has a number too long, or is no JSON.
    """
    if len(text) > MAX_JSON_BYTES:
        raise DataError(f"{name}: {len(text)} bytes of JSON; expected at most {MAX_JSON_BYTES}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{name}: the JSON is nested too deep") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: no JSON ({error})") from error


def binary_lines(path: str | os.PathLike[str], *, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes with their end) of each line of a file, which is never in memory as a whole.

    Raises:
        DataError: the file cannot be read, or a line has more than `longest` bytes.
    """
    try:
        with Path(path).open("rb") as file:
            number = 0
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise DataError(f"{path}:{number}: a line of more than {longest} bytes")
                yield number, line
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def check_text(line: bytes, where: str) -> None:
    """Refuse what `line_text` refuses, a piece at a time: one wide letter makes a line of text four times as large.

    Raises:
        DataError: as `line_text`.
    """
    try:
        for _ in codecs.iterdecode(_pieces(line), "utf-8"):
            pass
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not a line of UTF-8 text ({error})") from error
    if line.startswith(codecs.BOM_UTF8):
        raise DataError(f"{where}: a byte order mark; save the file without")
    if b"\0" in line:
        raise DataError(f"{where}: a zero byte; expected text")


def _pieces(line: bytes) -> Iterator[bytes]:
    return (line[begin : begin + _PIECE] for begin in range(0, len(line), _PIECE))


def line_text(line: bytes, where: str) -> str:
    """A line as text.

    Raises:
        DataError: `where`, and that the line is no UTF-8, begins with a byte order mark, or has a zero byte.
    """
    check_text(line, where)
    return line.decode("utf-8")


def text_lines(
    path: str | os.PathLike[str], error: type[FsachainError] = DataError, *, longest: int = LONGEST_LINE
) -> Iterator[tuple[int, list[str]]]:
    """(number from 1, fields between white space) of each line of UTF-8 text that is not blank.

    Args:
        path: the file, read line by line. Lines end in a line feed, or carriage return and line feed.
        error: what is raised.
        longest: bytes that a line may have. While it is split it takes up to thirty times as many.

    Raises:
        FsachainError: of that class: as `binary_lines` and `line_text`.
    """
    try:
        for number, line in binary_lines(path, longest=longest):
            if fields := line_text(line, f"{path}:{number}").split():
                yield number, fields
    except DataError as reason:
        if isinstance(reason, error):
            raise
        raise error(str(reason)) from reason
