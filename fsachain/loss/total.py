"""log Z as a differentiable function of scores and arc weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsachain.backends.dispatch import BackendName
from fsachain.batch import TableBatch
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss import autograd as operators


def total_log_prob(
    batch: TableBatch,
    scores: Tensor,
    lengths: Any = None,
    *,
    leaky_hmm_coefficient: float = 0.0,
    arc_log_probs: Tensor | None = None,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> Tensor:
    """log Z of every sequence, equation (4); its derivative by the scores is the occupancy, equation (7).

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] float16, bfloat16, float32 or float64; the gradient comes in the same dtype.
        lengths: [N] integers on the host; None takes all T frames.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`.
        arc_log_probs: weights that replace the graphs' own, in arc order: [A] for a shared graph, else the graphs'
            weights one after another. Their gradient is the expected number of times that each arc is taken; the leak's
            init stays as it was compiled.
        backend: "auto" follows the scores' device, where the result and the gradient live in any case. Weighted arcs are
            always computed on the host, for which a device is waited for.
        memory_budget: bytes, beside scores and gradient, for the alphas of all frames, as for `forward_backward`; no bit of
            the results depends on it. The gradient of arc_log_probs keeps all alphas of one sequence for each thread.

    Returns:
        float64 [N]; -inf (no path) and NaN (illegal score) have zero gradient. Differentiating twice raises.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: as `forward_backward`.
    """
    if not isinstance(scores, Tensor):
        raise ShapeError(
            f"scores is a {type(scores).__name__}; expected a torch tensor (numpy: use forward_backward)"
        )
    frames = torch.full((scores.shape[0],), scores.shape[1]) if lengths is None else torch.as_tensor(lengths)
    key, budget = torch.from_numpy(batch.key), operators.budget_number(memory_budget)
    if arc_log_probs is None:
        differentiable = torch.is_grad_enabled() and scores.requires_grad
        options = leaky_hmm_coefficient, backend, differentiable, budget
        return operators.log_prob(scores, frames, key, *options)[0]
    counts = [table.num_arcs for table in batch.tables]
    if arc_log_probs.shape != (sum(counts),):
        raise ShapeError(
            f"arc_log_probs has shape {list(arc_log_probs.shape)}; expected [{sum(counts)}], one for each arc"
        )
    if arc_log_probs.device != scores.device:
        raise BackendUnavailable(
            f"arc_log_probs is on {arc_log_probs.device}; expected {scores.device} as the scores"
        )
    with_gradient = torch.is_grad_enabled()
    rows = 0
    if with_gradient and arc_log_probs.requires_grad:
        rows = batch.size if batch.is_shared else 1
    return operators.weighted_log_prob(
        scores,
        arc_log_probs,
        frames,
        key,
        torch.tensor(counts),
        leaky_hmm_coefficient,
        backend,
        rows,
        with_gradient and scores.requires_grad,
        budget,
    )[0]
