"""Transducer and CTC losses beside peers that are compiled from their sources: warp-transducer and fast_rnnt; torch's CTC.

    git clone https://github.com/HawkAaron/warp-transducer && git -C warp-transducer checkout f546575
    git clone https://github.com/danpovey/fast_rnnt && git -C fast_rnnt checkout 134c1bc
    python -m tools.bench.compiled --warp-transducer warp-transducer --fast-rnnt fast_rnnt

g++ builds their CPU parts into --build, once. A peer whose sources are not named is not timed. All jobs of a row take turns,
each called twice, of which the second is timed: the first finds the heap as another left it. With one thread each the least
processor time of the process counts, which neighbours on the machine touch least; then ours
with two threads is set beside ours with one, by the clock: the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fsachain.backends.cpu.threads import set_num_threads
from fsachain.loss import pruned
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.rnnt import rnnt_loss
from tools.bench.calls import with_gradient
from tools.bench.machine import ROOT
from tools.bench.timing import Call

# B, T, U, V
TRANSDUCERS = (8, 200, 50, 500), (8, 200, 50, 32), (1, 100, 20, 500), (1, 100, 20, 32), (2, 100, 20, 5000)
CTC = (1, 50, 10, 32), (4, 100, 20, 80), (8, 100, 20, 80), (1, 400, 50, 500), (32, 400, 50, 500)
SIMPLE = ((8, 400, 60, 500),)
LABELS = 5  # of a frame that pruning keeps
FAST_RNNT = (
    *(f"fast_rnnt/csrc/{name}.cu" for name in ("mutual_information_cpu", "utils")),
    *(f"fast_rnnt/python/csrc/{name}.cu" for name in ("fast_rnnt", "mutual_information", "utils")),
)
WARP = "src/rnnt_entrypoint.cpp", "pytorch_binding/src/binding.cpp"

Jobs = tuple[str, Call, str, Call | None]  # ours; a peer, if it is there


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--warp-transducer", type=Path, help="its sources")
    parser.add_argument("--fast-rnnt", type=Path, help="its sources")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "peers", help="where they are built")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each comparison")
    options = parser.parse_args(arguments)
    warp = _warp_transducer(options.warp_transducer, options.build)
    fast = _fast_rnnt(options.fast_rnnt, options.build)
    print(f"{'':32} {'ms':>8}   {'ours / peer':22} {'two threads / one'}")
    for name, ours, peer, theirs in _jobs(warp, fast):
        least, beside = _beside(ours, theirs, options.seconds)
        ratio = f"{beside:.2f} {peer}" if beside else ""
        print(f"{name:32} {least:8.3f}   {ratio:22} {_two_threads(ours, options.seconds):.2f}", flush=True)
    return 0


def _beside(ours: Call, theirs: Call | None, seconds: float) -> tuple[float, float | None]:
    """The least processor time of ours in ms, and over that of theirs."""
    set_num_threads(1)
    torch.set_num_threads(1)
    taken: dict[Call, list[int]] = {}
    for job in _turns([ours, *([theirs] if theirs else [])], seconds):
        job()
        start = time.process_time_ns()
        job()
        taken.setdefault(job, []).append(time.process_time_ns() - start)
    least = min(taken[ours][1:])
    return 1e-6 * least, least / min(taken[theirs][1:]) if theirs else None


def _two_threads(ours: Call, seconds: float) -> float:
    ratios = []
    for _ in _turns([ours], seconds):
        taken = []
        for threads in (1, 2):
            set_num_threads(threads)
            torch.set_num_threads(threads)
            ours()  # starts the threads
            start = time.perf_counter()
            ours()
            taken.append(time.perf_counter() - start)
        ratios.append(taken[1] / taken[0])
    return median(ratios[1:])


def _turns(jobs: list[Call], seconds: float) -> Iterator[Call]:
    start, rounds = time.perf_counter(), 0
    while rounds < 4 or (rounds < 400 and time.perf_counter() - start < seconds):
        yield from jobs
        rounds += 1


def _jobs(warp: Any, fast: Any) -> Iterator[Jobs]:
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    for size, frames, labels, classes in TRANSDUCERS:
        logits = leaf(size, frames, labels + 1, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        lengths = torch.full((size,), frames), torch.full((size,), labels)
        given = targets.int(), *(length.int() for length in lengths)
        ours = with_gradient(lambda x=logits, y=targets, n=lengths: rnnt_loss(x, y, *n, blank=0), logits)
        theirs = warp and with_gradient(lambda x=logits, n=given: warp.rnnt_loss(x, *n, 0, "mean"), logits)
        yield f"rnnt_loss {_name(size, frames, labels, classes)}", ours, "warp-transducer", theirs
    for size, frames, labels, classes in CTC:
        logits = leaf(frames, size, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        call = targets, torch.full((size,), frames), torch.full((size,), labels)
        ours = with_gradient(lambda x=logits, c=call: ctc_loss(x, *c, inputs="logits"), logits)
        theirs = with_gradient(
            lambda x=logits, c=call: torch.nn.functional.ctc_loss(x.log_softmax(2), *c), logits
        )
        yield f"CTC {_name(size, frames, labels, classes)}", ours, "torch", theirs
    for size, frames, labels, classes in SIMPLE:
        am, lm = leaf(size, frames, classes), leaf(size, labels + 1, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        for kind, loss in _SIMPLE.items():
            ours = with_gradient(lambda loss=loss, y=targets, a=am, b=lm: loss(pruned, b, a, y), am)
            theirs = fast and with_gradient(lambda loss=loss, y=targets, a=am, b=lm: loss(fast, b, a, y), am)
            yield f"{kind} {_name(size, frames, labels, classes)}", ours, "fast_rnnt", theirs


def _name(size: int, frames: int, labels: int, classes: int) -> str:
    return f"B{size} T{frames} U{labels} V{classes}"


def _whole(module: Any, lm: torch.Tensor, am: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    size, frames, _ = am.shape
    bound = torch.tensor([[0, 0, targets.shape[1], frames]]).expand(size, 4).contiguous()
    loss, grads = module.rnnt_loss_simple(
        lm, am, targets, 0, boundary=bound, reduction="sum", return_grad=True
    )
    ranges = module.get_rnnt_prune_ranges(*grads, bound, LABELS)
    kept = sum(module.do_rnnt_pruning(am, lm, ranges))
    total: torch.Tensor = loss + module.rnnt_loss_pruned(
        kept, targets, ranges, 0, boundary=bound, reduction="sum"
    )
    return total


_SIMPLE: dict[str, Callable[..., torch.Tensor]] = {
    "simple": lambda module, lm, am, y: module.rnnt_loss_simple(lm, am, y, 0),
    "smoothed": lambda module, lm, am, y: module.rnnt_loss_smoothed(lm, am, y, 0, 0.1, 0.1),
    "simple, ranges, pruned": _whole,
}


def _warp_transducer(sources: Path | None, build: Path) -> Any:
    if sources is None:
        return None
    package = build / "warprnnt_pytorch"
    sys.path.insert(0, str(build))
    _compile(sources, package, "warp_rnnt", WARP, sources / "include")
    text = (sources / "pytorch_binding" / "warprnnt_pytorch" / "__init__.py").read_text()
    (package / "__init__.py").write_text(text)
    return importlib.import_module("warprnnt_pytorch")


def _fast_rnnt(sources: Path | None, build: Path) -> Any:
    if sources is None:
        return None
    _compile(sources, build, "_fast_rnnt", FAST_RNNT, sources)
    sys.path[:0] = [str(build), str(sources / "fast_rnnt" / "python")]
    return importlib.import_module("fast_rnnt")


def _compile(sources: Path, folder: Path, name: str, files: Sequence[str], include: Path) -> None:
    """An extension module of torch for the CPU; .cu files of these peers are C++ without a GPU."""
    target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__path__[0])
    headers = (
        home / "include",
        home / "include/torch/csrc/api/include",
        sysconfig.get_paths()["include"],
        include,
    )
    command = ["g++", "-std=c++20", "-O3", "-fPIC", "-w", "-fopenmp", "-shared"]
    command += [f"-DTORCH_EXTENSION_NAME={name}", *(f"-I{header}" for header in headers)]
    command += ["-x", "c++", *(str(sources / file) for file in files), "-o", str(target)]
    command += [
        f"-L{home / 'lib'}",
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        "-ltorch_python",
        f"-Wl,-rpath,{home / 'lib'}",
    ]
    print(" ".join(command), file=sys.stderr)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
