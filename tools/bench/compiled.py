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

import importlib
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fsachain.loss import pruned
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.rnnt import rnnt_loss
from tools import ROOT, parser_of
from tools.bench.tables import with_gradient
from tools.bench.timing import Call, Clock, by_the_clock, seconds_of, take_turns

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
ROUNDS = 4, 400

Jobs = tuple[str, Call, str, Call | None]  # ours; a peer, if it is there


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--warp-transducer", type=Path, help="its sources")
    parser.add_argument("--fast-rnnt", type=Path, help="its sources")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "peers", help="where they are built")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each comparison")
    options = parser.parse_args(arguments)
    warp = options.warp_transducer and _warp_transducer(options.warp_transducer, options.build)
    fast = options.fast_rnnt and _fast_rnnt(options.fast_rnnt, options.build)
    print(f"{'':32} {'ms':>8}   {'ours / peer':22} {'two threads / one'}")
    for name, ours, peer, theirs in _jobs(warp, fast):
        jobs = {("ours", 1): ours, **({(peer, 1): theirs} if theirs else {})}
        taken = take_turns(jobs, options.seconds, _second(time.process_time), rounds=ROUNDS)
        least, *beside = (times.scaled(1e3).least for times in taken.values())
        threads = {("ours", count): ours for count in (1, 2)}
        taken = take_turns(threads, options.seconds, _second(time.perf_counter), rounds=ROUNDS)
        one, two = taken.values()
        ratio = f"{least / beside[0]:.2f} {peer}" if beside else ""
        print(f"{name:32} {least:8.3f}   {ratio:22} {two.over(one).median:.2f}", flush=True)
    return 0


def _second(now: Callable[[], float]) -> Clock:
    """Times a call after another, which also starts the threads."""

    def clock(name: Any, run: Call, repeats: int) -> float:
        by_the_clock(name, run, 1)
        return seconds_of(run, repeats, now)

    return clock


def _jobs(warp: Any, fast: Any) -> Iterator[Jobs]:
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    for shape in TRANSDUCERS:
        size, frames, labels, classes = shape
        logits = leaf(size, frames, labels + 1, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        lengths = torch.full((size,), frames), torch.full((size,), labels)
        given = targets.int(), *(length.int() for length in lengths)
        ours = with_gradient(lambda x=logits, y=targets, n=lengths: rnnt_loss(x, y, *n, blank=0), logits)
        theirs = warp and with_gradient(lambda x=logits, n=given: warp.rnnt_loss(x, *n, 0, "mean"), logits)
        yield _name("rnnt_loss", shape), ours, "warp-transducer", theirs
    for shape in CTC:
        size, frames, labels, classes = shape
        logits = leaf(frames, size, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        call = targets, torch.full((size,), frames), torch.full((size,), labels)
        ours = with_gradient(lambda x=logits, c=call: ctc_loss(x, *c, inputs="logits"), logits)
        theirs = with_gradient(
            lambda x=logits, c=call: torch.nn.functional.ctc_loss(x.log_softmax(2), *c), logits
        )
        yield _name("CTC", shape), ours, "torch", theirs
    for shape in SIMPLE:
        size, frames, labels, classes = shape
        am, lm = leaf(size, frames, classes), leaf(size, labels + 1, classes)
        targets = torch.randint(1, classes, (size, labels), generator=generator)
        for kind, loss in _SIMPLE.items():
            ours, theirs = (
                module and with_gradient(lambda m=module, f=loss, y=targets, a=am, b=lm: f(m, b, a, y), am)
                for module in (pruned, fast)
            )
            yield _name(kind, shape), ours, "fast_rnnt", theirs


def _name(kind: str, shape: tuple[int, int, int, int]) -> str:
    return f"{kind} B{shape[0]} T{shape[1]} U{shape[2]} V{shape[3]}"


def _whole(module: Any, lm: torch.Tensor, am: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    size, frames, _ = am.shape
    bound = torch.tensor([[0, 0, targets.shape[1], frames]]).expand(size, 4).contiguous()
    options = {"boundary": bound, "reduction": "sum"}
    loss, grads = module.rnnt_loss_simple(lm, am, targets, 0, return_grad=True, **options)
    ranges = module.get_rnnt_prune_ranges(*grads, bound, LABELS)
    kept = sum(module.do_rnnt_pruning(am, lm, ranges))
    total: torch.Tensor = loss + module.rnnt_loss_pruned(kept, targets, ranges, 0, **options)
    return total


_SIMPLE: dict[str, Callable[..., torch.Tensor]] = {
    "simple": lambda module, lm, am, y: module.rnnt_loss_simple(lm, am, y, 0),
    "smoothed": lambda module, lm, am, y: module.rnnt_loss_smoothed(lm, am, y, 0, 0.1, 0.1),
    "simple, ranges, pruned": _whole,
}


def _warp_transducer(sources: Path, build: Path) -> Any:
    package = build / "warprnnt_pytorch"
    _compile(sources, package, "warp_rnnt", WARP, sources / "include")
    text = (sources / "pytorch_binding" / "warprnnt_pytorch" / "__init__.py").read_text()
    (package / "__init__.py").write_text(text)
    sys.path.insert(0, str(build))
    return importlib.import_module("warprnnt_pytorch")


def _fast_rnnt(sources: Path, build: Path) -> Any:
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
    headers = home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]
    command = ["g++", "-std=c++20", "-O3", "-fPIC", "-w", "-fopenmp", "-shared"]
    command += [f"-DTORCH_EXTENSION_NAME={name}", *(f"-I{header}" for header in (*headers, include))]
    command += ["-x", "c++", *(str(sources / file) for file in files), "-o", str(target)]
    command += [f"-L{home / 'lib'}", *libraries, f"-Wl,-rpath,{home / 'lib'}"]
    print(" ".join(command), file=sys.stderr)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
