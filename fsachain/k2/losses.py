"""Transducer losses and swoosh functions by k2's names and with k2's dtypes: results have the type of the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fsachain.errors import ShapeError
from fsachain.grid import RnntType
from fsachain.loss import grid, pruned

do_rnnt_pruning = pruned.do_rnnt_pruning
get_rnnt_prune_ranges = pruned.get_rnnt_prune_ranges
Pair = tuple[Tensor, Tensor]


def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Any = None, return_grad: bool = False
) -> Any:
    """Sum over the monotonic paths of a grid: `fsachain.mutual_information_recursion`, in the type of `px`.

    Args:
        px: [B, S, T + 1], or [B, S, T] for modified grids; py: [B, S + 1, T].
        boundary: [B, 4] integers, or None.
        return_grad: whether to return (sums, (px_grad, py_grad)).

    Returns:
        [B] in the type of `px`, or the pair.

    Raises:
        ShapeError: shapes that do not fit.
    """
    found = grid.mutual_information_recursion(px, py, boundary, return_grad)
    return (found[0].to(px.dtype), found[1]) if return_grad else found.to(px.dtype)


def joint_mutual_information_recursion(
    px: Sequence[Tensor], py: Sequence[Tensor], boundary: Any = None
) -> Tensor:
    """Split the sum of `mutual_information_recursion` among terms that add up to px and py.

    Args:
        px: N tensors [B, S, T + 1] or [B, S, T]; py: N tensors [B, S + 1, T].
        boundary: [B, 4] integers, or None.

    Returns:
        [N, B]: expected scores of each term over all paths. The first also has the entropy of the paths, so that the sum
        over axis 0 is the sum over the paths.

    Raises:
        ShapeError: no terms, or shapes that do not fit.
    """
    if not px or len(px) != len(py):
        raise ShapeError(f"px and py have {len(px)} and {len(py)} terms; expected the same number, 1 or more")
    with torch.no_grad():
        total, (by_px, by_py) = mutual_information_recursion(sum(px), sum(py), boundary, return_grad=True)  # type: ignore[arg-type]

    def expected(scores: Tensor, occupancy: Tensor) -> Tensor:
        # A score of -inf has no occupancy, and 0 times -inf is NaN.
        return torch.where(occupancy == 0, 0, scores * occupancy).flatten(1).sum(dim=1)

    parts = torch.stack([expected(x, by_px) + expected(y, by_py) for x, y in zip(px, py, strict=True)])
    entropy = total - parts.detach().sum(dim=0)
    return torch.cat([parts[:1] + entropy, parts[1:]])


def _without_infinite_last(px: Tensor, boundary: Any) -> Tensor:
    """px [B, S, T] with a last column, and -inf at each sequence's end, where no label can be."""
    px = functional.pad(px, (0, 1), value=-torch.inf)
    if boundary is None:
        return px
    last = torch.as_tensor(boundary, device=px.device)[:, 3].view(-1, 1, 1)
    return px.masked_fill(torch.arange(px.shape[2], device=px.device) == last, -torch.inf)


def _log_probs(
    log_probs: Tensor, symbols: Tensor, ranges: Tensor | None, blank: int, boundary: Any, rnnt_type: RnntType
) -> Pair:
    """px and py of normalised log_probs [B, T, S + 1 or s_range, C]."""
    labels = symbols.shape[1]
    size, frames, width, _ = log_probs.shape
    positions = torch.arange(width, device=log_probs.device).expand(size, frames, width)
    if ranges is not None:
        positions = ranges.to(log_probs.device)
    padded = functional.pad(symbols.long(), (0, 1), value=blank).to(log_probs.device)
    classes = padded.unsqueeze(1).expand(-1, frames, -1).gather(2, positions)
    emitted = log_probs.gather(3, classes.unsqueeze(3)).squeeze(3)
    nowhere = log_probs.new_full((size, frames, labels + 1), -torch.inf)
    px = nowhere.scatter(2, positions, emitted)[:, :, :labels].transpose(1, 2)
    py = nowhere.scatter(2, positions, log_probs[:, :, :, blank]).transpose(1, 2)
    if rnnt_type == "constrained":
        px = px + py[:, 1:]
    return (_without_infinite_last(px, boundary), py) if rnnt_type == "regular" else (px, py)


def get_rnnt_logprobs(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: RnntType = "regular",
    boundary: Any = None,
) -> Pair:
    """Return the scores of the arcs of a joiner that only adds.

    Args:
        lm: [B, S + 1, C]; am: [B, T, C]: scores of the classes, not normalised.
        symbols: [B, S] integers.
        termination_symbol: the class of the blank.
        rnnt_type: "regular", "modified" or "constrained".
        boundary: [B, 4] integers, or None.

    Returns:
        (px, py) for `mutual_information_recursion`, in the type of `lm`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    return get_rnnt_logprobs_smoothed(lm, am, symbols, termination_symbol, 0.0, 0.0, boundary, rnnt_type)


def get_rnnt_logprobs_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
) -> Pair:
    """Return `get_rnnt_logprobs` mixed with the scores of lm alone and of am alone, by the given shares."""
    call = pruned.check_simple(lm, am, symbols, termination_symbol, boundary, rnnt_type, 0.0)
    px, py = pruned.mixed_scores(call, lm_only_scale, am_only_scale)
    return px.to(lm.dtype), py.to(lm.dtype)


def get_rnnt_logprobs_joint(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: RnntType = "regular",
    boundary: Any = None,
) -> Pair:
    """Return (px, py) of a joiner's output [B, T, S + 1, C]; other arguments as for `get_rnnt_logprobs`."""
    return _log_probs(logits.log_softmax(3), symbols, None, termination_symbol, boundary, rnnt_type)


def get_rnnt_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
) -> Pair:
    """Return (px, py) of a joiner's output [B, T, s_range, C] at the labels of `ranges` [B, T, s_range]; -inf elsewhere."""
    return _log_probs(logits.log_softmax(3), symbols, ranges, termination_symbol, boundary, rnnt_type)


def get_hat_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
) -> Pair:
    """Return `get_rnnt_logprobs_pruned` of a HAT joiner: a sigmoid for the blank, which is class 0, a softmax for labels."""
    return _log_probs(_hat_log_probs(logits), symbols, ranges, termination_symbol, boundary, rnnt_type)


def _hat_log_probs(logits: Tensor) -> Tensor:
    blank = logits[..., :1]
    labels = logits[..., 1:].log_softmax(-1)
    return torch.cat([functional.logsigmoid(blank), functional.logsigmoid(-blank) + labels], dim=-1)


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
) -> Any:
    """Return `fsachain.rnnt_loss_simple`, same arguments, in the type of `lm`."""
    options = boundary, rnnt_type, delay_penalty, reduction, return_grad
    return _typed(pruned.rnnt_loss_simple(lm, am, symbols, termination_symbol, *options), lm.dtype)


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
) -> Any:
    """Return `fsachain.rnnt_loss_smoothed`, same arguments, in the type of `lm`."""
    options = lm_only_scale, am_only_scale, boundary, rnnt_type, delay_penalty, reduction, return_grad
    return _typed(pruned.rnnt_loss_smoothed(lm, am, symbols, termination_symbol, *options), lm.dtype)


def _typed(found: Any, dtype: torch.dtype) -> Any:
    return (found[0].to(dtype), found[1]) if isinstance(found, tuple) else found.to(dtype)


def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the transducer loss of a joiner's output over all nodes.

    Args:
        logits: [B, T, S + 1, C], not normalised.
        symbols: [B, S] integers.
        termination_symbol: the class of the blank.
        boundary: [B, 4] integers, or None.
        rnnt_type: "regular", "modified" or "constrained".
        delay_penalty: a label at frame t costs delay_penalty x (t - (T - 1) / 2).
        reduction: "none", "mean" or "sum" over the batch.

    Returns:
        The loss in the type of `logits`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    positions = torch.arange(logits.shape[2], device=logits.device).expand(logits.shape[:3])
    options = boundary, rnnt_type, delay_penalty, reduction
    return rnnt_loss_pruned(logits, symbols, positions, termination_symbol, *options)


def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Any,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    use_hat_loss: bool = False,
) -> Tensor:
    """Return `fsachain.rnnt_loss_pruned`, same arguments, in the type of `logits`.

    Args:
        logits: [B, T, s_range, C]: the joiner's output at the labels of `ranges`.
        use_hat_loss: whether the blank, class 0, has a sigmoid and labels a softmax of their own.
    """
    if use_hat_loss:
        logits = _hat_log_probs(logits)
    options = boundary, rnnt_type, delay_penalty, reduction
    return pruned.rnnt_loss_pruned(logits, symbols, ranges, termination_symbol, *options).to(logits.dtype)


@torch.no_grad()
def get_rnnt_prune_ranges_deprecated(px_grad: Tensor, py_grad: Tensor, boundary: Any, s_range: int) -> Tensor:
    """Return ranges by k2's older criterion: the labels whose nodes have the largest sum of occupancies.

    Args:
        px_grad: [B, S, T + 1] or [B, S, T]; py_grad: [B, S + 1, T].
        boundary: [B, 4] integers.
        s_range: how many labels to keep at each frame.

    Returns:
        int64 [B, T, s_range].
    """
    width = min(s_range, px_grad.shape[1] + 1)
    frames = py_grad.shape[2]
    nodes = functional.pad(px_grad[:, :, :frames], (0, 0, 0, 1)) + py_grad
    gains = nodes.unfold(1, width, 1).sum(dim=3)
    ends = torch.as_tensor(boundary, device=px_grad.device)[:, 2:]
    step = 1 if px_grad.shape[2] == frames else width - 1
    return pruned.rising_ranges(gains, ends, width, step)


class _Swoosh(torch.autograd.Function):
    """log(1 + exp(x - shift)) - 0.08 x - offset in float32 or float64, with dropout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: float, offset: float, dropout: float) -> Tensor:
        y, slope = _swoosh(x, shift, offset)
        if dropout:
            factor = (torch.rand_like(y) >= dropout).to(y.dtype) / (1 - dropout)
            y, slope = y * factor, slope * factor
        ctx.save_for_backward(slope)
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *factors: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return (factors[0] * slope).to(ctx.dtype), None, None, None


def _swoosh(x: Tensor, shift: float, offset: float) -> Pair:
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    moved = x - shift
    return functional.softplus(moved, threshold=math.inf) - 0.08 * x - offset, moved.sigmoid() - 0.08


_LEFT, _RIGHT = (4.0, 0.035), (1.0, 0.313261687)


def swoosh_l(x: Tensor, dropout_prob: float = 0.0) -> Tensor:
    """Return log(1 + exp(x - 4)) - 0.08 x - 0.035, with dropout if x wants a gradient; half types become float32."""
    return _Swoosh.apply(x, *_LEFT, dropout_prob if x.requires_grad else 0.0)


def swoosh_r(x: Tensor, dropout_prob: float = 0.0) -> Tensor:
    """Return log(1 + exp(x - 1)) - 0.08 x - 0.313261687, with dropout if x wants a gradient; half types become float32."""
    return _Swoosh.apply(x, *_RIGHT, dropout_prob if x.requires_grad else 0.0)


def swoosh_l_forward(x: Tensor) -> Tensor:
    """Return `swoosh_l` without a gradient."""
    return _swoosh(x, *_LEFT)[0]


def swoosh_r_forward(x: Tensor) -> Tensor:
    """Return `swoosh_r` without a gradient."""
    return _swoosh(x, *_RIGHT)[0]


def swoosh_l_forward_and_deriv(x: Tensor) -> Pair:
    """Return `swoosh_l_forward` and its derivative, both shaped as x."""
    return _swoosh(x, *_LEFT)


def swoosh_r_forward_and_deriv(x: Tensor) -> Pair:
    """Return `swoosh_r_forward` and its derivative, both shaped as x."""
    return _swoosh(x, *_RIGHT)
