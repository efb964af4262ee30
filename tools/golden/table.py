"""Print how well every stored value of other programs is met, the worst line last.

    python -m tools.golden.table [--shared DIR] [--backend cpu|reference|cuda]

The exit status is 1 if a line is over what is allowed, 2 if there are no values to compare with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.golden import kaldi, peers
from tools.golden.rows import Case, Row

SHARED = Path(__file__).resolve().parents[3] / "shared"


def all_cases(shared: Path) -> list[Case]:
    """Kaldi's cases, then those of the other programs; `shared` is the folder that holds golden/ and data/."""
    return kaldi.cases(shared) + peers.cases(shared)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with golden/ and data/")
    parser.add_argument("--backend", default="cpu", choices=["cpu", "reference", "cuda"])
    options = parser.parse_args(arguments)
    rows = [row for case in all_cases(options.shared) for row in case.rows(options.backend)]
    if not rows:
        print(
            f"{options.shared}: no golden values found; expected golden/kaldi and golden/peers",
            file=sys.stderr,
        )
        return 2
    rows.sort(key=lambda row: row.ratio)
    print(
        f"{'case':40} {'quantity':22} {'ours':>18} {'theirs':>18} {'difference':>11} {'allowed':>9} {'ratio':>7}"
    )
    for row in rows:
        print(_line(row))
    over = sum(not row.agrees for row in rows)
    print(f"{len(rows)} rows, {over} over what is allowed")
    return 1 if over else 0


def _line(row: Row) -> str:
    numbers = (
        f"{row.ours:18.10g} {row.theirs:18.10g} {row.difference:11.2e} {row.allowed:9.1e} {row.ratio:7.4f}"
    )
    return f"{row.case:40} {row.quantity:22} {numbers}"


if __name__ == "__main__":
    sys.exit(main())
