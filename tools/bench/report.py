"""Print how fast the CPU backend is, next to limits, yardsticks and peers timed in the same rounds.

    python -m tools.bench.report [--only TABLES] [--threads 1,2] [--seconds S] [--save]

A row gives the median, least and most of the time of a forward and backward pass, and nanoseconds per arc-evaluation
(arcs x frames x sequences). Ratios are ours / theirs, paired round by round, so that a busy machine touches both alike:
below one means that ours is faster. `limit` is what this machine forbids to undercut (`yardstick.py`), `plain loop` the same
work by the loop that anyone would write first, in one thread with scores x 1.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsachain.asr.cli import record
from tools import ROOT, parser_of
from tools.bench import workloads
from tools.bench.tables import MAKERS
from tools.bench.timing import HEADER, some_of
from tools.bench.workloads import Sizes

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--only", type=some_of(MAKERS), default=tuple(MAKERS), help=f"of {','.join(MAKERS)}; default: all")
    add("--threads", type=_counts, default=Sizes.threads, help="counts of threads, default 1,2")
    add("--seconds", type=float, default=Sizes.seconds, help="time for each group of rows")
    add("--save", action="store_true", help="write benchmarks/results/cpu-<date>.json too")
    options = parser.parse_args(arguments)
    sizes = replace(Sizes(), seconds=options.seconds, threads=options.threads)
    found = (workloads.GRAPHS / "den_wsj.npz").is_file()
    work = workloads.from_folder(workloads.GRAPHS, sizes) if found else workloads.seeded(sizes)
    versions = record.versions()
    machine = {"cpu": record.processor(), "cores": os.cpu_count()}
    machine |= {name: versions[name] for name in ("python", "numba", "torch")}
    busy = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(", ".join(f"{name} {value}" for name, value in machine.items()) + busy)
    print(f"{work.source}; " + "; ".join(f"{name}: {graph}" for name, graph in work.denominators.items()))
    print(f"T {sizes.frames} unless a row says another, float32")
    records = {}
    for name in options.only:
        table = MAKERS[name](work, sizes)
        print(f"\n{name}: {table.title}", HEADER, *table.rows, sep="\n", flush=True)
        records[table.title] = [row.record() for row in table.rows]
    if options.save:
        print(f"\nwrote {save({**machine, 'graphs': work.source}, records)}")
    return 0


def save(machine: dict[str, Any], tables: dict[str, list[dict[str, Any]]]) -> Path:
    """Replaces an earlier file of the day."""
    date = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"cpu-{date}.json"
    found = {"device": machine, "date": date, "commit": record.commit(ROOT), "tables": tables}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected counts of at least 1, as in 1,2")
    return counts


if __name__ == "__main__":
    raise SystemExit(main())
