"""The memory of a large batch beside its scores and gradient, measured in a process of its own.

    python -m tools.bench.peak FOLDER STATES ARCS PDFS SEQUENCES FRAMES

is what `memory` runs; FOLDER may be "". The process fills scores and gradient, runs a few frames so that the kernels are
compiled, resets the system's mark of the most memory that it held, and runs the batch once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fsachain.backends.cpu import backend as cpu
from tools.bench import machine
from tools.bench.timing import Row, Table
from tools.bench.workloads import LEAK, Sizes, Workloads, large_denominator

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FEW_FRAMES = 3


def memory(work: Workloads, sizes: Sizes) -> Table:
    """One row where the system tells how much memory a process held, none elsewhere."""
    name = f"{'random' if work.folder is None else 'den10k'}, B {sizes.large[3]}, T {sizes.large[4]}"
    rows = apart(name, __spec__.name, work.folder or "", *sizes.large)
    return Table(f"memory of a large batch, leak {LEAK:g}, default budget", rows)


def apart(name: str, module: str, *arguments: object) -> list[Row]:
    """A row of the figures that a module prints as JSON when it runs alone."""
    if not RESET.exists():
        return []
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [Row(name, 1, figures=json.loads(done.stdout))]


def held_by(run: Callable[[], object]) -> int:
    """The most bytes that this process holds while it runs, beyond those before."""
    RESET.write_text("5", encoding="ascii")  # the mark falls to what is held now
    before = _held("VmRSS")
    run()
    return _held("VmHWM") - before


def _held(field: str) -> int:
    lines = STATUS.read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def measure(folder: Path | None, sizes: Sizes) -> dict[str, float]:
    """Run the large batch once in this process; "all alphas" are those of the batch in float32."""
    size, frames = sizes.large[3:]
    graph = large_denominator(folder, sizes)
    batch = graph.batch(size)
    scores = np.random.default_rng(3).standard_normal((size, frames, graph.num_pdfs), dtype=np.float32)
    out, weights = np.ones_like(scores), np.ones(size)
    cpu.add_occupancy(batch, scores, np.full(size, FEW_FRAMES), LEAK, weights, out)
    lengths, started = np.full(size, frames), time.perf_counter()
    peak = held_by(lambda: cpu.add_occupancy(batch, scores, lengths, LEAK, weights, out))
    seconds = time.perf_counter() - started
    return {
        "MB beside scores and gradient": peak / 1e6,
        "MB of all alphas": 4e-6 * (frames + 1) * graph.table.num_states * size,
        "seconds": seconds,
        "ns/arc": 1e9 * seconds / (frames * size * len(graph.table.by_dst.arc)),
    }


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    states, arcs, pdfs, sequences, frames = map(int, numbers)
    large = replace(Sizes(), large=(states, arcs, pdfs, sequences, frames))
    print(json.dumps(measure(Path(name) if name else None, large)))
