"""What a reader of files is for those who test it: a sound file, the function, and the memory that it may take.

A reader gives a value or raises one of fsachain's own errors; anything else (another exception, a crash, a hang, or
memory out of proportion to the file) is a fault of the reader.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz.damage import Damage

MEMORY_FLOOR, MEMORY_PER_BYTE = 64_000_000, 20


@dataclass(frozen=True)
class Reader:
    name: str
    suffix: str
    write: Callable[[Path], object]  # writes a sound file at a path
    read: Callable[[Path], object]  # reads a file, sound or not
    # changes a sound file inside, so that its checksums still hold; there may be several
    reseal: tuple[Callable[[bytes, Damage], bytes], ...] = ()


class OutOfProportion(Exception):
    """A reader took more memory than its file accounts for."""


@contextmanager
def within(num_bytes: float) -> Iterator[None]:
    """What is done inside may take so much memory of Python's, as it is counted."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > num_bytes:
        raise OutOfProportion(f"{peak} bytes; expected at most {num_bytes:.0f}")


def most_memory(path: Path) -> int:
    """Bytes that reading a file, sound or not, may take."""
    return MEMORY_FLOOR + MEMORY_PER_BYTE * path.stat().st_size


def content(data: bytes) -> Callable[[Path], object]:
    """The writer of a file of these bytes."""
    return lambda path: path.write_bytes(data)
