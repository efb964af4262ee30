"""How fast the CUDA backend is, next to what the device allows and to other losses, once its results are those of float64.

    python -m tools.bench.gpu_report [--only TABLES] [--seconds S] [--variant NAME]

Times are of CUDA events around calls as a user makes them, inputs rotate so that none is found in a cache. "host" is the
time until such a call returns, "replay" that of a CUDA graph of it: the device alone; "kernels" are one call to torch's
profiler. What is not here is an error: graphs, the float64 values (`tools.gpu_pack`), a GPU. Each row is told as soon as
it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fsachain.backends.cuda import plan
from tools import CARRIED, parser_of
from tools.bench import workloads
from tools.bench.gpu_cases import MAKERS, Case
from tools.bench.timing import (
    HEADER,
    Call,
    Clock,
    Comparison,
    Row,
    Target,
    Times,
    by_the_clock,
    seconds_of,
    some_of,
    take_turns,
)
from tools.bench.workloads import PER_ARC, TINY, Sizes, Work, Workloads
from tools.gpu_results import tell

VALUES, TINY_VALUES = CARRIED / "values", CARRIED / "tiny"
# Rounds, and what two events of a device must be apart: calls are repeated until they take as long, since a single one
# begins on a device that waits for the host.
TURNS: dict[str, Any] = {"rounds": (5, 50), "least": 3e-2}
HOST_CALLS = 20
UNSEEN = 10  # batches
MOST_KERNELS = 6
MOST_SHARE = Target(10.0, "%")

# What `--variant` changes: one thing of the plans, all else as it is, so that the rows of two runs tell what that is worth.
VARIANTS = {
    "work of a thread read anew": ("HELD_CHUNKS", 0),
    "two more frames on their way": ("AHEAD", 2),
    "work of a thread of numerators in registers": ("OWN_HELD_CHUNKS", 1),
    "at most 2 sequences of a thread": ("MAX_LANES", 2),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a row failed."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--only", type=some_of(MAKERS), default=tuple(MAKERS), help=f"of {','.join(MAKERS)}; default: all")
    add("--seconds", type=float, default=2.0, help="time for each group of rows")
    add("--variant", choices=VARIANTS, help="with one thing otherwise")
    add("--on-host", action="store_true", help="tiny cases on a device that is the host")
    options = parser.parse_args(arguments)
    if options.variant:
        setattr(plan, *VARIANTS[options.variant])
    if not options.on_host:
        sizes = Sizes(seconds=options.seconds)
        return run(
            workloads.from_folder(workloads.GRAPHS, sizes), sizes, VALUES, torch.device("cuda"), options.only
        )
    from tools.cuda_on_host import pretended

    with pretended():
        return run(workloads.seeded(TINY), TINY, TINY_VALUES, torch.device("cpu"), options.only)


def run(work: Workloads, sizes: Sizes, values: Path, device: torch.device, names: Sequence[str]) -> int:
    """Tell rows as they come. 1 where a result is wrong or a row of ours failed."""
    bench, well = Bench(sizes, device, values), True
    print(f"{work.source}; {bench.rates}\n{HEADER}")
    for name in names:
        cases: list[Case] = []
        well &= attempted(name, lambda name=name, cases=cases: cases.extend(MAKERS[name](work, sizes)))
        for case in cases:
            well &= bench.rows(case)
    return int(not well)


def attempted(name: str, job: Callable[[], Any]) -> bool:
    """Whether a job did not raise; what it raised is told."""
    try:
        job()
    except Exception as error:
        tell(name, False, f"{type(error).__name__}: {error}")
        return False
    return True


def by_events(name: Any, run: Call, repeats: int) -> float:
    """Of a CUDA device's own clock, on torch's current stream; calls wait for none but the last."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e-3 / repeats


# How fast the device lets anyone be: bytes at the rate of a copy, multiply-adds at the rate of a matrix product, measured in
# the same run. Of an arc-evaluation two multiply-adds are counted, of a batch the scores once and the gradient in and out,
# as for the CPU (`yardstick.py`); operands that must come from shared memory or L2 are not, so that no program reaches 1.


class Rates(NamedTuple):
    """Bytes read and written, and float32 multiply-adds, per second."""

    bytes: float
    multiply_adds: float

    def __str__(self) -> str:
        return f"copy {self.bytes * 1e-12:.2f} TB/s, float32 {2e-12 * self.multiply_adds:.1f} TFLOP/s"

    def against(self, times: Times, work: Work) -> Comparison:
        """How far a job is from the limit of its work."""
        limit = max(work.bytes / self.bytes, PER_ARC * work.evaluations / self.multiply_adds)
        return Comparison("limit", times.scaled(1.0 / limit))


def measure_rates(device: torch.device, clock: Clock, sizes: Sizes) -> Rates:
    """Rates of a copy and of a product of two square float32 matrices."""
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = torch.rand(2, sizes.product_side, sizes.product_side, device=device)
    product = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no tensor cores: the recursions have no use for them
    try:
        jobs: dict[str, Call] = {
            "copy": lambda: target.copy_(source),
            "product": lambda: torch.mm(left, right, out=product),
        }
        times = take_turns(jobs, min(sizes.seconds, 0.5), clock, **TURNS)
    finally:
        torch.set_float32_matmul_precision(before)
    best = {name: taken.scaled(1.0).least for name, taken in times.items()}
    return Rates(2 * sizes.copy_bytes / best["copy"], sizes.product_side**3 / best["product"])


class Bench:
    """A device, its rates, and the folder of the float64 values."""

    def __init__(self, sizes: Sizes, device: torch.device, values: Path) -> None:
        self.device, self.values, self.seconds = device, values, sizes.seconds
        self.clock = by_events if device.type == "cuda" else by_the_clock
        self.rates = measure_rates(device, self.clock, sizes)

    def rows(self, case: Case) -> bool:
        """Whether all our rows of a case are there: compared, timed, then beside others, whose failures are theirs.

        A row that fails takes no other with it, but for the comparison: what is wrong, or cannot be told, is not timed.
        """
        calls: list[Call] = []
        if not attempted(case.name, lambda: calls.append(self._checked(case))):
            return False
        (call,) = calls
        jobs: dict[str, Callable[[], Any]] = {"": partial(self._whole, case, call)}
        if case.memory:
            jobs[": memory"] = partial(self._memory, case, call)
        jobs[": host"] = lambda: _tell_row(Row(f"{case.name}: host", times=self._until_it_returns(call)))
        if self.device.type == "cuda" and case.trains:
            jobs[": replay"] = partial(self._replayed, case)
        if self.device.type == "cuda":
            jobs[": kernels"] = partial(self._kernels, case, call)
        if case.unseen:
            jobs[": unseen"] = partial(self._unseen, case, False)
            jobs[": unseen, laid out"] = partial(self._unseen, case, True)
        for precision, make in case.within.items():
            jobs[f": share of a TDNN-F's step, {precision}"] = partial(self._share, case, precision, make)
        well = [attempted(f"{case.name}{what}", job) for what, job in jobs.items()]
        for name, loss in case.peers.items():
            title = f"{case.name}: {name}"
            attempted(title, partial(self._beside, title, call, replace(case, loss=loss)))
        return all(well)

    def _checked(self, case: Case) -> Call:
        """A call of a case whose results are those of float64."""
        ratio, what = case.compare(self.values / case.file, self.device)
        tell(f"{case.name}: values", ratio <= 1.0, f"{what}: {ratio:.2g} of what is allowed")
        if ratio > 1.0:
            raise ValueError(
                f"{what} differs from the float64 values by {ratio:.2g} of what is allowed: not timed"
            )
        return case.call(self.device)

    def _whole(self, case: Case, call: Call) -> None:
        times = self._taken(call)
        limit = (self.rates.against(times, case.work),)
        evaluations = case.work.evaluations
        _tell_row(Row(case.name, times=times, evaluations=evaluations, comparisons=limit, target=case.target))

    def _memory(self, case: Case, call: Call) -> None:
        peak = {"GB": self._peak(call) * 1e-9}
        _tell_row(Row(f"{case.name}: memory", figures=peak, target=case.memory))

    def _replayed(self, case: Case) -> None:
        scores = case.scores(self.device)
        times = self._taken(self._graph(case, scores))
        _tell_row(Row(f"{case.name}: replay", times=times, evaluations=case.work.evaluations))

    def _kernels(self, case: Case, call: Call) -> None:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        there = torch.autograd.DeviceType.CUDA
        taken = [(event.name, event.device_time) for event in profile.events() if event.device_type == there]
        _tell_row(Row(f"{case.name}: kernels", figures=kernel_figures(taken)))

    def _unseen(self, case: Case, laid_out: bool) -> None:
        """Calls with graphs that are new to the device, until they return and until it is done; the first is not counted."""
        assert case.unseen is not None
        scores, host, whole = case.scores(self.device), [], []
        for _ in range(1 + UNSEEN):
            call = partial(replace(case, loss=case.unseen(laid_out)).step, scores)
            whole.append(self.clock("", lambda call=call: host.append(seconds_of(call)), 1))
        name = f"{case.name}: unseen{', laid out' if laid_out else ''}"
        _tell_row(Row(name, times=Times(tuple(whole[1:]))))
        _tell_row(Row(f"{name}: host", times=Times(tuple(host[1:]))))

    def _share(self, case: Case, precision: str, make: Callable[[torch.device], dict[str, Call]]) -> None:
        """What a step of a training takes more than the same with a trivial loss."""
        both = take_turns(make(self.device), self.seconds, self.clock, **TURNS)
        ratio = both["trivial"].over(both["whole"])
        name = f"{case.name}: share of a TDNN-F's step, {precision}"
        share = {"%": 100.0 * (1.0 - ratio.median)}
        comparison = Comparison("trivial / whole", ratio)
        _tell_row(Row(name, times=both["whole"], comparisons=(comparison,), figures=share, target=MOST_SHARE))

    def _taken(self, call: Call) -> Times:
        return take_turns({"": call}, self.seconds, self.clock, **TURNS)[""]

    def _beside(self, title: str, call: Call, peer: Case) -> None:
        jobs = {"ours": call, "theirs": peer.call(self.device)}
        both = take_turns(jobs, self.seconds, self.clock, **TURNS)
        ratio = Comparison("ours / theirs", both["ours"].over(both["theirs"]))
        _tell_row(Row(title, times=both["theirs"], comparisons=(ratio,)))

    def _until_it_returns(self, call: Call) -> Times:
        """Seconds until calls return, on an idle device."""
        taken = []
        for _ in range(HOST_CALLS):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(seconds_of(call))
        return Times(tuple(taken))

    def _graph(self, case: Case, scores: torch.Tensor) -> Call:
        """The replay of a CUDA graph of the case's step, once its bits are those of the step; `scores` must outlive it."""
        first, side = scores.detach().clone(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                case.step(scores)
        torch.cuda.current_stream().wait_stream(side)
        scores.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses = case.step(scores)
        gradient = scores.grad
        assert gradient is not None
        for _ in range(2):  # the second on what the first has left behind
            scores.detach().copy_(first)  # which a gradient in place has written over
            graph.replay()
        found = losses.detach().clone(), gradient.clone()
        scores.detach().copy_(first)
        step = case.step(scores).detach(), scores.grad
        if not all(map(torch.equal, found, step)):
            raise ValueError("a replayed graph gives other bits than the step that it is of: not timed")
        return graph.replay

    def _peak(self, call: Call) -> int:
        """The most bytes of torch's pool during a call; 0 for a device that does not tell."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        call()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)


def kernel_figures(taken: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Of names and microseconds of what a device has done: milliseconds, how many, and of the names that take most."""
    by_name: dict[str, float] = {}
    for name, microseconds in taken:
        by_name[name[:48]] = by_name.get(name[:48], 0.0) + 1e-3 * microseconds
    most = sorted(by_name, key=lambda name: -by_name[name])[:MOST_KERNELS]
    return {"ms": sum(by_name.values()), "launches": len(taken)} | {
        f"ms {name}": by_name[name] for name in most
    }


def _tell_row(row: Row) -> None:
    print(row, flush=True)
    tell(row.name, True, row.verdict or f"{row.value:.3f} ms", row=row.record())


if __name__ == "__main__":
    raise SystemExit(main())
