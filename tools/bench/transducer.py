"""The transducer losses on the CPU, next to log_softmax forward and backward of the same logits.

    python -m tools.bench.transducer SEQUENCES FRAMES LABELS CLASSES

is what `transducer` runs to measure memory, in a process of its own: what loss and gradient in place take beside the logits
at most, as arrays and as the system counts it, which holds what Python and torch load on first use as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsachain.loss.grid import mutual_information_recursion
from fsachain.loss.pruned import get_rnnt_prune_ranges, rnnt_loss_pruned, rnnt_loss_simple
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.variants import hat_loss, tdt_loss
from tools.bench import machine
from tools.bench.peak import RESET, held
from tools.bench.tables import as_jobs
from tools.bench.timing import HEADER, Comparison, Row, Table, take_turns
from tools.bench.workloads import Sizes, Workloads

Shape = tuple[int, int, int, int]
PRUNED = 5  # labels of a frame
DURATIONS = [0, 1, 2, 4]
YARDSTICK = "log_softmax"
IN_A_ROW = 10  # recursions: one alone would time how cold the caches are after the jobs before it
RECURSIONS = f"recursion, {IN_A_ROW} in a row"


@dataclass(frozen=True)
class Extra:
    """Bytes beside the logits at most, of arrays and of the process, and those of the logits."""

    name: str
    arrays: int
    process: int
    logits: int

    def __str__(self) -> str:
        arrays, process = (
            f"{x / 1e6:.2f} MB, {100.0 * x / self.logits:.2f} %" for x in (self.arrays, self.process)
        )
        beside = f"beside {self.logits / 1e6:.0f} MB of logits"
        return f"  {self.name:34}     {beside}: arrays {arrays}; process {process}"

    def record(self) -> dict[str, Any]:
        return vars(self)


def transducer(work: Workloads, sizes: Sizes) -> Table:
    """Loss and gradient from logits, the recursion alone, and the pruned pair; nanoseconds are for each node (t, u)."""
    size, frames, labels, classes = sizes.transducer
    rows: list[Row | Extra] = []
    for threads in sizes.threads:
        jobs = as_jobs({(name, threads): call for name, call in calls(sizes.transducer).items()})
        times = take_turns(jobs, sizes.seconds)
        for key, taken in times.items():
            if key[0] != YARDSTICK:
                ratio = Comparison(YARDSTICK, taken.over(times[YARDSTICK, threads]))
                nodes = size * frames * (labels + 1) * (IN_A_ROW if key[0] == RECURSIONS else 1)
                rows.append(Row(*key, nodes, taken, (ratio,)))
    if RESET.exists():
        command = [sys.executable, "-m", "tools.bench.transducer", *map(str, sizes.transducer)]
        done = subprocess.run(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(Extra(**json.loads(done.stdout)))
    title = f"transducer, B {size}, T {frames}, U {labels}, V {classes}; ns/arc is ns for each (t, u)"
    return Table(title, HEADER, rows)


def calls(shape: Shape) -> dict[str, Callable[[], object]]:
    """What is timed, all with the gradient."""
    size, frames, labels, classes = shape
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(size, frames, labels + 1, classes, generator=generator).requires_grad_()
    am = torch.randn(size, frames, classes, generator=generator).requires_grad_()
    lm = torch.randn(size, labels + 1, classes, generator=generator).requires_grad_()
    px = torch.randn(size, labels, frames + 1, generator=generator)
    py = torch.randn(size, labels + 1, frames, generator=generator)
    targets = torch.randint(0, classes, (size, labels), generator=generator)
    labels_only = 1 + targets % (classes - len(DURATIONS) - 1)  # neither the blank, 0, nor a duration
    _, occupancies = rnnt_loss_simple(lm, am, targets, 0, return_grad=True)
    ranges = get_rnnt_prune_ranges(*occupancies, None, PRUNED)
    kept = torch.randn(*ranges.shape, classes, generator=generator).requires_grad_()
    lengths = [frames] * size, [labels] * size
    return {
        YARDSTICK: _with_gradient(lambda: logits.log_softmax(3), logits),
        "rnnt_loss": _with_gradient(lambda: rnnt_loss(logits, targets, *lengths), logits),
        # The gradient becomes the next round's logits: any will do.
        "rnnt_loss, in place": _with_gradient(
            lambda: rnnt_loss(logits, targets, *lengths, inplace=True), logits
        ),
        "hat_loss": _with_gradient(lambda: hat_loss(logits, labels_only, *lengths, 0), logits),
        "tdt_loss": _with_gradient(lambda: tdt_loss(logits, labels_only, *lengths, DURATIONS, 0), logits),
        RECURSIONS: lambda: [mutual_information_recursion(px, py, return_grad=True) for _ in range(IN_A_ROW)],
        "rnnt_loss_simple": _with_gradient(lambda: rnnt_loss_simple(lm, am, targets, 0), am),
        f"rnnt_loss_pruned, {PRUNED} labels": _with_gradient(
            lambda: rnnt_loss_pruned(kept, targets, ranges, 0), kept
        ),
    }


def _with_gradient(call: Callable[[], Tensor], leaf: Tensor) -> Callable[[], object]:
    def run() -> Tensor | None:
        leaf.grad = None
        value = call()
        # Anything of its shape: the logits themselves are at hand without a pass over memory.
        value.backward(value.detach() if value.ndim else None)
        return leaf.grad

    return run


def measure(shape: Shape) -> Extra:
    """Run the loss once in place in this process, after a small one that compiles the kernels and starts the threads."""
    size, frames, labels, classes = shape
    logits = torch.randn(size, frames, labels + 1, classes).requires_grad_()
    targets = torch.randint(0, classes, (size, labels))
    few = logits.detach()[:, :2].contiguous().requires_grad_()
    rnnt_loss(few, targets, [2] * size, [labels] * size, inplace=True).backward()
    RESET.write_text("5", encoding="ascii")
    tracemalloc.start()
    before = held("VmRSS")
    rnnt_loss(logits, targets, [frames] * size, [labels] * size, inplace=True).backward()
    arrays, process = tracemalloc.get_traced_memory()[1], held("VmHWM") - before
    tracemalloc.stop()
    return Extra("rnnt_loss, in place", arrays, process, 4 * logits.numel())


if __name__ == "__main__":
    batch, length, symbols, width = map(int, sys.argv[1:])
    print(json.dumps(measure((batch, length, symbols, width)).record()))
