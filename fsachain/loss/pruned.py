"""Pruned transducer training (Kuang et al., Interspeech 2022), by the names and arguments of fast_rnnt and k2.

A loss whose joiner only adds tells which few labels matter at each frame; the joiner then runs on these alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsachain.backends.dispatch import BackendName
from fsachain.errors import ConfigError, ShapeError
from fsachain.grid import TOPOLOGIES, RnntType
from fsachain.loss import transducer_arguments as arguments
from fsachain.loss.pruned_scores import (
    Pair,
    check_boundary,
    check_simple,
    check_symbols,
    simple_scores,
    smoothed_scores,
)
from fsachain.loss.transducer_grid import mutual_information_recursion
from fsachain.loss.transducer_operators import NO_CLAMP, rnnt


def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Any,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
    *,
    backend: BackendName = "auto",
) -> Any:
    """The transducer loss of the logits am[t] + lm[s], without a tensor over both.

    Args:
        lm: [B, S + 1, C]; am: [B, T, C]: scores of the classes, not normalised.
        symbols: [B, S] integers; those beyond a sequence's s_end are ignored.
        termination_symbol: the class of the blank.
        boundary: [B, 4] integers: s_begin, t_begin, s_end, t_end; None: 0, 0, S, T.
        rnnt_type, delay_penalty: as for `rnnt_loss`.
        reduction: "none", "mean" or "sum" over the batch.
        return_grad: whether the occupancies that `get_rnnt_prune_ranges` wants come with the loss.

    Returns:
        float64: the loss, or (loss, (px_grad, py_grad)); px_grad is [B, S, T + 1], for other types than the regular
        [B, S, T], and py_grad [B, S + 1, T].

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    call = check_simple(lm, am, symbols, termination_symbol, boundary, rnnt_type, delay_penalty)
    return _loss(simple_scores(call), call.boundary, reduction, return_grad, backend)


def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Any,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
    *,
    backend: BackendName = "auto",
) -> Any:
    """`rnnt_loss_simple` with scores mixed with those of lm alone and of am alone, so that both learn to predict.

    Args:
        lm_only_scale, am_only_scale: their shares; what is left of 1 is the share of the simple scores. am alone has the
            mean of softmax(lm) over batch and positions in the place of lm.

    Returns, raises:
        as `rnnt_loss_simple`.
    """
    call = check_simple(lm, am, symbols, termination_symbol, boundary, rnnt_type, delay_penalty)
    scores = smoothed_scores(call, lm_only_scale, am_only_scale)
    return _loss(scores, call.boundary, reduction, return_grad, backend)


def _loss(scores: Pair, boundary: Tensor, reduction: str, return_grad: bool, backend: BackendName) -> Any:
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    log_prob, occupancies = mutual_information_recursion(*scores, boundary, return_grad=True, backend=backend)
    loss = arguments.reduce_losses(log_prob, reduction)
    return (loss, occupancies) if return_grad else loss


def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Any,
    ranges: Any,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    *,
    backend: BackendName = "auto",
) -> Tensor:
    """The transducer loss over the nodes that were kept: paths that leave them do not count.

    Args:
        logits: [B, T, s_range, C]: the joiner's output at the labels of `ranges`.
        symbols, termination_symbol, boundary, rnnt_type, delay_penalty, reduction: as for `rnnt_loss_simple`.
        ranges: [B, T, s_range] from `get_rnnt_prune_ranges`.

    Returns:
        float64, the loss; s_range = S + 1 gives that of `rnnt_loss`. The gradient is made in one pass, as there.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4,))
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    targets = arguments.integers_there(symbols, "symbols", logits.device)
    if targets.ndim != 2 or len(targets) != len(logits):
        raise ShapeError(f"symbols has shape {list(targets.shape)}; expected [{len(logits)}, S]")
    size, frames, _, width = logits.shape
    spans = check_boundary(boundary, size, targets.shape[1], frames, logits.device)
    blank = arguments.class_index(termination_symbol, width, "termination_symbol")
    results = rnnt(
        logits,
        check_symbols(targets, spans, (size, targets.shape[1]), width),
        spans[:, [1, 0, 3, 2]],
        arguments.integers_there(ranges, "ranges", logits.device),
        torch.tensor([[blank, -1], [-1, -1]]),
        torch.tensor(TOPOLOGIES[rnnt_type]),
        [logits.shape[-1], -1],
        [0.0, arguments.check_finite("delay_penalty", delay_penalty)],
        0.0,
        0.0,
        NO_CLAMP,
        rnnt_type == "constrained",
        False,
        False,
        backend,
        torch.is_grad_enabled() and logits.requires_grad,
    )
    return arguments.reduce_losses(results[0], reduction)


@torch.no_grad()
def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Any, s_range: int) -> Tensor:
    """The s_range successive labels to keep at each frame, from the occupancies of a simple or smoothed loss.

    The first label b maximises the occupancy of blanks at b .. b + s_range - 1 less that of the label arc into b. From the
    last frame on it is the last that is possible; it never falls, and rises by at most s_range - 1, by at most 1 where a
    label takes a frame, so that a path stays within.

    Args:
        px_grad: [B, S, T + 1] or [B, S, T]; py_grad: [B, S + 1, T]: what `return_grad` gives.
        boundary: [B, 4], None: 0, 0, S, T.
        s_range: how many labels; more than S + 1 are S + 1. Regular grids need 2 or more.

    Returns:
        int64 [B, T, s_range].

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(px_grad, "px_grad", (3,))
    arguments.check_logits(py_grad, "py_grad", (3,))
    arguments.check_beside(py_grad, "py_grad", px_grad, "px_grad")
    size, labels, last = px_grad.shape
    frames = py_grad.shape[2]
    if py_grad.shape[:2] != (size, labels + 1) or last - frames not in (0, 1):
        raise ShapeError(
            f"px_grad and py_grad have shapes {list(px_grad.shape)} and {list(py_grad.shape)}; "
            "expected [B, S, T + 1] or [B, S, T], and [B, S + 1, T]"
        )
    least = 1 if last == frames else 2
    if s_range < min(least, labels + 1):
        raise ConfigError(f"s_range = {s_range}; expected {least} or more, or no path would be left")
    s_range = min(s_range, labels + 1)
    spans = check_boundary(boundary, size, labels, frames, px_grad.device)
    ends = spans[:, 2:].to(px_grad.device, non_blocking=True)
    times = torch.arange(frames, device=px_grad.device)
    kept = py_grad.unfold(1, s_range, 1).sum(dim=3)
    entering = torch.nn.functional.pad(px_grad[:, :, :frames], (0, 0, 1, 0))[:, : kept.shape[1]]
    begin = (kept - entering).argmax(dim=1)
    final = (ends[:, :1] - s_range + 1).clamp(min=0)
    begin = torch.where(times < ends[:, 1:] - 1, begin, final)
    step = 1 if last == frames else s_range - 1
    rise = step * times
    # As steep as allowed: begin[t] is at least what lies ahead less the rise until there.
    slack = _least_ahead(rise - _least_ahead(begin)).clamp(min=0)
    return (rise - slack).unsqueeze(2) + torch.arange(s_range, device=px_grad.device)


def _least_ahead(values: Tensor) -> Tensor:
    """[N, T]: the least of values[n, t:]."""
    return values.flip(1).cummin(dim=1).values.flip(1)


def do_rnnt_pruning(am: Tensor, lm: Tensor, ranges: Tensor) -> Pair:
    """am [B, T, D] and lm [B, S + 1, E] at the nodes of `ranges` [B, T, s_range]: [B, T, s_range, D] and [.., E].

    Raises:
        ShapeError: shapes that do not fit.
    """
    if ranges.ndim != 3 or am.shape[:2] != ranges.shape[:2] or lm.shape[0] != ranges.shape[0]:
        raise ShapeError(
            f"am, lm and ranges have shapes {list(am.shape)}, {list(lm.shape)} and {list(ranges.shape)}; "
            "expected [B, T, D], [B, S + 1, E] and [B, T, s_range]"
        )
    arguments.check_beside(am, "am", lm, "lm")
    size, frames, s_range = ranges.shape
    index = ranges.to(lm.device, non_blocking=True).reshape(size, -1, 1).expand(-1, -1, lm.shape[2])
    pruned = lm.gather(1, index).view(size, frames, s_range, lm.shape[2])
    return am.unsqueeze(2).expand(-1, -1, s_range, -1), pruned
