"""JSON whose value fits beside its file: what a text becomes is estimated before it is parsed.

A value of two letters becomes an object of fifty to a hundred bytes, so that a megabyte of brackets would take thirty.
What the package writes holds long names, or stands in a file of megabytes, and stays far below.
"""

from __future__ import annotations

import re
from typing import Any

from fsachain.errors import DataError
from fsachain.files import parse_json

# A table of one entry has 232 bytes, each further one up to 110; a list 56, and four places when it grows; a string 50.
_BYTES = {b"{": 190, b"[": 60, b":": 50, b'"': 30, b",": 36}
_WIDE = re.compile(rb"[\x80-\xff]|\\u")  # then a letter of a string takes up to four bytes
_FREE = 900_000  # bytes that every value may take


def value_bytes(text: bytes) -> int:
    """At most so much memory is taken while the text is parsed, the text as a string included."""
    width = 4 if _WIDE.search(text) else 1
    return sum(size * text.count(mark) for mark, size in _BYTES.items()) + 2 * width * len(text)


def missing_bytes(text: bytes, file_size: int) -> int:
    """How much larger a file would have to be for its text to take no more than twice the file, and 900 kB."""
    return max(0, (value_bytes(text) - _FREE) // 2 - file_size)


def parse_beside(text: bytes, file_size: int, name: str) -> Any:
    """The value of a JSON text from a file of so many bytes; `name` begins the message of an error.

    Raises:
        DataError: as `parse_json`, or the text has so many values that they would not fit.
    """
    if missing_bytes(text, file_size):
        raise DataError(
            f"{name}: {len(text)} bytes of JSON may become {value_bytes(text)} bytes of values; expected at most "
            f"{2 * file_size + _FREE} in a file of {file_size}"
        )
    return parse_json(text, name)
