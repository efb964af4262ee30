"""How fast the device lets anyone be: bytes at the rate of a copy, multiply-adds at the rate of a matrix product.

Both rates are measured in the same run. Of an arc-evaluation two multiply-adds are counted, of a batch the scores once and
the gradient in and out, as in `tools.bench.limit`; operands that must come from shared memory or L2 are not, so that no
program reaches 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tools.bench.gpu_timing import Call, Clock, take_turns
from tools.bench.limit import PER_ARC, Work
from tools.bench.row import Comparison
from tools.bench.timing import Times


class Rates(NamedTuple):
    """Bytes read and written, and float32 multiply-adds, per second."""

    bytes: float
    multiply_adds: float

    def __str__(self) -> str:
        return f"copy {self.bytes * 1e-12:.2f} TB/s, float32 {2e-12 * self.multiply_adds:.1f} TFLOP/s"

    def limit(self, work: Work) -> float:
        return max(work.bytes / self.bytes, PER_ARC * work.evaluations / self.multiply_adds)

    def against(self, times: Times, work: Work) -> Comparison:
        """How far a job is from the limit of its work."""
        return Comparison("limit", times.scaled(1.0 / self.limit(work)))


def measure_rates(device: torch.device, clock: Clock, side: int, num_bytes: int, seconds: float) -> Rates:
    """Rates of a copy of `num_bytes` and of a product of two float32 matrices [side, side]."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = torch.rand(2, side, side, device=device)
    product = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no tensor cores: the recursions have no use for them
    try:
        jobs: dict[str, Call] = {
            "copy": lambda: target.copy_(source),
            "product": lambda: torch.mm(left, right, out=product),
        }
        times = take_turns(jobs, seconds, clock)
    finally:
        torch.set_float32_matmul_precision(before)
    best = {name: entry.scaled(1.0).least for name, entry in times.items()}
    return Rates(2 * num_bytes / best["copy"], side**3 / best["product"])
