"""log Z as a differentiable function of scores and arc weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.arrays import check_budget, check_leak
from fsachain.backends.dispatch import BackendName
from fsachain.batch import Graphs, TableBatch, find_batch
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss.autograd import Operator, by_host, new_buffer, packed, scale_rows


class LogProb(NamedTuple):
    """log Z [N] in float64, -inf or NaN where a sequence is not ok; occupancy [N, T, P], empty unless asked for."""

    log_prob: Tensor
    occupancy: Tensor


def _log_prob(
    scores: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    leaky: float,
    backend: str,
    with_occupancy: bool,
    memory_budget: float | None,
) -> LogProb:
    batch = find_batch(int(batch_key.item()))
    call = dispatch.bind(batch, scores, lengths, backend, memory_budget)
    check_leak(batch, leaky)
    if not with_occupancy:
        return LogProb(call.log_probs(batch, leaky).log_prob, new_buffer(scores, False))
    found, out = call.occupancy(batch, leaky, None, scores)
    return LogProb(found.log_prob, out)


def _fake_log_prob(
    scores: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    leaky: float,
    backend: str,
    with_occupancy: bool,
    _: Any,
) -> LogProb:
    return LogProb(scores.new_empty(scores.shape[0], dtype=torch.float64), new_buffer(scores, with_occupancy))


def _log_prob_gradient(
    factor: Tensor, occupancy: Tensor, scores: Tensor, is_last: bool
) -> dict[str, Tensor | None]:
    return {"scores": scale_rows(occupancy, factor, scores, is_last)}


log_prob = Operator(_log_prob, _fake_log_prob, _log_prob_gradient)


class WeightedLogProb(NamedTuple):
    """As `LogProb`; and the sums over frames of gamma, one row for each sequence or one for all, or none."""

    log_prob: Tensor
    occupancy: Tensor
    arcs: Tensor


def _weighted_log_prob(
    scores: Tensor,
    arc_log_probs: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    arc_counts: Tensor,
    leaky: float,
    backend: str,
    rows: int,
    with_occupancy: bool,
    memory_budget: float | None,
) -> WeightedLogProb:
    """log Z for arc weights given as one vector [A]: of a shared graph, or of the sequences one after another.

    arc_counts: int64, the arcs of each graph, one entry for a shared graph. rows: of the last result, which has a column
    for each weight: N for a shared graph; one for graphs of their own; 0 where these sums are not wanted. memory_budget:
    for occupancies, not for the sums of gamma.
    """
    if not scores.is_cpu:
        inputs = scores, arc_log_probs, lengths, batch_key, arc_counts, leaky, backend
        found: WeightedLogProb = by_host(
            _weighted_log_prob, scores.device, *inputs, rows, with_occupancy, memory_budget
        )
        return found
    batch = find_batch(int(batch_key.item()))
    weighted = _with_arc_log_probs(batch, arc_log_probs)
    call = dispatch.bind(weighted, scores, lengths, backend, memory_budget, on_host=True)
    check_leak(batch, leaky)
    out = new_buffer(scores, with_occupancy)
    values = call.add_occupancy(weighted, leaky, None, out).log_prob
    arcs = torch.zeros(rows, len(arc_log_probs), dtype=torch.float64)
    if rows > 0:
        own = list(arcs) if batch.is_shared else torch.split(arcs[0], arc_counts.tolist())
        counts = [row.numpy() for row in own]
        call.backend.arcs.add_arc_occupancy(weighted, call.scores, call.lengths, leaky, counts)
    return WeightedLogProb(values, out, arcs)


def _with_arc_log_probs(batch: TableBatch, arc_log_probs: Tensor) -> TableBatch:
    values = arc_log_probs.detach().double().numpy()
    if batch.is_shared:
        return TableBatch.share(batch.tables[0].with_arc_log_probs(values), batch.size, batch.names)
    pieces = np.split(values, np.cumsum([table.num_arcs for table in batch.tables])[:-1])
    tables = [table.with_arc_log_probs(piece) for table, piece in zip(batch.tables, pieces, strict=True)]
    return TableBatch.pack(tables, batch.names)


def _fake_weighted(
    scores: Tensor,
    arc_log_probs: Tensor,
    lengths: Any,
    key: Any,
    counts: Any,
    leaky: Any,
    backend: Any,
    *rest: Any,
) -> WeightedLogProb:
    rows, with_occupancy, _ = rest
    values = scores.new_empty(scores.shape[0], dtype=torch.float64)
    arcs = scores.new_empty(rows, arc_log_probs.shape[0], dtype=torch.float64)
    return WeightedLogProb(values, new_buffer(scores, with_occupancy), arcs)


def _arc_gradient(arcs: Tensor, factors: Tensor, arc_counts: Tensor, like: Tensor) -> Tensor:
    """The sums of gamma, laid out as in `weighted_log_prob`, times the factors [N] of their sequences, added over rows."""
    if len(arcs) == len(factors):
        by_arc = factors.view(-1, 1)
    else:
        counts = arc_counts.to(factors.device)
        by_arc = factors.repeat_interleave(counts, output_size=arcs.shape[1])
    return torch.where(arcs == 0, 0, arcs * by_arc).sum(dim=0).to(like.dtype)


arc_gradient = Operator(_arc_gradient, lambda arcs, factors, arc_counts, like: torch.empty_like(like))


def _weighted_gradient(
    factor: Tensor,
    occupancy: Tensor,
    arcs: Tensor,
    scores: Tensor,
    arc_log_probs: Tensor,
    arc_counts: Tensor,
    is_last: bool,
) -> dict[str, Tensor | None]:
    return {
        "scores": scale_rows(occupancy, factor, scores, is_last) if len(occupancy) else None,
        "arc_log_probs": arc_gradient(arcs, factor, arc_counts, arc_log_probs) if len(arcs) else None,
    }


weighted_log_prob = Operator(_weighted_log_prob, _fake_weighted, _weighted_gradient)


def total_log_prob(
    batch: Graphs,
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
        batch: the acceptors of N sequences, as for `forward_backward`.
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
    batch = packed(batch, "batch")
    frames = torch.full((scores.shape[0],), scores.shape[1]) if lengths is None else torch.as_tensor(lengths)
    check_budget(memory_budget)
    key, with_gradient = torch.from_numpy(batch.key), torch.is_grad_enabled()
    if arc_log_probs is None:
        found: Tensor = log_prob(
            scores=scores,
            lengths=frames,
            batch_key=key,
            leaky=leaky_hmm_coefficient,
            backend=backend,
            with_occupancy=with_gradient and scores.requires_grad,
            memory_budget=memory_budget,
        ).log_prob
        return found
    counts = [table.num_arcs for table in batch.tables]
    if arc_log_probs.shape != (sum(counts),):
        raise ShapeError(
            f"arc_log_probs has shape {list(arc_log_probs.shape)}; expected [{sum(counts)}], one for each arc"
        )
    if arc_log_probs.device != scores.device:
        raise BackendUnavailable(
            f"arc_log_probs is on {arc_log_probs.device}; expected {scores.device} as the scores"
        )
    rows = 0
    if with_gradient and arc_log_probs.requires_grad:
        rows = batch.size if batch.is_shared else 1
    weighted: Tensor = weighted_log_prob(
        scores=scores,
        arc_log_probs=arc_log_probs,
        lengths=frames,
        batch_key=key,
        arc_counts=torch.tensor(counts),
        leaky=leaky_hmm_coefficient,
        backend=backend,
        rows=rows,
        with_occupancy=with_gradient and scores.requires_grad,
        memory_budget=memory_budget,
    ).log_prob
    return weighted
