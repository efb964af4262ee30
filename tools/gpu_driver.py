"""A small run of every kernel through the public functions, for compute-sanitizer: results are compared with the reference.

    compute-sanitizer --tool memcheck python tools/gpu_driver.py

The shapes are small, because a sanitizer makes each access many times as slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from fsachain import LFMMILoss, TableBatch, best_path, compile_table, forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.rnnt import rnnt_loss
from tools.bench.workloads import connected, ctc_graph, left_to_right

NUM_PDFS, SIZE, FRAMES = 20, 3, 8
LENGTHS = [FRAMES, FRAMES - 3, 0]
TOLERANCE = 1e-3


def main(device: str = "cuda") -> int:
    """1 where a result is wrong."""
    wrong = [name for name, error in errors(torch.device(device)) if not error <= TOLERANCE]
    print(f"wrong: {', '.join(wrong)}" if wrong else "all results agree with the reference")
    return int(bool(wrong))


def errors(device: torch.device) -> list[tuple[str, float]]:
    """The largest difference of each result."""
    found = []
    scores = np.random.default_rng(1).standard_normal((SIZE, FRAMES, NUM_PDFS)).astype(np.float32)
    there = torch.from_numpy(scores).to(device)
    for name, batch, leak in batches():
        ours = forward_backward(batch, there, LENGTHS, leaky_hmm_coefficient=leak)
        exact = forward_backward(batch, scores, LENGTHS, leaky_hmm_coefficient=leak, backend="reference")
        found.append((f"{name}: log Z", _difference(ours.log_prob, exact.log_prob)))
        found.append((f"{name}: occupancy", _difference(ours.occupancy, exact.occupancy)))
        path, right = (best_path(batch, given, LENGTHS) for given in (there, scores))
        found.append((f"{name}: best path", _difference(path.score, right.score)))
    for name, loss in (("LFMMILoss", _lfmmi), ("CTC", _ctc), ("RNN-T", _rnnt)):
        found.append((name, abs(_value(loss, there) - _value(loss, torch.from_numpy(scores)))))
    return found


def batches() -> list[tuple[str, TableBatch, float]]:
    """A shared denominator with and without a leak, one of more states than a warp holds, packed numerators, CTC graphs."""
    rng = np.random.default_rng(2)
    small = DenominatorGraph(connected(40, 200, NUM_PDFS), NUM_PDFS)
    large = DenominatorGraph(connected(700, 3000, NUM_PDFS), NUM_PDFS)
    chains = [left_to_right(rng.integers(0, NUM_PDFS, 3), np.zeros(3, bool), -1.0, 1) for _ in range(SIZE)]
    ctc = [ctc_graph(rng.integers(1, NUM_PDFS, 3)) for _ in range(SIZE)]
    return [
        ("denominator, leaky", small.batch(SIZE), 1e-5),
        ("denominator, exact", small.batch(SIZE), 0.0),
        ("larger denominator", large.batch(SIZE), 0.1),
        ("numerators", TableBatch.pack([compile_table(graph, NUM_PDFS) for graph in chains]), 0.0),
        ("CTC graphs", TableBatch.pack([compile_table(graph, NUM_PDFS) for graph in ctc]), 0.0),
    ]


def _difference(ours: torch.Tensor, exact: np.ndarray) -> float:
    left, right = ours.cpu().numpy().astype(np.float64), np.asarray(exact, np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0.0, np.abs(left - right)).max(initial=0.0))


def _lfmmi(scores: torch.Tensor) -> torch.Tensor:
    """With penalties on scores that leave the range."""
    numerators = next(batch for name, batch, _ in batches() if name == "numerators")
    graph = DenominatorGraph(connected(40, 200, NUM_PDFS), NUM_PDFS)
    loss = LFMMILoss(graph, l2_regularize=0.01, out_of_range_regularize=0.01)
    return loss(20.0 * scores, torch.tensor(LENGTHS), numerators)


def _ctc(scores: torch.Tensor) -> torch.Tensor:
    targets = torch.tensor([[1, 2, 2], [3, 0, 0], [0, 0, 0]], device=scores.device)
    return ctc_loss(scores.transpose(0, 1), targets, LENGTHS, [3, 1, 0], inputs="logits", reduction="sum")


def _rnnt(scores: torch.Tensor) -> torch.Tensor:
    """Constrained and with FastEmit, which have kernels of their own; rows of nodes differ by a factor."""
    logits = scores.unsqueeze(2) * torch.tensor([1.0, -0.5, 2.0], device=scores.device).view(1, 1, 3, 1)
    targets = torch.tensor([[1, 2], [3, 0], [0, 0]], device=scores.device)
    options = {"reduction": "sum", "rnnt_type": "constrained", "fastemit_lambda": 0.1}
    return rnnt_loss(logits, targets, LENGTHS, [2, 1, 0], **options)


def _value(loss: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor) -> float:
    """The loss and the sum of its gradient's magnitudes."""
    leaf = scores.detach().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return float(value.detach()) + float(leaf.grad.abs().sum())


if __name__ == "__main__":
    raise SystemExit(main())
