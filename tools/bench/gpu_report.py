"""Print how fast the CUDA backend is, next to what the device allows and to torch's and cuDNN's CTC loss.

    python tools/bench_gpu.py [--only TABLES] [--seconds S] [--save]

Times are of CUDA events around calls as a user makes them, inputs rotate so that none is found in a cache, rows of a table
are taken in turns. Without a GPU it says why there is nothing to time, and that is no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fsachain.backends.dispatch import available_backends
from tools.bench import gpu_tables, machine, workloads
from tools.bench.gpu_tables import MAKERS, Bench
from tools.bench.gpu_timing import HEADER, Failure, GpuRow, clock_of, measure_rates
from tools.bench.gpu_workloads import GpuSizes
from tools.bench.workloads import Workloads

RESULTS = machine.ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a row failed."""
    options = _parser().parse_args(arguments)
    reason = absent()
    if reason:
        print(f"no GPU is timed: {reason}")
        return 0
    sizes = replace(GpuSizes(), seconds=options.seconds)
    found = (workloads.GRAPHS / "den_wsj.npz").is_file()
    host = workloads.Sizes(labels=sizes.classes)
    work = workloads.from_folder(workloads.GRAPHS, host) if found else workloads.seeded(host)
    return run(work, sizes, torch.device("cuda"), options.only, RESULTS if options.save else None)


def absent() -> str | None:
    """Why no GPU can be timed here; None where one can."""
    state = available_backends()["cuda"]
    if state != "available":
        return state
    return None if torch.cuda.is_available() else "torch has no CUDA here"


def describe(device: torch.device) -> dict[str, Any]:
    facts = machine.describe()
    if device.type != "cuda":
        return {**facts, "device": device.type}
    import cupy

    name = torch.cuda.get_device_name(device)
    return {
        **facts,
        "device": name,
        "capability": "{}.{}".format(*torch.cuda.get_device_capability(device)),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def run(
    work: Workloads, sizes: GpuSizes, device: torch.device, names: Sequence[str], folder: Path | None
) -> int:
    """Print these tables as they come and the targets last; with a folder, write everything there. 1 where a row failed."""
    facts, clock = describe(device), clock_of(device)
    rates = measure_rates(device, clock, sizes.product_side, sizes.copy_bytes, sizes.seconds)
    print(f"{facts['device']}; {machine.one_line(facts)}")
    print(f"{work.source}; {rates}\n{HEADER}")
    bench = Bench(work, sizes, device, clock, rates)
    records: dict[str, list[dict[str, Any]]] = {}
    lines = []
    for name in names:
        table = gpu_tables.attempted(name, bench)
        print(*table, sep="\n", flush=True)
        records[name] = [line.record() for line in table]
        lines += table
    if folder is not None:
        kind = "gpu-" + str(facts["device"]).lower().replace(" ", "-")
        stored = {**facts, "graphs": work.source, "rates": rates._asdict()}
        print(f"\nwrote {machine.save(stored, records, folder, kind)}")
    print("\ntargets", *summary(lines), sep="\n")
    return int(any(isinstance(line, Failure) for line in lines))


def summary(lines: Sequence[Any]) -> list[str]:
    rows = [line for line in lines if isinstance(line, GpuRow) and line.target]
    told = [f"  {row.name:44} {row.value:9.3f}  {row.verdict}" for row in rows]
    return told + [str(line) for line in lines if isinstance(line, Failure)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", type=_names, default=tuple(MAKERS), help=f"of {','.join(MAKERS)}; default: all")
    add("--seconds", type=float, default=GpuSizes.seconds, help="time for each group of rows")
    add("--save", action="store_true", help="write benchmarks/results/gpu-<device>-<date>.json too")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in MAKERS:
            raise argparse.ArgumentTypeError(f"{name!r}; expected some of {','.join(MAKERS)}")
    return names
