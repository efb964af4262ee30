"""The bytes of a Kaldi file, read with bounds: basic types in binary and text form.

Kaldi marks binary content by a zero byte and `B`; without the mark it is text. Binary numbers carry their own
width in one byte before them (negative: unsigned), tokens end in one space. Text is tokens between white
space. A `Cursor` reads either form by the same calls, so a parser is written once.

Nothing here trusts a count in a file: bytes are taken from what is there, and what is missing is an error that
names the file and the offset.

Why not kaldi-native-io and kaldifst: they take sizes from headers as they stand, run commands that stand in place of
file names, end the process at an FST of log64 arcs, and read neither trees, transition models, topologies nor chain
examples. They are used where we write.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
import re
import stat
import struct
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, counted
from fsachain.files import line_text

BINARY_MARK = b"\0B"
MAX_UNPACKED_BYTES = 1 << 32  # of a compressed file: a small file can claim to unpack to anything
LONGEST_TOKEN = 4096
LONGEST_LINE = 1 << 14  # bytes of a line of a few fields
LONGEST_LIST = 1 << 26  # of a line of numbers, one for each frame
MAX_DIGITS = 18  # of an id: int() of thousands of digits is an error of its own
_INTEGERS = {
    4: struct.Struct("<i"),
    8: struct.Struct("<q"),
    252: struct.Struct("<I"),
    248: struct.Struct("<Q"),
}
_REALS = {4: struct.Struct("<f"), 8: struct.Struct("<d")}
Number = TypeVar("Number", int, float)
_SPACE = re.compile(rb"\s*")
_LINE = re.compile(rb"[^\n]*")
_TOKEN = re.compile(rb"\S{1,%d}" % LONGEST_TOKEN)
_UNPACKED_AT_ONCE = 1 << 16


class Cursor:
    """A place in the bytes of one file, whose `name` is for messages.

    `position` is the offset of the next byte; `binary`, which `detect_binary` sets, says which form is read.
    """

    def __init__(self, data: memoryview | bytes | bytearray, name: str, position: int = 0) -> None:
        self.data = memoryview(data)
        self.name = name
        self.position = position
        self.binary = False

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise DataError with file and offset, by default where the cursor stands."""
        raise DataError(f"{self.name}, byte {self.position if position is None else position}: {message}")

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, count: int, what: str) -> memoryview:
        if not 0 <= count <= self.left:
            self.fail(f"{what} takes {counted(count, 'byte')}, {self.left} are left")
        begin = self.position
        self.position += count
        return self.data[begin : self.position]

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, or as many as are left, without moving."""
        return bytes(self.data[self.position : self.position + count])

    def array(self, dtype: npt.DTypeLike, count: int, what: str) -> npt.NDArray[Any]:
        """A copy of `count` packed elements."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(count * kind.itemsize, what), dtype=kind).copy()

    def detect_binary(self) -> None:
        """Take the binary mark if it is there, and read in that form from now on."""
        self.binary = self.peek(2) == BINARY_MARK
        if self.binary:
            self.position += 2

    def skip_space(self) -> None:
        self.position = _SPACE.match(self.data, self.position).end()  # type: ignore[union-attr]

    def token(self, what: str = "a token") -> str:
        """The next token and the white space that ends it."""
        if not self.binary:
            self.skip_space()
        begin = self.position
        found = _TOKEN.match(self.data, begin)
        if found is None or len(found[0]) == LONGEST_TOKEN:
            self.fail(f"expected {what}, {'nothing' if found is None else 'a token too long'} is here")
        self.position = min(found.end() + 1, len(self.data))
        try:
            return str(found[0], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"expected {what}, found {bytes(found[0][:16])!r}", begin)

    def expect(self, *tokens: str) -> str:
        begin = self.position
        found = self.token(" or ".join(tokens))
        if found not in tokens:
            self.fail(f"expected {' or '.join(tokens)}, found {found[:40]!r}", begin)
        return found

    def peek_token(self) -> str:
        """The next token, without moving; empty at the end of the file."""
        begin = self.position
        if not self.left or (not self.binary and not bytes(self.data[begin : begin + 256]).strip()):
            return ""
        found = self.token()
        self.position = begin
        return found

    def integer(self, what: str, lowest: int = -(2**31), highest: int = 2**31 - 1) -> int:
        begin = self.position
        value = self._number(what, "an integer", _INTEGERS, int)
        if not lowest <= value <= highest:
            self.fail(f"{what} = {value}: expected {lowest} to {highest}", begin)
        return value

    def real(self, what: str) -> float:
        """One float or double; NaN is refused."""
        begin = self.position
        value = self._number(what, "a real number", _REALS, float)
        if math.isnan(value):
            self.fail(f"{what} is NaN", begin)
        return value

    def _number(
        self, what: str, kind: str, formats: dict[int, struct.Struct], parse: Callable[[str], Number]
    ) -> Number:
        begin = self.position
        if not self.binary:
            text = self.token(what)
            try:
                return parse(text)
            except ValueError:
                self.fail(f"{what}: expected {kind}, found {text[:40]!r}", begin)
        width = self.take(1, what)[0]
        if width not in formats:
            self.fail(f"{what}: expected {kind}, its width byte is {width}", begin)
        value: Number = formats[width].unpack(self.take(formats[width].size, what))[0]
        return value

    def boolean(self, what: str) -> bool:
        begin = self.position
        text = bytes(self.take(1, what)).decode("latin-1") if self.binary else self.token(what)
        if text not in ("T", "F"):
            self.fail(f"{what}: expected T or F, found {text[:40]!r}", begin)
        return text == "T"

    def integers(self, what: str) -> npt.NDArray[np.integer[Any]]:
        """A vector of integers: a width, a count and the packed elements; in text `[ 1 2 3 ]`.

        Its dtype is of the width in the file (8 bits: unsigned), in text int32.
        """
        if not self.binary:
            begin = self.position
            self.expect("[")
            fields = iter(lambda: self.token(what), "]")
            return self.int32(fields, f"{what}: expected integers up to a ]", begin)
        width = self.take(1, what)[0]
        if width not in (1, 2, 4, 8):
            self.fail(f"{what}: expected a vector of integers, its width byte is {width}", self.position - 1)
        count = int.from_bytes(self.take(4, what), "little", signed=True)
        return self.array(f"<i{width}" if width > 1 else "u1", count, what)

    def int32(self, fields: Iterable[str], what: str, begin: int) -> npt.NDArray[np.int32]:
        """The fields as integers of 32 bits; `begin` is the offset for errors."""
        values = array("i")
        for field in fields:
            try:
                values.append(int(field))
            except ValueError:
                self.fail(f"{what}, found {field[:40]!r}", begin)
            except OverflowError:
                self.fail(f"{what}, found {field[:40]}, which is beyond 32 bits", begin)
        return np.frombuffer(values, dtype=np.int32)

    def line(self, longest: int = LONGEST_LINE) -> str:
        """The rest of the line as text, stripped."""
        begin = self.position
        end = _LINE.match(self.data, begin).end()  # type: ignore[union-attr]
        if end - begin > longest:
            self.fail(f"a line of {counted(end - begin, 'byte')}; expected at most {longest}")
        self.position = min(end + 1, len(self.data))
        return line_text(bytes(self.data[begin:end]), f"{self.name}, byte {begin}").strip()


def open_file(path: str | os.PathLike[str]) -> Cursor:
    """The bytes of a file, mapped into memory; `.gz` is unpacked first, up to `MAX_UNPACKED_BYTES`.

    What is unpacked goes to a temporary file without a name, which goes with the cursor. Pipes and devices are refused,
    and so are shell commands, which are never run.
    """
    name = os.fspath(path)
    if name.strip().startswith("|") or name.strip().endswith("|"):
        raise DataError(f"{name}: a shell command; expected a file (commands in tables are not run)")
    try:
        if not stat.S_ISREG(Path(name).stat().st_mode):  # to open a pipe would wait for its writer
            raise DataError(f"{name}: no file that can be read at any place; expected a file on disk")
        with Path(name).open("rb") as file:
            return Cursor(_unpacked(file, name) if name.endswith(".gz") else _mapped(file), name)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read ({reason})") from error


def _mapped(file: IO[bytes]) -> memoryview | bytes:
    if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
        return b""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _unpacked(packed: IO[bytes], name: str) -> memoryview | bytes:
    with gzip.open(packed) as content, tempfile.TemporaryFile() as file:
        while piece := content.read(_UNPACKED_AT_ONCE):
            try:
                file.write(piece)
                file.flush()
            except OSError as error:
                where = tempfile.gettempdir()
                raise DataError(f"{name}: cannot be unpacked in {where} ({error.strerror})") from error
            if file.tell() > MAX_UNPACKED_BYTES:
                raise DataError(
                    f"{name}: unpacks to more than {MAX_UNPACKED_BYTES} bytes; unpack it yourself"
                )
        return _mapped(file)
