"""Numbers and tables as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

NOTHING = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """What a cell says, and the number by which its column sorts; None sorts last."""

    text: str
    key: float | None = None


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table that sorts by a click on a column's head.

    Attributes:
        caption: what it shows.
        columns: heads; of numbers those for which `numeric` is true.
        numeric: for each column whether it holds numbers.
        rows: cells; the first of each row is its head.
        total: a last row that stays last; empty for none.
    """

    caption: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    total: Row = (),
) -> Table:
    """A table without the columns that say nothing; one of numbers has a key in every cell of which something is known."""
    given = [_cells(row) for row in rows]
    shown = [k for k in range(len(columns)) if not given or any(row[k].text != NOTHING for row in given)]
    cells = tuple(tuple(row[k] for k in shown) for row in given)
    numeric = tuple(
        any(row[k].key is not None for row in cells)
        and all(row[k].key is not None or row[k].text == NOTHING for row in cells)
        for k in range(len(shown))
    )
    last = _cells(total)
    return Table(
        caption, tuple(columns[k] for k in shown), numeric, cells, tuple(last[k] for k in shown if last)
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    return tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row)


def amount(value: float | None, digits: int = 0, unit: str = "") -> Cell:
    """A number with thousands set apart."""
    if value is None or math.isnan(value):
        return Cell(NOTHING)
    if math.isinf(value):
        return Cell("\N{INFINITY}" if value > 0 else f"{_MINUS}\N{INFINITY}", math.copysign(1e308, value))
    return Cell(f"{value:,.{digits}f}".replace("-", _MINUS) + (f" {unit}" if unit else ""), value)


def short(value: float | None) -> Cell:
    """A number of three digits that mean something, however small."""
    return Cell(NOTHING) if value is None else Cell(f"{value:.3g}".replace("-", _MINUS), value)


def share(value: float | None) -> Cell:
    """A share of one as per cent."""
    return Cell(NOTHING) if value is None else Cell(f"{100 * value:.0f} %", value)


def per_cent(value: float | None) -> Cell:
    """An error rate that is in per cent already."""
    return amount(value, 2, "%")


def duration(seconds: float | None) -> Cell:
    """Seconds as people say them."""
    if seconds is None or not math.isfinite(seconds):
        return Cell(NOTHING)
    if seconds < 60:
        return Cell(f"{seconds:.1f} s", seconds)
    whole = round(seconds)
    if whole < 3600:
        return Cell(f"{whole // 60} min {whole % 60:02d} s", seconds)
    return Cell(f"{whole // 3600} h {whole % 3600 // 60:02d} min", seconds)


def memory(num_bytes: float | None) -> Cell:
    """Bytes in the unit that suits them, powers of 1000."""
    if num_bytes is None:
        return Cell(NOTHING)
    for size, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 1), (1e3, "kB", 1)):
        if num_bytes >= size:
            return Cell(f"{num_bytes / size:.{digits}f} {unit}", num_bytes)
    return Cell(f"{num_bytes:.0f} B", num_bytes)


def moment(seconds: float | None) -> Cell:
    """Unix time as date and time, UTC."""
    if seconds is None:
        return Cell(NOTHING)
    try:
        return Cell(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC", seconds)
    except (OverflowError, OSError, ValueError):
        return Cell(NOTHING)
