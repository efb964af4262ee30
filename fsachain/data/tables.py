"""Tables of lines `key value...`, the text files of which Kaldi's data directories consist."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from fsachain.errors import DataError
from fsachain.files import binary_lines, check_text
from fsachain.names import ByName, Names, Strings

LONGEST_KEY = 4096  # letters
_HEAD = 4 * (LONGEST_KEY + 1)  # bytes that a key is looked for in
_KEY = re.compile(r"\s*(\S+)")


class Table(ByName[tuple[int, str]]):
    """Line number (from 1) and stripped rest of the line by key, in file order; pairs are made on access."""

    def __init__(self) -> None:
        super().__init__(Names())
        self._numbers = array("I")
        self._rests = Strings()

    def add(self, number: int, key: str, rest: bytes) -> int:
        """One more line, with its rest as UTF-8; returns the number of the line that has the key first."""
        place = self.names.add(key)
        if place == len(self._numbers):
            self._numbers.append(number)
            self._rests.append_utf8(rest)
        return self._numbers[place]

    def at(self, place: int) -> tuple[int, str]:
        """Line number and rest of the line of a key."""
        return self._numbers[place], self._rests.at(place).strip()


def read_table(path: str | Path) -> Table:
    """Read a `key value...` table; empty lines are skipped.

    Raises:
        DataError: the file cannot be read, a line is no text, or a key occurs twice.
    """
    table = Table()
    for number, key, rest in table_lines(path, raise_fault):
        first = table.add(number, key, rest)
        if first != number:
            raise DataError(f"{path}:{number}: key {key!r} occurs twice, first on line {first}")
    return table


def table_lines(
    path: str | Path, refuse: Callable[[str | Path, int, str], None]
) -> Iterator[tuple[int, str, bytes]]:
    """(number from 1, key, the rest of the line as UTF-8 without spaces at its ends) of each line that is not blank.

    Args:
        path: the file.
        refuse: told of a line that is not UTF-8, has a byte order mark or zero byte, or a key of more than `LONGEST_KEY`
            letters: the file, the line number and what is wrong. If it returns, the line is left out.

    Raises:
        DataError: the file cannot be read.
    """
    for number, line in binary_lines(path):
        where = f"{path}:{number}"
        try:
            check_text(line, where)
            key, begin = _key(line)
        except DataError as error:
            refuse(path, number, str(error).removeprefix(f"{where}: "))
            continue
        if key:
            yield number, key, line[begin:].strip()


def raise_fault(path: str | Path, number: int, why: str) -> None:
    """The `refuse` of readers that stop at the first fault."""
    raise DataError(f"{path}:{number}: {why}")


def _key(line: bytes) -> tuple[str, int]:
    """The key of a line and how many bytes it ends after; the rest, which may be long, stays in bytes."""
    text = line[:_HEAD].decode("utf-8", "ignore")
    found = _KEY.match(text)
    if found is None and len(line) <= _HEAD:
        return "", 0
    if found is None or found.end() > LONGEST_KEY:
        raise DataError(f"no key in its first {LONGEST_KEY} letters")
    return found[1], len(text[: found.end()].encode("utf-8"))
