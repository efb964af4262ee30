"""How long the host works for a call on a device: the real CuPy over a driver that checks launches and does nothing.

    python -m tools.bench.host_time [--calls N] [--clusters N]

Milliseconds of the calling thread: the least and the median of N calls, then launches, and functions of Python, of one. The
arrays are CuPy's. What torch adds, its autograd and its pool, only a GPU can tell. "unseen" are numerators that come to a
training for the first time, made by the thread that is ahead of it, and what they send. The yardstick, eager additions of
torch's, tells how fast the machine was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from fsachain import TableBatch
from fsachain.asr.train.source import SupervisedBatch
from fsachain.asr.train.trainer import laid_out, prefetch
from fsachain.backends.cuda import backend
from fsachain.backends.cuda.ctc import Targets, Task, ctc
from fsachain.backends.cuda.device import Limits
from tools import parser_of
from tools.bench.timing import Call, seconds_of
from tools.bench.workloads import chains, entered_by_one_pdf
from tools.cuda_on_host import libcuda

H200 = Limits((9, 0), 132, 232_448, 8, 139 << 30)
TARGETS = {"denominator": 0.25, "numerators": 0.2, "CTC": 0.25, "unseen": 6.0}  # ms
NUMERATORS = 128, 200, 2000  # sequences, states and pdfs
FRAMES = 16  # the host's work does not depend on them


@contextmanager
def empty_driver(clusters: int) -> Iterator[Any]:
    """CuPy on an H200 that does nothing, and says that so many clusters of 4 blocks run at once."""
    index = libcuda.device_with(H200, {4: clusters})
    import cupy

    settings = libcuda.settings()
    with libcuda.visible(), cupy.cuda.Device(index):
        settings.executes = 0
        try:
            yield cupy
        finally:
            settings.executes = 1


def occupancies(cupy: Any, batch: TableBatch, leaky: float) -> Call:
    """Log Z and occupancies as a loss asks for them."""
    shape = batch.size, FRAMES, batch.tables[0].num_pdfs
    scores, out = cupy.empty(shape, np.float32), cupy.empty(shape, np.float32)
    weights, lengths = cupy.empty(batch.size, np.float64), np.full(batch.size, FRAMES)
    return lambda: backend.OnDevice().add_occupancy(batch, scores, lengths, leaky, weights, out, None, True)


def losses(cupy: Any, size: int = 32, classes: int = 500, labels: int = 40) -> Call:
    shape = size, FRAMES, classes
    scores, gradient = cupy.empty(shape, np.float32), cupy.empty(shape, np.float32)
    targets = Targets(backend.view(cupy.empty((size, labels), np.int64)), np.full(size, labels))
    lengths = np.full(size, FRAMES)

    def call() -> Any:
        device = backend.find_device(scores)
        return ctc(device, backend.view(scores), targets, lengths, Task(0), backend.view(gradient))

    return call


def cases(cupy: Any) -> dict[str, Call]:
    return {
        "denominator": occupancies(cupy, entered_by_one_pdf(3033, 51_022, 84).batch(128), 1e-5),
        "numerators": occupancies(cupy, chains(np.random.default_rng(0), *NUMERATORS), 0.0),
        "CTC": losses(cupy),
    }


def unseen(cupy: Any, count: int = 20) -> tuple[list[float], float]:
    """Milliseconds of the training's thread for each of `count` batches of 128 numerators; and MB that one sends."""
    rng, taken, sent = np.random.default_rng(1), [], []
    batches = ((SupervisedBatch(cast(Any, None), chains(rng, *NUMERATORS)),) for _ in range(count))
    for _, parts in prefetch(map(laid_out, batches)):
        call = occupancies(cupy, parts[0].numerators, 0.0)
        with libcuda.calls() as calls:
            taken += milliseconds(call, 1, 0)
        sent.append(1e-6 * sum(numbers[1] for name, *numbers in calls if name == "cudaMemcpyAsync"))
    return taken[1:], max(sent)


def milliseconds(call: Call, count: int, before: int = 20) -> list[float]:
    """Of the calling thread, for each of `count` calls, after some by which everything is compiled and uploaded."""
    for _ in range(before):
        call()
    return [1e3 * seconds_of(call, now=time.thread_time) for _ in range(count)]


def work(call: Call) -> tuple[int, int]:
    """Launches, and functions of Python that are entered, of a call that has been made before."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    with libcuda.calls() as calls:
        call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(not name.startswith("cuda") for name, *_ in calls), entered


def tell(name: str, taken: Sequence[float], more: str) -> None:
    limit = f", limit {TARGETS[name]:.2f}" if name in TARGETS else ""
    print(f"{name:12} least {min(taken):.3f} ms, median {median(taken):.3f}{limit}; {more}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--clusters", type=int, default=33, help="of 4 blocks, that run at once")
    options = parser.parse_args(arguments)
    few = torch.zeros(4)

    def additions() -> None:
        for _ in range(100):
            few.add(1.0)

    with empty_driver(options.clusters) as cupy:
        for name, call in cases(cupy).items():
            taken, (launches, entered) = milliseconds(call, options.calls), work(call)
            tell(name, taken, f"{launches} launches, {entered} functions")
        taken, sent = unseen(cupy)
        tell("unseen", taken, f"{sent:.1f} MB sent, limit 3")
        tell("yardstick", milliseconds(additions, options.calls), "100 additions of torch's")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
