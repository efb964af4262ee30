"""log Z as a differentiable function of scores and arc weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.arrays import check_leak
from fsachain.backends.dispatch import BackendName
from fsachain.batch import Graphs, TableBatch, find_batch
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss.autograd import (
    Operator,
    as_tensor,
    beside,
    by_host,
    new_buffer,
    packed,
    scale_rows,
    wants_gradient,
)

_NO_WEIGHTS, _NO_COUNTS = torch.zeros(0), torch.zeros(0, dtype=torch.int64)


class TotalCall(NamedTuple):
    """Arguments of the operator.

    arc_log_probs: arc weights as one vector [A], of a shared graph, or of the sequences one after another; empty: the
    graphs' own. arc_counts: int64, the arcs of each graph, one entry for a shared graph. rows: of the sums over frames of
    gamma: N for a shared graph; one for graphs of their own. memory_budget: for occupancies, not for the sums of gamma.
    with_occupancy, with_arcs: whether occupancies and these sums are wanted.
    """

    scores: Tensor
    arc_log_probs: Tensor
    lengths: Tensor
    batch_key: Tensor
    arc_counts: Tensor
    leaky: float
    backend: str
    memory_budget: float | None
    rows: int
    with_occupancy: bool
    with_arcs: bool


class LogProb(NamedTuple):
    """log Z [N] in float64, -inf or NaN where a sequence is not ok; occupancy [N, T, P], empty unless asked for.

    lists: int32 [N, 2 + P] where a device has packed the occupancy, which `scale_rows` spreads over the gradient once its
    factor is known; else empty. arcs: the sums over frames of gamma, a column for each arc, one row for each sequence or one
    for all, or none.
    """

    log_prob: Tensor
    occupancy: Tensor
    lists: Tensor
    arcs: Tensor


def _new_lists(given: TotalCall) -> Tensor:
    packs = given.with_occupancy and not given.arc_log_probs.numel()
    size, _, num_pdfs = given.scores.shape
    shape = (size, 2 + num_pdfs) if packs and dispatch.is_on_device(given.scores, given.backend) else (0, 0)
    return given.scores.new_empty(shape, dtype=torch.int32)


def _shape_of_arcs(given: TotalCall) -> tuple[int, int]:
    return given.rows if given.with_arcs else 0, given.arc_log_probs.shape[0]


def _log_prob(given: TotalCall) -> LogProb:
    scores, weights, leaky = given.scores, given.arc_log_probs, given.leaky
    is_weighted = weights.numel() > 0
    if is_weighted and not scores.is_cpu:
        there: LogProb = by_host(_log_prob, given, scores.device)
        return there
    batch = find_batch(int(given.batch_key.item()))
    used = _with_arc_log_probs(batch, weights) if is_weighted else batch
    call = dispatch.bind(used, scores, given.lengths, given.backend, given.memory_budget, on_host=is_weighted)
    check_leak(batch, leaky)
    lists, arcs = _new_lists(given), scores.new_zeros(_shape_of_arcs(given), dtype=torch.float64)
    if not given.with_occupancy:
        found, out = call.log_probs(used, leaky), new_buffer(scores, False)
    else:
        found, out = call.occupancy(used, leaky, None, scores, lists if len(lists) else None)
    if given.with_arcs and is_weighted:
        own = list(arcs) if batch.is_shared else torch.split(arcs[0], given.arc_counts.tolist())
        counts = [row.numpy() for row in own]
        call.backend.arcs.add_arc_occupancy(used, call.scores, call.lengths, leaky, counts)
    return LogProb(found.log_prob, out, lists, arcs)


def _with_arc_log_probs(batch: TableBatch, arc_log_probs: Tensor) -> TableBatch:
    values = arc_log_probs.detach().double().numpy()
    if batch.is_shared:
        return TableBatch.share(batch.tables[0].with_arc_log_probs(values), batch.size, batch.names)
    pieces = np.split(values, np.cumsum([table.num_arcs for table in batch.tables])[:-1])
    tables = [table.with_arc_log_probs(piece) for table, piece in zip(batch.tables, pieces, strict=True)]
    return TableBatch.pack(tables, batch.names)


def _fake_log_prob(given: TotalCall) -> LogProb:
    scores = given.scores
    values = scores.new_empty(scores.shape[0], dtype=torch.float64)
    arcs = scores.new_empty(_shape_of_arcs(given), dtype=torch.float64)
    return LogProb(values, new_buffer(scores, given.with_occupancy), _new_lists(given), arcs)


def _arc_gradient(arcs: Tensor, factors: Tensor, arc_counts: Tensor, like: Tensor) -> Tensor:
    """The sums of gamma, laid out as in `LogProb`, times the factors [N] of their sequences, added over rows."""
    if len(arcs) == len(factors):
        by_arc = factors.view(-1, 1)
    else:
        by_arc = factors.repeat_interleave(beside(arc_counts, factors), output_size=arcs.shape[1])
    return torch.where(arcs == 0, 0, arcs * by_arc).sum(dim=0).to(like.dtype)


arc_gradient = Operator(_arc_gradient, lambda arcs, factors, arc_counts, like: torch.empty_like(like))


def _log_prob_gradient(
    factor: Tensor,
    occupancy: Tensor,
    lists: Tensor,
    arcs: Tensor,
    scores: Tensor,
    arc_log_probs: Tensor,
    arc_counts: Tensor,
    is_last: bool,
) -> dict[str, Tensor | None]:
    return {
        "scores": scale_rows(occupancy, factor, scores, is_last, lists) if len(occupancy) else None,
        "arc_log_probs": arc_gradient(arcs, factor, arc_counts, arc_log_probs) if len(arcs) else None,
    }


log_prob = Operator(
    *(_log_prob, _fake_log_prob, _log_prob_gradient),
    by={"scores": "with_occupancy", "arc_log_probs": "with_arcs"},
)


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
    whole = torch.full((scores.shape[0],), scores.shape[1], device="cpu")
    frames = whole if lengths is None else as_tensor(lengths, name="lengths")
    weights, counts, rows = _NO_WEIGHTS, _NO_COUNTS, 0
    if arc_log_probs is not None:
        num_arcs = [table.num_arcs for table in batch.tables]
        _check_weights(arc_log_probs, sum(num_arcs), scores)
        weights, counts = arc_log_probs, as_tensor(num_arcs)
        rows = batch.size if batch.is_shared else 1
    wanted = wants_gradient(scores), wants_gradient(weights)
    options = leaky_hmm_coefficient, backend, memory_budget, rows, *wanted
    key = torch.from_numpy(batch.key)
    found: Tensor = log_prob(TotalCall(scores, weights, frames, key, counts, *options)).log_prob
    return found


def _check_weights(arc_log_probs: Tensor, num_arcs: int, scores: Tensor) -> None:
    if not isinstance(arc_log_probs, Tensor):
        raise ShapeError(f"arc_log_probs is a {type(arc_log_probs).__name__}; expected a torch tensor")
    if arc_log_probs.shape != (num_arcs,):
        raise ShapeError(
            f"arc_log_probs has shape {list(arc_log_probs.shape)}; expected [{num_arcs}], one for each arc"
        )
    if arc_log_probs.device != scores.device:
        raise BackendUnavailable(
            f"arc_log_probs is on {arc_log_probs.device}; expected {scores.device} as the scores"
        )
