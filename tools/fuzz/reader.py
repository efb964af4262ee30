"""What a reader of files is for those who test it: a sound file, the function, and the memory that it may take.

A reader gives a value or raises one of fsachain's own errors; anything else (another exception, a crash, a hang, or
memory out of proportion to the file) is a fault of the reader.
"""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.fuzz.damage import Damage

MEMORY_FLOOR = 64_000_000  # what the smallest file may take
MEMORY_PER_BYTE = 20  # of the unpacked file, its value included


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        name: of the kind.
        suffix: of the file's name.
        write: writes a sound file at a path.
        read: reads a file, sound or not.
        reseal: changes a sound file inside, so that its checksums still hold; there may be several.
    """

    name: str
    suffix: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    reseal: tuple[Callable[[bytes, Damage], bytes], ...] = ()


def most_memory(path: Path) -> int:
    """Bytes that reading a file, sound or not, may take."""
    return MEMORY_FLOOR + MEMORY_PER_BYTE * unpacked_size(path)


def content(data: bytes) -> Callable[[Path], object]:
    """The writer of a file of these bytes."""
    return lambda path: path.write_bytes(data)


def unpacked_size(path: Path) -> int:
    """Bytes of a file without its compression, of recordings as 16-bit samples; as much as is there, whatever it claims."""
    size = 0
    with suppress(Exception):  # a damaged file: up to the damage
        for piece in _unpacked(path):
            size += len(piece)
    return max(size, path.stat().st_size)


def _unpacked(path: Path) -> Iterator[bytes]:
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with suppress(Exception), archive.open(member) as file:
                    yield from iter(partial(file.read, 1 << 16), b"")
    elif path.suffix == ".gz":
        with gzip.open(path) as file:
            yield from iter(partial(file.read, 1 << 16), b"")
    elif path.suffix == ".flac":
        import soundfile

        for block in soundfile.blocks(path, 1 << 15, dtype="int16"):
            yield block.tobytes()
