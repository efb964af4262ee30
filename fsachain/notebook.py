"""What objects show in a notebook: tables and pictures of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

MOST_ROWS = 20  # of a table; more are counted
_LONGEST_CELL = 100  # characters


def html_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, num_rows: int | None = None, title: str = ""
) -> str:
    """Make an HTML table of the first rows; no text in it can become markup.

    Args:
        num_rows: how many rows there are, where `rows` is an iterator; by default its length.
    """
    if num_rows is None:
        rows = list(rows)
        num_rows = len(rows)
    shown = list(islice(rows, MOST_ROWS))
    lines = [f"<table>{_caption(title)}<thead>{_row('th', columns)}</thead><tbody>"]
    lines += [_row("td", row) for row in shown]
    if num_rows > len(shown):
        lines.append(f'<tr><td colspan="{len(columns)}">{num_rows - len(shown):,} more</td></tr>')
    return "".join([*lines, "</tbody></table>"])


def with_picture(table: str, svg: str | None) -> str:
    """A table with a picture below it, if there is one."""
    return table if svg is None else f"<div>{table}{svg}</div>"


def _caption(title: str) -> str:
    return f"<caption>{escape(title)}</caption>" if title else ""


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…")
