"""The transducer loss of Graves, 2012, by torchaudio's names and arguments; equations (20)-(27) of `fsachain.grid`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.backends import dispatch
from fsachain.backends.dispatch import BackendName
from fsachain.backends.grid_call import Placed
from fsachain.errors import ShapeError
from fsachain.grid import TOPOLOGIES, GridBatch, RnntType, Rows, row_boxes
from fsachain.loss import arguments
from fsachain.loss.arguments import Given, make_rows
from fsachain.loss.autograd import only_first_has_gradient, operator, refuse_second_derivative

# The grid as torch custom operators.
#
# `rnnt` computes log Z and keeps occupancies of arcs, which are small; its backward makes the gradient from
# them, in one pass that reads the logits and writes the gradient once, the incoming gradient included. `grid`
# takes scores of arcs. Each backward is an operator without a derivative, as in `operators`.

NO_CLAMP = float("inf")


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


@operator("fsachain::rnnt")
def rnnt(
    logits: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    arcs: Tensor,
    heads: list[int],
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

    Results live where the logits live.

    Args:
        targets, sizes, ranges, classes: see `transducer_arguments.Given`.
        arcs: [K, 3], a `grid.GridArc` for each class.
        heads: what softmaxes a row has, see `grid.Rows`.
        delays, sigma: of (24); fastemit: lambda of (27).
        clamp, inplace: of the gradient: its entries are kept within +-clamp; whether it overwrites the logits.
        is_constrained: whether (26) holds; is_normalized: whether logits are log-probs.
        with_gradient: else the last two results are empty.
    """
    placed = make_rows(list(logits.shape), Given(targets, sizes, ranges, classes), heads, delays, sigma)
    ours = dispatch.grid(logits, backend)
    values, stats = (ours.plain_scores if is_normalized else ours.softmax_scores)(placed, logits.detach())
    if is_constrained:
        ours.constrain(placed, values)
    batch = grid_batch(placed.rows, sizes, arcs)
    if not with_gradient:
        log_prob = ours.log_probs(batch, values.view(-1))
        return log_prob, stats.new_empty(len(stats), 0), values.new_empty(len(values), 0)
    log_prob = ours.forward_backward(batch, values.view(-1))
    if fastemit:
        for k in np.flatnonzero(arcs.numpy()[:, 1] == 1).tolist():
            values[k] *= 1.0 + fastemit
    if is_constrained:
        ours.release(placed, values)
    return log_prob, stats, values


@rnnt.register_fake
def _(logits, targets, sizes, ranges, classes, arcs, heads, *options):  # type: ignore[no-untyped-def]
    is_normalized, with_gradient = options[5], options[8]
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = 0 if is_normalized else 2 * _num_softmaxes(logits, heads)
    cells = _count_cells(logits, ranges, targets) if with_gradient else 0
    return (
        logits.new_empty(sizes.shape[0], dtype=torch.float64),
        logits.new_empty(sums, logits.numel() // logits.shape[-1] if with_gradient else 0, dtype=real),
        logits.new_empty(classes.shape[1], cells, dtype=torch.float64),
    )


def _num_softmaxes(logits: Tensor, heads: list[int]) -> int:
    return 1 if heads[0] == logits.shape[-1] else 2


@operator("fsachain::rnnt_gradient")
def rnnt_gradient(
    logits: Tensor,
    stats: Tensor,
    occupancy: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    factors: Tensor,
    heads: list[int],
    clamp: float,
    backend: str,
) -> Tensor:
    """The gradient of -log Z by the logits times factors [N]; the other arguments as for `rnnt`, which made stats and g."""
    placed = _rows_again(logits, Given(targets, sizes, ranges, classes), heads)
    ours = dispatch.grid(logits, backend)
    gradient: Tensor = ours.gradient(placed, logits.detach(), stats, occupancy, factors.double(), clamp)
    return gradient


def _rows_again(logits: Tensor, call: Given, heads: list[int]) -> Placed:
    return make_rows(list(logits.shape), call, heads, [0.0] * call.classes.shape[1], 0.0)


@rnnt_gradient.register_fake
def _(logits, *_):  # type: ignore[no-untyped-def]
    return logits.new_empty(logits.shape)


rnnt_gradient.register_autograd(refuse_second_derivative)


@operator("fsachain::rnnt_gradient_", mutates_args=("logits",))
def rnnt_gradient_(
    logits: Tensor,
    stats: Tensor,
    occupancy: Tensor,
    targets: Tensor,
    sizes: Tensor,
    ranges: Tensor,
    classes: Tensor,
    factors: Tensor,
    heads: list[int],
    clamp: float,
    backend: str,
) -> None:
    """The same written over the logits."""
    if not logits.is_contiguous():
        raise ShapeError("logits is not contiguous; expected it to be, for a gradient in its place")
    placed = _rows_again(logits, Given(targets, sizes, ranges, classes), heads)
    ours = dispatch.grid(logits, backend)
    ours.overwrite(placed, logits.detach(), stats, occupancy, factors.double(), clamp)


@rnnt_gradient_.register_fake
def _(*_):  # type: ignore[no-untyped-def]
    return None


def _save_rnnt(ctx, inputs, output):  # type: ignore[no-untyped-def]
    logits, targets, sizes, ranges, classes = inputs[:5]
    ctx.save_for_backward(logits, output[1], output[2], targets, sizes, ranges, classes)
    ctx.heads, ctx.clamp, ctx.inplace, ctx.backend = inputs[6], inputs[10], inputs[13], inputs[14]
    only_first_has_gradient(ctx, output)


def _rnnt_backward(ctx, gradient, *_):  # type: ignore[no-untyped-def]
    if gradient is None:
        return (None,) * 16
    saved = ctx.saved_tensors
    arguments = (*saved, -gradient, ctx.heads, ctx.clamp, ctx.backend)
    if not ctx.inplace:
        return rnnt_gradient(*arguments), *[None] * 15
    rnnt_gradient_(*arguments)
    return saved[0].detach(), *[None] * 15


rnnt.register_autograd(_rnnt_backward, setup_context=_save_rnnt)


def rnnt_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
    *,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: RnntType = "regular",
    inplace: bool = False,
    zero_infinity: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """Minus the log-probability of the targets, summed over all alignments.

    Args:
        logits: the joiner's output, float32, float64, or float16 and bfloat16, which are computed in a float32 copy: padded
            [N, T, U + 1, V], or packed [sum of T_n (U_n + 1), V] with the rows of a sequence one after another, frame by
            frame.
        targets: [N, U] integers, classes of V; what lies beyond target_lengths is ignored. Lists, arrays or tensors, as both
            lengths. The host does not look at those on the device of the logits: one that is no class makes the loss NaN.
        logit_lengths: [N], frames T_n of 0..T. Frames beyond are ignored, whatever they hold, and get a gradient of 0.
            Lengths of a device are brought to the host, which waits for them.
        target_lengths: [N], labels U_n of 0..U.
        blank: the class of the blank; a negative one counts from the end.
        clamp: entries of the gradient by the logits are kept within +-clamp, before they are multiplied by the incoming
            gradient; not above 0: no limit.
        reduction: "none" gives [N]; "mean" and "sum" are over the sequences.
        fused_log_softmax: True: the softmax over V is taken here. False: logits are log-probs, normalised or not; the
            gradient by a log-prob then is minus the expected number of times that its arc is taken.
        fastemit_lambda: lambda of FastEmit (27): gradients of labels count 1 + lambda times; the loss stays as it is.
        delay_penalty: a label at frame t costs delay_penalty x (t - (T_n - 1) / 2); part of the loss.
        rnnt_type: "regular"; "modified": a label takes a frame; "constrained": (26).
        inplace: the gradient is written over the logits, which must not be used afterwards; backward then runs once.
        zero_infinity: losses of sequences that cannot be aligned count as 0; NaN stays NaN.
        backend: "auto" follows the device of the logits.

    Returns:
        float64: +inf for a sequence without an alignment (more labels than frames, scores of -inf), NaN for one with NaN or
        +inf in its logits; their gradient is 0. Differentiating twice raises.

    Raises:
        ShapeError: shapes that do not fit, lengths or targets out of range; the message names the sequence.
        ConfigError: an option with an illegal value.
        BackendUnavailable: a device that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4, 2))
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    blank = arguments.class_index(blank, logits.shape[-1], "blank")
    call = arguments.given(logits, targets, logit_lengths, target_lengths, [blank, -1])
    results = rnnt(
        logits,
        *call,
        torch.tensor(TOPOLOGIES[rnnt_type]),
        [logits.shape[-1], -1],
        [0.0, arguments.check_finite("delay_penalty", delay_penalty)],
        0.0,
        arguments.check_fastemit(fastemit_lambda),
        arguments.check_clamp(clamp),
        rnnt_type == "constrained",
        not fused_log_softmax,
        inplace,
        backend,
        torch.is_grad_enabled() and logits.requires_grad,
    )
    return arguments.reduce_losses(results[0], reduction, zero_infinity)


class RNNTLoss(nn.Module):
    """`rnnt_loss` with its options, as `torchaudio.transforms.RNNTLoss`."""

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        fused_log_softmax: bool = True,
        *,
        fastemit_lambda: float = 0.0,
        delay_penalty: float = 0.0,
        rnnt_type: RnntType = "regular",
        inplace: bool = False,
        zero_infinity: bool = False,
    ) -> None:
        super().__init__()
        arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
        arguments.check_topology(rnnt_type)
        arguments.check_clamp(clamp)
        self.blank, self.clamp, self.reduction = blank, clamp, reduction
        self.fused_log_softmax = fused_log_softmax
        self.fastemit_lambda = arguments.check_fastemit(fastemit_lambda)
        self.delay_penalty = arguments.check_finite("delay_penalty", delay_penalty)
        self.rnnt_type: RnntType = rnnt_type
        self.inplace, self.zero_infinity = inplace, zero_infinity

    def extra_repr(self) -> str:
        """The options that matter, for `repr`."""
        return f"blank={self.blank}, rnnt_type={self.rnnt_type!r}, reduction={self.reduction!r}"

    def forward(self, logits: Tensor, targets: Any, logit_lengths: Any, target_lengths: Any) -> Tensor:
        """As `rnnt_loss`."""
        return rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            self.fused_log_softmax,
            fastemit_lambda=self.fastemit_lambda,
            delay_penalty=self.delay_penalty,
            rnnt_type=self.rnnt_type,
            inplace=self.inplace,
            zero_infinity=self.zero_infinity,
        )
