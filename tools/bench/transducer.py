"""The transducer losses on the CPU, next to log_softmax forward and backward of the same logits.

    python -m tools.bench.transducer SEQUENCES FRAMES LABELS CLASSES

is what `transducer` runs to measure memory, in a process of its own: what loss and gradient in place take beside the logits
at most, as arrays and as the system counts it, which holds what Python and torch load on first use as well.
"""

from __future__ import annotations

import json
import sys
import tracemalloc

import torch

from fsachain.loss.grid import mutual_information_recursion
from fsachain.loss.pruned import get_rnnt_prune_ranges, rnnt_loss_pruned, rnnt_loss_simple
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.variants import hat_loss, tdt_loss
from tools.bench.calls import with_gradient
from tools.bench.peak import apart, held_by
from tools.bench.tables import compared, per_thread
from tools.bench.timing import Call, Table
from tools.bench.workloads import Sizes, Workloads

Shape = tuple[int, int, int, int]
PRUNED = 5  # labels of a frame
DURATIONS = [0, 1, 2, 4]
YARDSTICK = "log_softmax"
IN_A_ROW = 10  # recursions: one alone would time how cold the caches are after the jobs before it
RECURSIONS = f"recursion, {IN_A_ROW} in a row"


def transducer(work: Workloads, sizes: Sizes) -> Table:
    """Loss and gradient from logits, the recursion alone, and the pruned pair; nanoseconds are for each node (t, u)."""
    size, frames, labels, classes = sizes.transducer
    ours = calls(sizes.transducer)
    theirs = per_thread({YARDSTICK: ours.pop(YARDSTICK)}, sizes)
    nodes = size * frames * (labels + 1)
    recursions = per_thread({RECURSIONS: ours.pop(RECURSIONS)}, sizes)
    rows = compared(per_thread(ours, sizes), theirs, sizes.seconds, nodes)
    rows += compared(recursions, theirs, sizes.seconds, IN_A_ROW * nodes)
    rows += apart("rnnt_loss, in place", __spec__.name, *sizes.transducer)
    title = f"transducer, B {size}, T {frames}, U {labels}, V {classes}; ns/arc is ns for each (t, u)"
    return Table(title, rows)


def calls(shape: Shape) -> dict[str, Call]:
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
    losses = {
        YARDSTICK: (lambda: logits.log_softmax(3), logits),
        "rnnt_loss": (lambda: rnnt_loss(logits, targets, *lengths), logits),
        # The gradient becomes the next round's logits: any will do.
        "rnnt_loss, in place": (lambda: rnnt_loss(logits, targets, *lengths, inplace=True), logits),
        "hat_loss": (lambda: hat_loss(logits, labels_only, *lengths, 0), logits),
        "tdt_loss": (lambda: tdt_loss(logits, labels_only, *lengths, DURATIONS, 0), logits),
        "rnnt_loss_simple": (lambda: rnnt_loss_simple(lm, am, targets, 0), am),
        f"rnnt_loss_pruned, {PRUNED} labels": (lambda: rnnt_loss_pruned(kept, targets, ranges, 0), kept),
    }
    made: dict[str, Call] = {name: with_gradient(*loss) for name, loss in losses.items()}
    made[RECURSIONS] = lambda: [
        mutual_information_recursion(px, py, return_grad=True) for _ in range(IN_A_ROW)
    ]
    return made


def measure(shape: Shape) -> dict[str, float]:
    """Run the loss once in place in this process, after a small one that compiles the kernels and starts the threads."""
    size, frames, labels, classes = shape
    logits = torch.randn(size, frames, labels + 1, classes).requires_grad_()
    targets = torch.randint(0, classes, (size, labels))
    few = logits.detach()[:, :2].contiguous().requires_grad_()
    rnnt_loss(few, targets, [2] * size, [labels] * size, inplace=True).backward()
    tracemalloc.start()
    lengths = [frames] * size, [labels] * size
    process = held_by(lambda: rnnt_loss(logits, targets, *lengths, inplace=True).backward())
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    percent = 100.0 / (4 * logits.numel())
    return {"% of the logits beside them: arrays": arrays * percent, "process": process * percent}


if __name__ == "__main__":
    batch, length, symbols, width = map(int, sys.argv[1:])
    print(json.dumps(measure((batch, length, symbols, width))))
