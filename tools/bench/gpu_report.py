"""How fast the CUDA backend is, next to what the device allows and to other losses, once its results are those of float64.

    python -m tools.bench.gpu_report [--only TABLES] [--seconds S] [--variant NAME]

Times are of CUDA events around calls as a user makes them, inputs rotate so that none is found in a cache. "host" is the
time until such a call returns, "replay" that of a CUDA graph of it: the device alone. What is not here is an error: graphs,
the float64 values (`tools.gpu_pack`), a GPU. Each row is told as soon as it is known.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fsachain.backends.cuda import plan
from tools.bench import workloads
from tools.bench.gpu_tables import MAKERS, Entry
from tools.bench.gpu_timing import HEADER, Clock, GpuRow, Rates, clock_of, measure_rates, take_turns
from tools.bench.gpu_workloads import GpuSizes
from tools.bench.timing import Comparison, Times, some_of
from tools.bench.workloads import CARRIED, Workloads
from tools.gpu_results import tell

FULL, TINY = CARRIED / "values", CARRIED / "tiny"
TINY_SIZES = GpuSizes(
    long=(3, 10), numerators=(2, 12, 9), loss=(3, 12), ctc=12, classes=9, bigram=(4, 2, 10),
    transducer=(2, 90, 40, 7), copy_bytes=1 << 16, product_side=16, seconds=0.0,
)  # fmt: skip
TINY_HOST = workloads.Sizes(
    sequences=3, states=10, arcs=40, pdfs=6, numerator_states=8, numerator_pdfs=20, labels=9, label_length=4
)


# What `--variant` changes: one thing of the plans, all else as it is, so that the rows of two runs tell what that is worth.
VARIANTS = {
    "metadata through the cache": ("METADATA_ON_CHIP", False),
    "blocks meet at the cluster's barrier": ("ASYNC_STORES", False),
    "occupancies summed by a kernel of their own": ("SUM_COLUMNS", False),
    "each state by itself": ("TILES", False),
    "work of a thread in registers": ("HELD_CHUNKS", 1),
    "arcs in their own order": ("SPREAD", False),
    "at most 2 sequences of a thread": ("MAX_LANES", 2),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a row failed."""
    options = _parser().parse_args(arguments)
    sizes = replace(GpuSizes(), seconds=options.seconds)
    if options.variant:
        setattr(plan, *VARIANTS[options.variant])
    if not options.on_host:
        return run(whole(), sizes, FULL, torch.device("cuda"), options.only)
    from tools.cuda_on_host.pretend import pretended

    with pretended():
        return run(tiny(), TINY_SIZES, TINY, torch.device("cpu"), options.only)


def whole() -> Workloads:
    return workloads.from_folder(workloads.GRAPHS, workloads.Sizes(labels=GpuSizes().classes))


def tiny() -> Workloads:
    return workloads.seeded(TINY_HOST)


def run(work: Workloads, sizes: GpuSizes, values: Path, device: torch.device, names: Sequence[str]) -> int:
    """Tell rows as they come. 1 where a result is wrong or a row of ours failed."""
    clock = clock_of(device)
    rates = measure_rates(device, clock, sizes.product_side, sizes.copy_bytes, min(sizes.seconds, 0.5))
    print(f"{work.source}; {rates}\n{HEADER}")
    failed = False
    for name in names:
        for entry in MAKERS[name](work, sizes):
            failed |= not attempted(
                entry.name, lambda entry=entry: rows(entry, values, sizes, device, clock, rates)
            )
    return int(failed)


def attempted(name: str, job: Callable[[], Any]) -> bool:
    """Whether a job did not raise; what it raised is told."""
    try:
        job()
    except Exception as error:
        tell(name, False, f"{type(error).__name__}: {error}")
        return False
    return True


def rows(
    entry: Entry, values: Path, sizes: GpuSizes, device: torch.device, clock: Clock, rates: Rates
) -> None:
    """Of one case: compared, timed, then beside others, whose failures are theirs."""
    ratio, what = entry.case.compare(values / entry.file, device)
    tell(f"{entry.name}: values", ratio <= 1.0, f"{what}: {ratio:.2g} of what is allowed")
    if ratio > 1.0:
        raise ValueError(
            f"{what} differs from the float64 values by {ratio:.2g} of what is allowed: not timed"
        )
    call = entry.case.call(device)
    times = take_turns({"": call}, sizes.seconds, clock)[""]
    evaluations, on_gpu = entry.work.evaluations, device.type == "cuda"
    _tell_row(GpuRow(entry.name, evaluations, times, entry.target, None, (rates.against(times, entry.work),)))
    if entry.memory:
        _tell_row(GpuRow(f"{entry.name}: memory", 0, times, entry.memory, _peak(call, device)))
    _tell_row(GpuRow(f"{entry.name}: host", 0, _host_times(call, on_gpu)))
    if on_gpu and entry.case.trains:
        _replay(entry, sizes, device, clock)
    for name, loss in entry.peers.items():
        theirs = replace(entry.case, loss=loss)

        def beside(name: str = name, theirs: Any = theirs) -> None:
            both = take_turns({"ours": call, "theirs": theirs.call(device)}, sizes.seconds, clock)
            ratio = Comparison("ours / theirs", both["ours"].over(both["theirs"]))
            _tell_row(GpuRow(f"{entry.name}: {name}", 0, both["theirs"], None, None, (ratio,)))

        attempted(f"{entry.name}: {name}", beside)


def _tell_row(row: GpuRow) -> None:
    print(row, flush=True)
    tell(row.name, True, row.verdict or f"{row.value:.3f} ms", row=row.record())


def _host_times(call: Callable[[], object], on_gpu: bool) -> Times:
    """Seconds until calls return, on an idle device."""
    taken = []
    for _ in range(20):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return Times(tuple(taken))


def _replay(entry: Entry, sizes: GpuSizes, device: torch.device, clock: Clock) -> None:
    scores = entry.case.scores(device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            entry.case.step(scores)
    torch.cuda.current_stream().wait_stream(side)
    scores.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        entry.case.step(scores)
    times = take_turns({"": graph.replay}, sizes.seconds, clock)[""]
    _tell_row(GpuRow(f"{entry.name}: replay", entry.work.evaluations, times))


def _peak(call: Callable[[], object], device: torch.device) -> int:
    """The most bytes of torch's pool during a call; 0 for a device that does not tell."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", type=some_of(MAKERS), default=tuple(MAKERS), help=f"of {','.join(MAKERS)}; default: all")
    add("--seconds", type=float, default=GpuSizes.seconds, help="time for each group of rows")
    add("--variant", choices=VARIANTS, help="with one thing otherwise")
    add("--on-host", action="store_true", help="tiny cases on a device that is the host")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
