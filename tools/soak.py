"""2,000 steps: does memory stay flat, do files and threads stay as many? `make soak`, or `python -m tools.soak`.

training    a small LF-MMI training with checkpoints, log and prefetching: CPU kernels
device      sums and occupancies by the CUDA kernels, compiled for the host

Each part prints the slope of the resident memory in MB per 100 steps after the first fifth, and how many more files and
threads there were in the second half of the rest than in the first (medians: a prefetching thread comes and goes).
Status 1 if memory grows by 1 MB per 100 steps or more, or if files or threads become more.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.asr.train.reporting import Progress
from fsachain.backends.cuda import backend as cuda
from fsachain.batch import TableBatch
from tests.asr.toy_training import NUM_PDFS, any_pdf, corpus, lfmmi_trainer, one_pdf_table
from tests.device_arrays import on_device
from tools import parser_of
from tools.cuda_on_host import HostDevice, skip_reason

MAX_SLOPE = 1.0  # MB per 100 steps
STEPS_PER_EPOCH, BATCH = 50, 4
EVERY = 10  # steps between two measurements
WARM = 5  # one part in so many is left out at the beginning: caches fill, pools grow


class Course(Progress):
    """What the process held, every few steps: resident MB, open files, threads."""

    def __init__(self) -> None:
        self.steps, self.held = 0, []

    def batch(self, sums: Any = None) -> None:
        self.steps += 1
        if self.steps % EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            counts = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))  # noqa: PTH208 (they change meanwhile)
            self.held.append((pages * os.sysconf("SC_PAGE_SIZE") / 1e6, *counts))

    def verdict(self) -> tuple[str, bool]:
        memory, *counts = np.array(self.held[len(self.held) // WARM :]).T
        slope = float(np.polyfit(np.arange(len(memory)) * EVERY / 100, memory, 1)[0])
        half = len(memory) // 2
        files, threads = (round(float(np.median(x[half:]) - np.median(x[:half]))) for x in counts)
        good = slope < MAX_SLOPE and files <= 0 and threads <= 0
        growth = f"{slope:+7.3f} MB per 100 steps  files {files:+d}  threads {threads:+d}"
        line = f"{self.steps:>6} steps  {memory[-1]:8.1f} MB  {growth}  {'flat' if good else 'GROWS'}"
        return line, good


def soak_training(steps: int, course: Course) -> None:
    """Utterances of many lengths, so that no buffer fits twice."""
    examples, numerators = corpus(STEPS_PER_EPOCH * BATCH)
    epochs = max(1, steps // STEPS_PER_EPOCH)
    with tempfile.TemporaryDirectory() as folder:
        options = {"num_epochs": epochs, "batch_size": BATCH, "checkpoint_every": 25}
        trainer = lfmmi_trainer(folder, numerators, **options)
        trainer.progress = course
        trainer.fit(examples, examples[:20])


def soak_device(steps: int, course: Course) -> None:
    """Run the CUDA kernels on the host, on batches that change."""
    device, generator, shared = HostDevice(), np.random.default_rng(2), any_pdf().table
    for step in range(1, steps + 1):
        size = int(generator.integers(1, 5))
        lengths = generator.integers(4, 12, size)
        tables = [one_pdf_table(int(pdf), 3) for pdf in generator.integers(0, NUM_PDFS, size)]
        batch = TableBatch.share(shared, size) if step % 2 else TableBatch.pack(tables)
        scores = generator.standard_normal((size, int(lengths.max()), NUM_PDFS)).astype(np.float32)
        there, out = on_device(device, scores), on_device(device, np.zeros_like(scores))
        (weights,) = device.upload([np.ones(size)])
        cuda.add_occupancy(device, batch, there, lengths, 0.0, weights, out)
        device.launches.clear()  # a list for tests
        course.batch()


PARTS: dict[str, Callable[[int, Course], None]] = {"training": soak_training, "device": soak_device}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of each part (default 2000)")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this one; may be given several times"
    )
    options = parser.parse_args(arguments)
    good = True
    for name in options.part or PARTS:
        gc.collect()
        line, flat, course = f"left out: {skip_reason()}", True, Course()
        if name != "device" or skip_reason() is None:
            PARTS[name](max(options.steps, 20 * EVERY), course)
            line, flat = course.verdict()
        print(f"{name:<10}{line}", flush=True)
        good &= flat
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
