"""Print how fast the CPU backend is, next to limits, yardsticks and peers timed in the same rounds.

    python -m tools.bench.report [--only TABLES] [--threads 1,2] [--seconds S] [--save]

A row gives the median, least and most of the time of a forward and backward pass, and nanoseconds per arc-evaluation
(arcs x frames x sequences). Ratios are ours / theirs, paired round by round, so that a busy machine touches both alike:
below one means that ours is faster. `limit` is what this machine forbids to undercut (`yardstick.py`), `plain loop` the same
work by the loop that anyone would write first, in one thread with scores x 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.bench import machine, peak, peers, tables, transducer, workloads
from tools.bench.timing import HEADER, some_of
from tools.bench.workloads import Sizes, Workloads

RESULTS = machine.ROOT / "benchmarks" / "results"
MAKERS = {
    "denominator": tables.leaky_denominator, "long": tables.long_denominator,
    "exact": tables.exact_denominator, "numerators": tables.numerators, "ctc": tables.ctc,
    "packing": tables.packing, "loss": tables.whole_loss, "forgiving": tables.forgiving, "memory": peak.memory,
    "growth": tables.growth, "transducer": transducer.transducer, "peers": peers.beside_peers,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    sizes = replace(Sizes(), frames=options.frames, seconds=options.seconds, threads=options.threads)
    found = (options.graphs / "den_wsj.npz").is_file()
    if not found and options.graphs != workloads.GRAPHS:
        parser.error(
            f"--graphs {options.graphs}: no den_wsj.npz there; without --graphs seeded graphs are timed"
        )
    work = workloads.from_folder(options.graphs, sizes) if found else workloads.seeded(sizes)
    run(work, sizes, options.only, RESULTS if options.save else None)
    return 0


def run(work: Workloads, sizes: Sizes, names: Sequence[str], folder: Path | None) -> None:
    facts = machine.describe()
    print(machine.one_line(facts))
    print(f"{work.source}; " + "; ".join(f"{name}: {graph}" for name, graph in work.denominators.items()))
    print(f"T {sizes.frames} unless a row says another, float32")
    records: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        table = MAKERS[name](work, sizes)
        print(f"\n{name}: {table.title}", HEADER, *table.rows, sep="\n", flush=True)
        records[table.title] = [row.record() for row in table.rows]
    if folder is not None:
        print(f"\nwrote {machine.save({**facts, 'graphs': work.source}, records, folder)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", type=some_of(MAKERS), default=tuple(MAKERS), help=f"of {','.join(MAKERS)}; default: all")
    add("--threads", type=_counts, default=Sizes.threads, help="counts of threads, default 1,2")
    add("--seconds", type=float, default=Sizes.seconds, help="time for each group of rows")
    add("--frames", type=int, default=Sizes.frames, help="frames of each sequence")
    add("--graphs", type=Path, default=workloads.GRAPHS, help="folder of benchmark graphs (npz)")
    add("--save", action="store_true", help="write benchmarks/results/cpu-<date>.json too")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected counts of at least 1, as in 1,2")
    return counts


if __name__ == "__main__":
    raise SystemExit(main())
