"""The memory of a large batch beside its scores and gradient, measured in a process of its own.

    python -m tools.bench.peak FOLDER STATES ARCS PDFS SEQUENCES FRAMES [BYTES]

is what `memory` runs, without a memory budget; FOLDER may be "". With BYTES, 0 to inf, for that budget. The process fills
scores and gradient, runs a few frames so that the kernels are compiled, resets the system's mark of the most memory that it
held, and runs the batch once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.backends.cpu import backend as cpu
from tools.bench import machine
from tools.bench.timing import Table
from tools.bench.workloads import LEAK, Sizes, Workloads, large_denominator

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FEW_FRAMES = 3
HEADER = (
    f"  {'':34} {'MB beside scores and gradient':>30} {'all alphas, MB':>15} {'seconds':>8} {'ns/arc':>7}"
)


@dataclass(frozen=True)
class Peak:
    """One run; bytes. `alphas` is what all alphas of the batch take in float32."""

    name: str
    peak: int
    alphas: int
    seconds: float
    evaluations: int

    def __str__(self) -> str:
        each = 1e9 * self.seconds / self.evaluations
        return f"  {self.name:34} {self.peak / 1e6:30.0f} {self.alphas / 1e6:15.0f} {self.seconds:8.2f} {each:7.3f}"

    def record(self) -> dict[str, Any]:
        return vars(self)


def memory(work: Workloads, sizes: Sizes) -> Table:
    """One row where the system tells how much memory a process held, none elsewhere."""
    rows = []
    if RESET.exists():
        folder = "" if work.folder is None else str(work.folder)
        command = [sys.executable, "-m", "tools.bench.peak", folder, *map(str, sizes.large)]
        done = subprocess.run(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(Peak(**json.loads(done.stdout)))
    return Table(f"memory of a large batch, leak {LEAK:g}, default budget", HEADER, rows)


def measure(folder: Path | None, sizes: Sizes, memory_budget: float | None = None) -> Peak:
    """Run the large batch once in this process, with the default budget or another."""
    size, frames = sizes.large[3:]
    graph = large_denominator(folder, sizes)
    batch = graph.batch(size)
    scores = np.random.default_rng(3).standard_normal((size, frames, graph.num_pdfs), dtype=np.float32)
    out, weights = np.ones_like(scores), np.ones(size)
    cpu.add_occupancy(batch, scores, np.full(size, FEW_FRAMES), LEAK, weights, out)
    RESET.write_text("5", encoding="ascii")  # the mark falls to what is held now
    before, started = held("VmRSS"), time.perf_counter()
    cpu.add_occupancy(batch, scores, np.full(size, frames), LEAK, weights, out, memory_budget)
    seconds = time.perf_counter() - started
    return Peak(
        name=f"{'den10k' if folder else 'random'}, B {size}, T {frames}",
        peak=held("VmHWM") - before,
        alphas=4 * (frames + 1) * graph.table.num_states * size,
        seconds=seconds,
        evaluations=frames * size * len(graph.table.by_dst.arc),
    )


def held(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    states, arcs, pdfs, sequences, frames = map(int, numbers[:5])
    large = replace(Sizes(), large=(states, arcs, pdfs, sequences, frames))
    budget = float(numbers[5]) if len(numbers) > 5 else None
    print(json.dumps(measure(Path(name) if name else None, large, budget).record()))
