"""Print how fast the CPU backend is, next to yardsticks timed in the same rounds.

    python -m tools.bench [--graphs DIR] [--frames T] [--seconds S] [--save]

A row gives the median, least and most of the time of a forward and backward pass, and nanoseconds per arc-evaluation
(arcs x frames x sequences). Ratios are ours / theirs, paired round by round, so that a busy machine touches both alike:
below one means that ours is faster. `plain loop` does the same work with scores x 1 in one thread (`yardstick.py`);
`streaming` is three multiply-adds per arc and sequence, at the speed at which one core streams from its cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.bench import machine, tables, workloads
from tools.bench.row import HEADER
from tools.bench.workloads import Sizes, Workloads

RESULTS = machine.ROOT / "benchmarks" / "results"
MAKERS = (
    tables.leaky_denominator,
    tables.exact_denominator,
    tables.numerators,
    tables.whole_loss,
    tables.ctc,
)


def main(arguments: list[str] | None = None) -> int:
    """Time everything and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--graphs", type=Path, default=workloads.GRAPHS, help="folder of benchmark graphs (npz)"
    )
    parser.add_argument("--frames", type=int, default=Sizes.frames, help="frames of each sequence")
    parser.add_argument("--seconds", type=float, default=Sizes.seconds, help="time for each group of rows")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu-<date>.json too")
    options = parser.parse_args(arguments)
    sizes = Sizes(frames=options.frames, seconds=options.seconds)
    found = (options.graphs / "den_wsj.npz").is_file()
    if not found and options.graphs != workloads.GRAPHS:
        parser.error(
            f"--graphs {options.graphs}: no den_wsj.npz there; without --graphs seeded graphs are timed"
        )
    work = workloads.from_folder(options.graphs, sizes) if found else workloads.seeded(sizes)
    run(work, sizes, RESULTS if options.save else None)
    return 0


def run(work: Workloads, sizes: Sizes, folder: Path | None) -> None:
    """Print all tables as they come; with a folder, write them there as well."""
    facts = machine.describe()
    print(machine.one_line(facts))
    print(f"{work.source}; {work.denominator}; T {sizes.frames}, float32")
    records = {}
    for make in MAKERS:
        table = make(work, sizes)
        print(f"\n{table.title}\n{HEADER}", *table.rows, sep="\n", flush=True)
        records[table.title] = [row.record() for row in table.rows]
    if folder is not None:
        print(f"\nwrote {machine.save({**facts, 'graphs': work.source}, records, folder)}")


if __name__ == "__main__":
    raise SystemExit(main())
