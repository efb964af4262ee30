"""Print how well every stored value of other programs is met, the worst line last.

    python -m tools.golden.table [--backend cpu|reference|cuda]

The exit status is 1 if a line is over what is allowed, 2 if there are no values to compare with.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools import SHARED, parser_of
from tools.golden import kaldi, peers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "reference", "cuda"])
    options = parser.parse_args(arguments)
    cases = kaldi.cases(SHARED) + peers.cases(SHARED)
    if not cases:
        print(f"{SHARED}: no golden values found; expected golden/kaldi and golden/peers", file=sys.stderr)
        return 2
    rows = sorted((row for case in cases for row in case.rows(options.backend)), key=lambda row: row.ratio)
    head = "case", "quantity", "ours", "theirs", "difference", "allowed", "ratio"
    print("{:40} {:22} {:>18} {:>18} {:>11} {:>9} {:>7}".format(*head))
    for r in rows:
        numbers = f"{r.ours:18.10g} {r.theirs:18.10g} {r.difference:11.2e} {r.allowed:9.1e} {r.ratio:7.4f}"
        print(f"{r.case:40} {r.quantity:22} {numbers}")
    over = sum(not row.agrees for row in rows)
    print(f"{len(rows)} rows, {over} over what is allowed")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
