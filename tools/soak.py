"""2,000 steps: does memory stay flat, do files and threads stay as many? `make soak`, or `python -m tools.soak`.

training    a small LF-MMI training with checkpoints, log and prefetching: CPU kernels
device      sums and occupancies by the CUDA kernels, compiled for the host

Each part prints the slope of the resident memory in MB per 100 steps after the first fifth, and how many more files and
threads there were in the second half of the rest than in the first (medians: a prefetching thread comes and goes).
Status 1 if memory grows by 1 MB per 100 steps or more, or if files or threads become more.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda.device import DeviceArray
from fsachain.batch import TableBatch
from fsachain.train.reporting import Progress
from tests.toy_training import NUM_PDFS, any_pdf, corpus, lfmmi_trainer, one_pdf_table
from tools.cuda_on_host import HostDevice, skip_reason

MAX_SLOPE = 1.0  # MB per 100 steps
STEPS_PER_EPOCH, BATCH = 50, 4
_EVERY = 10  # steps between two measurements
_WARM = 5  # one part in so many is left out at the beginning: caches fill, pools grow


@dataclass
class Course:
    """What the process held, every few steps: resident bytes, open files, threads."""

    name: str
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def note(self, step: int) -> None:
        if step % _EVERY:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.files.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 (a folder that changes while it is read)
        self.threads.append(len(os.listdir("/proc/self/task")))  # noqa: PTH208

    def verdict(self) -> tuple[str, bool]:
        first = len(self.memory) // _WARM
        memory = np.array(self.memory[first:]) / 1e6
        slope = float(np.polyfit(np.arange(len(memory)) * _EVERY / 100, memory, 1)[0])
        grown = {}
        for what in ("files", "threads"):
            counts = getattr(self, what)[first:]
            half = len(counts) // 2
            grown[what] = round(float(np.median(counts[half:]) - np.median(counts[:half])))
        good = slope < MAX_SLOPE and all(more <= 0 for more in grown.values())
        line = (
            f"{self.name:<10}{len(self.memory) * _EVERY:>6} steps  {memory[-1]:8.1f} MB  {slope:+7.3f} MB per 100 steps  "
            f"files {grown['files']:+d}  threads {grown['threads']:+d}  {'flat' if good else 'GROWS'}"
        )
        return line, good


class Watch(Progress):
    def __init__(self, course: Course) -> None:
        self.course, self.steps = course, 0

    def batch(self, sums: Any) -> None:
        self.steps += 1
        self.course.note(self.steps)


def soak_training(steps: int) -> Course:
    """Utterances of many lengths, so that no buffer fits twice."""
    examples, numerators = corpus(STEPS_PER_EPOCH * BATCH)
    course = Course("training")
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "num_epochs": max(1, steps // STEPS_PER_EPOCH),
            "batch_size": BATCH,
            "checkpoint_every": 25,
        }
        trainer = lfmmi_trainer(folder, numerators, **options)
        trainer.progress = Watch(course)
        trainer.fit(examples, examples[:20])
    return course


def soak_device(steps: int) -> Course:
    """Run the CUDA kernels on the host, on batches that change."""
    device, generator = HostDevice(), np.random.default_rng(2)
    shared = any_pdf().table
    course = Course("device")
    for step in range(1, steps + 1):
        size = int(generator.integers(1, 5))
        lengths = generator.integers(4, 12, size)
        tables = [one_pdf_table(int(pdf), 3) for pdf in generator.integers(0, NUM_PDFS, size)]
        batch = TableBatch.share(shared, size) if step % 2 else TableBatch.pack(tables)
        scores = generator.standard_normal((size, int(lengths.max()), NUM_PDFS)).astype(np.float32)
        there, out, weights = device.upload([scores, np.zeros_like(scores), np.ones(size)])
        arrays = [_array(memory.pointer, scores, memory) for memory in (there, out)]
        cuda.add_occupancy(device, batch, arrays[0], lengths, 0.0, weights, arrays[1])
        device.launches.clear()  # a list for tests
        course.note(step)
    return course


def _array(pointer: int, like: npt.NDArray[np.float32], owner: object) -> DeviceArray:
    strides = tuple(size // like.itemsize for size in like.strides)
    return DeviceArray(pointer, "float32", like.shape, strides, owner)


PARTS: dict[str, Callable[[int], Course]] = {"training": soak_training, "device": soak_device}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of each part (default 2000)")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this one; may be given several times"
    )
    options = parser.parse_args(arguments)
    good = True
    for name in options.part or PARTS:
        gc.collect()
        if name == "device" and skip_reason() is not None:
            print(f"{name:<10}left out: {skip_reason()}")
            continue
        line, flat = PARTS[name](max(options.steps, 20 * _EVERY)).verdict()
        print(line, flush=True)
        good &= flat
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
