"""Symbol tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsachain.errors import DataError


class SymbolTable:
    """Symbols and their numbers, both ways, with `eps` as number 0.

    Args:
        pairs: (symbol, number) of each.
        eps: the symbol of number 0.

    Raises:
        DataError: a symbol or a number twice.
    """

    def __init__(self, pairs: list[tuple[str, int]] | None = None, eps: str = "<eps>") -> None:
        self.eps = eps
        self._sym2id: dict[str, int] = {}
        self._id2sym: dict[int, str] = {}
        for symbol, number in pairs or []:
            if symbol in self._sym2id or number in self._id2sym:
                raise DataError(f"symbol {symbol!r} with number {number} comes twice; expected each once")
            self._sym2id[symbol] = number
            self._id2sym[number] = symbol
        if 0 not in self._id2sym and eps not in self._sym2id:
            self._sym2id[eps] = 0
            self._id2sym[0] = eps

    @classmethod
    def from_str(cls, s: str) -> SymbolTable:
        """Return the table of a text with a symbol and a number a line.

        Raises:
            DataError: a line that does not fit.
        """
        pairs = []
        for line in s.strip().splitlines():
            fields = line.split()
            if len(fields) != 2 or not fields[1].lstrip("-").isdigit():
                raise DataError(f"line {line!r}; expected a symbol and a number")
            pairs.append((fields[0], int(fields[1])))
        return cls(pairs)

    @classmethod
    def from_file(cls, filename: str | Path) -> SymbolTable:
        """Return the table of a file, see `from_str`."""
        return cls.from_str(Path(filename).read_text(encoding="utf-8"))

    def to_file(self, filename: str | Path) -> None:
        """Write the table, by number."""
        lines = [f"{self._id2sym[number]} {number}\n" for number in self.ids]
        Path(filename).write_text("".join(lines), encoding="utf-8")

    def add(self, symbol: str, index: int | None = None) -> int:
        """Add a symbol, by default with the number after the largest, and return its number.

        Raises:
            DataError: the number has another symbol.
        """
        if symbol in self._sym2id:
            return self._sym2id[symbol]
        number = max(self._id2sym, default=-1) + 1 if index is None else index
        if number in self._id2sym:
            raise DataError(
                f"number {number} has symbol {self._id2sym[number]!r}; expected a free one for {symbol!r}"
            )
        self._sym2id[symbol] = number
        self._id2sym[number] = symbol
        return number

    def get(self, k: int | str) -> Any:
        """Return the number of a symbol, or the symbol of a number."""
        return self._sym2id[k] if isinstance(k, str) else self._id2sym[k]

    __getitem__ = get

    def __contains__(self, k: object) -> bool:
        return k in (self._sym2id if isinstance(k, str) else self._id2sym)

    def __len__(self) -> int:
        return len(self._sym2id)

    @property
    def symbols(self) -> list[str]:
        """All symbols, sorted."""
        return sorted(self._sym2id)

    @property
    def ids(self) -> list[int]:
        """All numbers, sorted."""
        return sorted(self._id2sym)
