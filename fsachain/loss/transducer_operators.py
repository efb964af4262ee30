"""The grid as torch custom operators.

`rnnt` computes log Z and keeps occupancies of arcs, which are small; its backward makes the gradient from them, in one pass
that reads the logits and writes the gradient once, the incoming gradient included. `grid` takes scores of arcs.
Each backward is an operator without a derivative, as in `operators`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends.dispatch import grid_backend
from fsachain.errors import ShapeError
from fsachain.grid import GridBatch, Rows, constrain, num_cells, release, row_boxes
from fsachain.loss.operators import refuse_second_derivative
from fsachain.loss.transducer_arguments import Given, make_rows

NO_CLAMP = float("inf")


def as_rows(logits: Tensor) -> npt.NDArray[Any]:
    """Logits as an array [R, V] of float32 or float64, without a copy where they are that and contiguous."""
    wide = logits.detach() if logits.element_size() >= 4 else logits.detach().float()
    return wide.contiguous().view(-1, logits.shape[-1]).numpy()


def grid_batch(rows: Rows, sizes: Tensor, arcs: Tensor) -> GridBatch:
    """The grids whose scores are made from rows."""
    spans = sizes.numpy().copy()
    spans[:, 2:] -= spans[:, :2]
    return GridBatch(np.ascontiguousarray(arcs.numpy()), spans, row_boxes(rows))


def _count_cells(logits: Tensor, ranges: Tensor, targets: Tensor) -> Any:
    if logits.ndim == 2:
        return logits.shape[0]
    labels = targets.shape[1] + 1 if ranges.shape[0] > 0 else logits.shape[2]
    return logits.shape[0] * logits.shape[1] * labels


@torch.library.custom_op("fsachain::rnnt", mutates_args=())
def rnnt(
    logits: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    arcs: Tensor,
    delays: list[float],
    sigma: float,
    fastemit: float,
    clamp: float,
    is_constrained: bool,
    is_normalized: bool,
    inplace: bool,
    backend: str,
    with_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z [N] in float64; what the gradient needs: of each row, and occupancies g [K, cells], scaled as in (27) and (26).

    Args:
        targets, sizes, ranges, classes: see `transducer_arguments.Given`.
        arcs: [K, 3], a `grid.GridArc` for each class.
        delays, sigma: of (24); fastemit: lambda of (27).
        clamp, inplace: of the gradient: its entries are kept within +-clamp; whether it overwrites the logits.
        is_constrained: whether (26) holds; is_normalized: whether logits are log-probs.
        with_gradient: else the last two results are empty.
    """
    rows = make_rows(list(logits.shape), Given(targets, sizes, ranges, classes), delays, sigma)
    values, ours, flat = (
        np.full((len(classes), num_cells(rows)), -np.inf),
        grid_backend(backend),
        as_rows(logits),
    )
    stats = np.empty((2, 0), flat.dtype)
    if is_normalized:
        ours.plain_scores(rows, flat, values)
    else:
        stats = ours.softmax_scores(rows, flat, values)
    if is_constrained:
        constrain(rows, values)
    batch = grid_batch(rows, sizes, arcs)
    nothing = torch.empty(len(classes), 0, dtype=torch.float64)
    if not with_gradient:
        return torch.from_numpy(ours.log_probs(batch, values.reshape(-1))), stats_of(stats[:, :0]), nothing
    log_prob = ours.forward_backward(batch, values.reshape(-1))
    for k in np.flatnonzero(arcs.numpy()[:, 1] == 1):
        values[k] *= 1.0 + fastemit
    if is_constrained:
        release(rows, values)
    return torch.from_numpy(log_prob), stats_of(stats), torch.from_numpy(values)


def stats_of(stats: npt.NDArray[Any]) -> Tensor:
    """An array of statistics of rows as a tensor of its own."""
    return torch.from_numpy(np.ascontiguousarray(stats))


@rnnt.register_fake
def _(logits, targets, sizes, ranges, classes, arcs, *options):  # type: ignore[no-untyped-def]
    is_normalized, with_gradient = options[5], options[8]
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    rows = logits.numel() // logits.shape[-1] if with_gradient and not is_normalized else 0
    cells = _count_cells(logits, ranges, targets) if with_gradient else 0
    return (
        torch.empty(sizes.shape[0], dtype=torch.float64),
        torch.empty(2, rows, dtype=real),
        torch.empty(classes.shape[0], cells, dtype=torch.float64),
    )


def _write_gradient(
    logits: Tensor,
    stats: Tensor,
    occupancy: Tensor,
    call: Given,
    factors: Tensor,
    clamp: float,
    how: str,
    out: Any,
) -> None:
    kind, _, backend = how.partition(" ")
    rows = make_rows(list(logits.shape), call, [0.0] * len(call.classes), 0.0)
    ours, flat, weights = grid_backend(backend), as_rows(logits), factors.double().numpy()
    if kind == "normalized":
        ours.plain_gradient(rows, flat, occupancy.numpy(), weights, clamp, out)
    else:
        ours.softmax_gradient(rows, flat, stats.numpy(), occupancy.numpy(), weights, clamp, out)


@torch.library.custom_op("fsachain::rnnt_gradient", mutates_args=())
def rnnt_gradient(
    logits: Tensor,
    stats: Tensor,
    occupancy: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    factors: Tensor,
    clamp: float,
    how: str,
) -> Tensor:
    """The gradient of -log Z by the logits times factors [N]; `how`: "softmax" or "normalized", and the backend's name."""
    # numpy asks for large pages, torch does not: with small ones their first use takes longer than the gradient.
    out = np.empty(logits.shape, np.float64 if logits.dtype == torch.float64 else np.float32)
    call = Given(targets, sizes, ranges, classes)
    _write_gradient(logits, stats, occupancy, call, factors, clamp, how, out.reshape(-1, logits.shape[-1]))
    return torch.from_numpy(out).to(logits.dtype)


@rnnt_gradient.register_fake
def _(logits, stats, occupancy, targets, sizes, ranges, classes, factors, clamp, how):  # type: ignore[no-untyped-def]
    return torch.empty(logits.shape, dtype=logits.dtype)


rnnt_gradient.register_autograd(refuse_second_derivative)


@torch.library.custom_op("fsachain::rnnt_gradient_", mutates_args=("logits",))
def rnnt_gradient_(
    logits: Tensor,
    stats: Tensor,
    occupancy: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    factors: Tensor,
    clamp: float,
    how: str,
) -> None:
    """The same written over the logits."""
    call = Given(targets, sizes, ranges, classes)
    if logits.element_size() < 4:
        same = rnnt_gradient(logits, stats, occupancy, *call, factors, clamp, how)
        logits.detach().copy_(same)
        return
    if not logits.is_contiguous():
        raise ShapeError("logits is not contiguous; expected it to be, for a gradient in its place")
    _write_gradient(logits, stats, occupancy, call, factors, clamp, how, as_rows(logits))


@rnnt_gradient_.register_fake
def _(logits, stats, occupancy, targets, sizes, ranges, classes, factors, clamp, how):  # type: ignore[no-untyped-def]
    return None


def _save_rnnt(ctx, inputs, output):  # type: ignore[no-untyped-def]
    logits, targets, sizes, ranges, classes = inputs[:5]
    ctx.save_for_backward(logits, output[1], output[2], targets, sizes, ranges, classes)
    ctx.clamp, ctx.inplace = inputs[9], inputs[12]
    ctx.how = f"{'normalized' if inputs[11] else 'softmax'} {inputs[13]}"
    ctx.mark_non_differentiable(output[1], output[2])


def _rnnt_backward(ctx, gradient, *_):  # type: ignore[no-untyped-def]
    saved = ctx.saved_tensors
    arguments = (*saved, -gradient, ctx.clamp, ctx.how)
    if not ctx.inplace:
        return rnnt_gradient(*arguments), *[None] * 14
    rnnt_gradient_(*arguments)
    return saved[0].detach(), *[None] * 14


rnnt.register_autograd(_rnnt_backward, setup_context=_save_rnnt)
