"""The transducer loss of Graves, 2012, by torchaudio's names and arguments; equations (20)-(27) of `fsachain.grid`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fsachain.backends import arrays, dispatch
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.dispatch import BackendName
from fsachain.backends.grid_call import Grid, Placed
from fsachain.errors import ConfigError, ShapeError, brief, counted, warn_once
from fsachain.fsa import Ints
from fsachain.graph.forgive import Forgiveness, check_forgiveness
from fsachain.grid import TOPOLOGIES, GridArc, GridBatch, RnntType, Rows, num_cells
from fsachain.loss import arguments
from fsachain.loss.arguments import Given, make_rows, place_rows, row_kinds
from fsachain.loss.autograd import Operator, as_tensor, may_be_written, scale_rows, wants_gradient
from fsachain.loss.grid import grid, score_batch
from fsachain.loss.registered import number_option

# `rnnt` computes losses and keeps occupancies of arcs, which are small; its backward makes the gradient from them, in one
# pass that reads the logits and writes the gradient once, the incoming gradient included. Of few logits `rnnt_at_once` makes
# the gradient with the losses.


@lru_cache(maxsize=64)
def arc_kinds(arcs: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The arcs of a `GridBatch`."""
    return np.array(arcs).reshape(-1, 3)


def grid_batch(rows: Rows, starts: Tensor, arcs: npt.NDArray[np.int64]) -> GridBatch:
    """The grids of scores [K, cells] that are made from rows."""
    sizes: list[int] = []
    boxes: list[int] = []
    sequences, cells = rows.sequences.tolist(), num_cells(rows)
    firsts = starts.tolist() or [(0, 0)] * len(sequences)
    for (_, _, frames, _, last, labels, cell, step), (t, u) in zip(sequences, firsts, strict=True):
        sizes += t, u, last - t, labels - u
        for k in range(len(arcs)):
            boxes += cell + k * cells, step, 1, frames, step
    return GridBatch(arcs, np.array(sizes).reshape(-1, 4), np.array(boxes).reshape(-1, len(arcs), 5))


class RnntCall(NamedTuple):
    """Arguments of the operator; the five after the logits: see `arguments.Given`.

    arcs [3 K]: a `grid.GridArc` for each kind of arcs. classes, durations, delays [K], sigma: of these, heads: the softmaxes
    of a row, see `grid.Rows`. fastemit: lambda of (27); is_constrained: (26) holds; is_normalized: logits are log-probs;
    forgive: empty, or e^-s, e^-i, e^-d and w of (30). Entries of the gradient are kept within +-clamp; `inplace` writes it
    over the logits. reduction, zero_infinity: of the losses.
    """

    logits: Tensor
    targets: Tensor
    frames: Tensor
    labels: Tensor
    starts: Tensor
    ranges: Tensor
    arcs: list[int]
    classes: list[int]
    durations: list[int]
    heads: list[int]
    delays: list[float]
    forgive: list[float]
    with_gradient: bool
    sigma: float = 0.0
    fastemit: float = 0.0
    clamp: float = math.inf
    is_constrained: bool = False
    is_normalized: bool = False
    inplace: bool = False
    backend: str = "auto"
    reduction: str = "none"
    zero_infinity: bool = False


class RnntLosses(NamedTuple):
    """The losses [N] or what they are reduced to, float64, where the logits live; and what the gradient needs.

    stats: of the softmaxes of each row; occupancy: g [K, cells], scaled as in (27) and (26); both empty unless asked for.
    sequences: those of `grid.Rows`, on the host.
    """

    loss: Tensor
    stats: Tensor
    occupancy: Tensor
    sequences: Tensor


def arc_scores(call: RnntCall) -> tuple[Grid, Placed, Tensor, Tensor]:
    """The grid and where its rows lie; scores (24) [K, cells], with (26) if it holds, and the softmaxes' stats."""
    ours, logits = dispatch.grid(call.logits, call.backend), call.logits
    placed = make_rows(list(logits.shape), call)
    values, stats = ours.scores(placed, logits, call.is_normalized)
    if call.is_constrained:
        ours.constrain(placed, values)
    return ours, placed, values, stats


def _rnnt(call: RnntCall) -> RnntLosses:
    """Losses and what their gradient needs."""
    arcs, forgive = arc_kinds(tuple(call.arcs)), call.forgive
    ours, placed, values, stats = arc_scores(call)
    plain = values
    if forgive:
        values = _forgiven(plain, _is_nothing(stats, call.logits), *forgive)
    batch, sequences = grid_batch(placed.rows, call.starts, arcs), torch.from_numpy(placed.rows.sequences)
    if not call.with_gradient:
        loss = _reduced(call, ours.log_probs(batch, values))
        return RnntLosses(loss, stats.new_empty(len(stats), 0), values.new_empty(len(values), 0), sequences)
    after = values.clone() if forgive else values
    log_prob = ours.forward_backward(batch, values)
    if forgive:
        values = _of_plain(values, after, plain, *forgive)
    if call.fastemit:
        for k in np.flatnonzero(arcs[:, 1] == 1).tolist():
            values[k] *= 1.0 + call.fastemit
    if call.is_constrained:
        ours.release(placed, values)
    return RnntLosses(_reduced(call, log_prob), stats, values, sequences)


def _reduced(call: RnntCall, log_prob: Tensor) -> Tensor:
    """`arguments.reduce_losses`, on a device by one launch; those of the host without operations on so few numbers."""
    if dispatch.is_on_device(call.logits, call.backend):
        size, share = len(log_prob), arguments.share_of(call.reduction, len(log_prob))
        room = size, call.reduction, call.zero_infinity, torch.float64
        loss, reduced = arguments.room_for_loss(log_prob, *room)
        device, found = cuda.find_device(call.logits), cuda.view(log_prob)
        rounding = max(_rounding(call), default=0.0) if _is_probability(call) else 0.0
        cuda.reduce_losses(device, found, True, size, share, reduced, rounding)
        return loss
    return _reduced_on_host(call, log_prob.tolist())


def _is_probability(call: RnntCall) -> bool:
    """Whether Z is at most one: no delay penalty rewards early labels, no arc is paid for."""
    return call.sigma >= 0.0 and not any(call.delays)


def _rounding(call: RnntCall) -> list[float]:
    """How far below 0 rounding may take the loss of a probability, [N]: any loss below 0 is that of a softmax taken here.

    Log-probs that a caller gives may be not normalized, which tells at more than what rounding does to each arc.
    """
    if not call.is_normalized:
        return [math.inf] * len(call.frames)
    most = arguments.most_off(call.logits.dtype)
    return [most * arcs for arcs in (call.frames + call.labels).tolist()]


def _reduced_on_host(call: RnntCall, log_prob: list[float]) -> Tensor:
    losses = [0.0 - z for z in log_prob]
    if any(loss < 0.0 for loss in losses) and _is_probability(call):
        losses = _without_rounding(call, losses)
    if call.ranges.numel() and math.inf in losses:
        _tell_cut_off(call, losses.index(math.inf))
    shares = [arguments.share_of(call.reduction, len(losses))] * len(losses)
    return arguments.reduce_on_host(losses, shares, call.reduction, call.zero_infinity, torch.float64)


def _without_rounding(call: RnntCall, losses: list[float]) -> list[float]:
    """The losses with 0 for what only rounding has taken below it; a warning of what is farther below."""
    rounding = _rounding(call)
    n = next((n for n, loss in enumerate(losses) if loss < -rounding[n]), None)
    if n is not None:
        message = (
            f"logits: the loss of sequence {n} is {losses[n]:.6g}, of a probability above one; expected log-probs with "
            "fused_log_softmax=False, the output of log_softmax over all classes; for scores that are not normalized pass "
            "fused_log_softmax=True"
        )
        warn_once("normalization", message, arguments.NormalizationWarning)
    return [0.0 if -most <= loss < 0.0 else loss for loss, most in zip(losses, rounding, strict=True)]


def _tell_cut_off(call: RnntCall, n: int) -> None:
    frames, labels, s_range = int(call.frames[n]), int(call.labels[n]), call.ranges.shape[2]
    warn_once(
        "pruned",
        f"rnnt_loss_pruned: the loss of sequence {n} is inf: no path of its {counted(labels, 'label')} and "
        f"{counted(frames, 'frame')} stays within ranges of {counted(s_range, 'label')}, or its logits forbid all; expected "
        "what get_rnnt_prune_ranges makes of the same boundary, and for rnnt_type='modified' no more labels than frames",
        UserWarning,
    )


def _is_nothing(stats: Tensor, logits: Tensor) -> Tensor:
    """[cells]: rows of nothing but -inf, whose sum is 0; the reference keeps no sums."""
    return stats[1] == 0 if stats.shape[1] else (logits == -math.inf).all(dim=-1).view(-1)


def _forgiven(
    plain: Tensor, is_nothing: Tensor, wrong: float, left_out: float, extra: float, unit: float
) -> Tensor:
    """Scores (30) [2, cells] of the blank and the labels; where nothing is possible a star is not, either."""
    star = (-torch.expm1(plain[0].clamp(max=0.0)) * unit).masked_fill(is_nothing, 0.0)
    total = math.log1p(wrong + left_out + extra)
    paid = torch.stack([extra * star, wrong * star + left_out])
    return torch.logaddexp(plain, paid.log()) - total


def _of_plain(
    occupancy: Tensor, after: Tensor, plain: Tensor, wrong: float, left_out: float, extra: float, unit: float
) -> Tensor:
    """Derivatives of log Z by the scores before (30), from those by the scores after it; 0 where these are 0."""
    total = math.log1p(wrong + left_out + extra)

    def times(change: Tensor, factor: float = 1.0) -> Tensor:
        return torch.where(occupancy == 0, 0.0, occupancy * (change - after - total).exp() * factor)

    found = times(plain)
    by_star = times(plain[0], unit)  # of which a blank that is likelier takes as much
    found[0] -= extra * by_star[0] + wrong * by_star[1]
    return found


def _fake_rnnt(call: RnntCall) -> RnntLosses:
    logits, with_gradient = call.logits, call.with_gradient
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    num_softmaxes = 1 if call.heads[0] == logits.shape[-1] else 2
    if logits.ndim == 2:
        cells = logits.shape[0]
    else:
        labels = call.targets.shape[1] + 1 if call.ranges.shape[0] > 0 else logits.shape[2]
        cells = logits.shape[0] * logits.shape[1] * labels
    rows, size = logits.numel() // logits.shape[-1], call.frames.shape[0]
    return RnntLosses(
        logits.new_empty((size,) if call.reduction == "none" else (), dtype=torch.float64),
        logits.new_empty(
            0 if call.is_normalized else 2 * num_softmaxes, rows if with_gradient else 0, dtype=real
        ),
        logits.new_empty(len(call.classes), cells if with_gradient else 0, dtype=torch.float64),
        call.frames.new_empty(size, 8),
    )


class GradientCall(NamedTuple):
    """Arguments as for `rnnt`, which made stats, g and sequences; factors [N], or one of all."""

    logits: Tensor
    stats: Tensor
    occupancy: Tensor
    sequences: Tensor
    targets: Tensor
    ranges: Tensor
    classes: list[int]
    durations: list[int]
    heads: list[int]
    delays: list[float]
    sigma: float
    clamp: float
    backend: str
    factors: Tensor


def _rnnt_gradient(call: GradientCall) -> Tensor:
    """The gradient of -log Z by the logits times the factors."""
    return _gradient_of(call, False)


def _gradient_of(call: GradientCall, inplace: bool) -> Tensor:
    placed = place_rows(list(call.logits.shape), call.sequences.numpy(), call)
    made, ours = (call.stats, call.occupancy, call.factors), dispatch.grid(call.logits, call.backend)
    gradient: Tensor = ours.gradient(placed, call.logits, *made, call.clamp, inplace)
    return gradient


rnnt_gradient = Operator(_rnnt_gradient, lambda call: call.logits.new_empty(call.logits.shape))


def _rnnt_gradient_inplace(call: GradientCall) -> None:
    if not call.logits.is_contiguous():
        raise ShapeError("logits is not contiguous; expected it to be, for a gradient in its place")
    _gradient_of(call, True)


rnnt_gradient_inplace = Operator(_rnnt_gradient_inplace, lambda _: None, mutates=("logits",))


def _rnnt_backward(
    factor: Tensor, inplace: bool, reduction: str, sequences: Tensor, is_last: bool, **kept: Any
) -> dict[str, Tensor | None]:
    share = arguments.share_of(reduction, sequences.shape[0])
    call = GradientCall(**kept, sequences=sequences, factors=factor * share if share != 1.0 else factor)
    if not inplace or not may_be_written(factor):
        return {"logits": (_rnnt_gradient if is_last else rnnt_gradient)(call)}
    rnnt_gradient_inplace(call)
    return {"logits": call.logits.detach()}


rnnt = Operator(
    *(_rnnt, _fake_rnnt, _rnnt_backward, GradientCall._fields[:-1]),
    by={"logits": "with_gradient"},
    apart={"inplace": False},  # slices share memory, and what one writes the next would read
)


class LossAndGradient(NamedTuple):
    """The loss, as of `RnntLosses`, and its gradient by the logits, float32 or float64."""

    loss: Tensor
    gradient: Tensor


def _rnnt_at_once(call: RnntCall) -> LossAndGradient:
    """Of few logits the gradient with the loss, by one call of compiled code: see `is_short`."""
    logits, kinds = call.logits, (row_kinds(call), arc_kinds(tuple(call.arcs)))
    options = call.is_normalized, arguments.share_of(call.reduction, logits.shape[0]), call.clamp
    ours: Any = dispatch.grid(logits, call.backend)  # of the host
    given = call.targets, call.frames, call.labels
    log_prob, gradient, is_plain = ours.losses_and_gradient(logits, *given, *kinds, *options)
    if not is_plain:
        make_rows(list(logits.shape), call)  # an error, or a warning, says why
    return LossAndGradient(_reduced_on_host(call, log_prob), gradient)


def _fake_at_once(call: RnntCall) -> LossAndGradient:
    kind = torch.float64 if call.logits.dtype == torch.float64 else torch.float32
    return LossAndGradient(_fake_rnnt(call).loss, torch.empty_like(call.logits, dtype=kind))


def _scaled(factor: Tensor, gradient: Tensor, logits: Tensor, is_last: bool) -> dict[str, Tensor | None]:
    return {"logits": scale_rows(gradient, factor, logits, is_last)}


rnnt_at_once = Operator(_rnnt_at_once, _fake_at_once, _scaled, by={"logits": None})


def rnnt_losses(call: RnntCall) -> Tensor:
    """What `call` asks for, differentiable by the logits."""
    if is_short(call):
        loss: Tensor = rnnt_at_once(call).loss
    else:  # backward reads the targets again, and does not check them again
        loss = rnnt(call._replace(targets=arguments.own(call.targets))).loss
    return loss


def is_short(call: RnntCall) -> bool:
    """Whether a way back into Python between scores, sums and gradient would take about as long as these.

    The gradient of so few logits may wait for `backward`, and be multiplied there. Options that come in between are left
    out, and compilers, for which the number of logits is to be any.
    """
    if torch.compiler.is_compiling():
        return False
    logits, between = call.logits, call.is_constrained or call.fastemit or call.forgive or call.inplace
    if between or not call.with_gradient or logits.ndim != 4 or call.starts.numel():
        return False
    if call.backend not in ("auto", "cpu"):
        return False
    if arrays.home_of(logits) != "cpu":
        return False
    if call.targets.ndim != 2 or not call.targets.shape[0] == call.frames.shape[0] == logits.shape[0] > 0:
        return False  # which is to be said
    width = logits.shape[-1]
    return logits.numel() * max(16, width) <= _FEW * width


_FEW = 1 << 17  # entries of rows of 16 or more


def rnnt_call(
    logits: Tensor,
    given: Given,
    arcs: Sequence[GridArc],
    classes: list[int],
    durations: list[int] | None = None,
    heads: list[int] | None = None,
    delays: list[float] | None = None,
    forgive: list[float] | None = None,
    **options: Any,
) -> RnntCall:
    """Of checked arguments, see `RnntCall`; by default no durations, one softmax over all classes, no delays."""
    kinds = list(chain(*arcs)), classes, durations or [-1] * len(arcs)
    rest = heads or [logits.shape[-1], -1], delays or [0.0] * len(arcs), forgive or []
    return RnntCall(logits, *given, *kinds, *rest, wants_gradient(logits), **options)


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
    forgive: Forgiveness | None = None,
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
        fused_log_softmax: True: the softmax over V is taken here. False: logits are log-probs; the gradient by a log-prob
            then is minus the expected number of times that its arc is taken. They may be not normalised, but that is most
            often a mistake: one `NormalizationWarning` on the host tells of a loss below 0 without a delay penalty.
        fastemit_lambda: lambda of FastEmit (27): gradients of labels count 1 + lambda times; the loss stays as it is.
        delay_penalty: a label at frame t costs delay_penalty x (t - (T_n - 1) / 2); part of the loss.
        rnnt_type: "regular"; "modified": a label takes a frame; "constrained": (26).
        forgive: penalties for targets that are wrong, too many or missing, (30); None: there are none. For rnnt_type
            "regular" with the softmax taken here, without FastEmit and delay penalty. The joiner knows the targets up to u,
            whether they were said or not. `most_left_out` has no part in it.
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
    arguments.check_logits(logits, "logits", arguments.PADDED, arguments.PACKED)
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    blank = arguments.class_index(blank, logits.shape[-1], "blank")
    given = arguments.given(logits, targets, logit_lengths, target_lengths)
    weights: list[float] = []
    if forgive is not None:
        check_forgiveness(forgive)
        has_penalties = arguments.is_set(fastemit_lambda) or arguments.is_set(delay_penalty)
        if rnnt_type != "regular" or not fused_log_softmax or has_penalties:
            raise ConfigError(
                f"forgive with rnnt_type = {rnnt_type!r}, fused_log_softmax = {fused_log_softmax}, fastemit_lambda = "
                f"{fastemit_lambda}, delay_penalty = {delay_penalty}; expected 'regular', True, 0 and 0"
            )
        penalties = forgive.substitution, forgive.insertion, forgive.deletion
        unit = 1.0 / max(1, logits.shape[-1] - 1) if forgive.star == "mean" else 1.0
        weights = [*(math.exp(-penalty) for penalty in penalties), unit]
    call = rnnt_call(
        logits,
        given,
        TOPOLOGIES[rnnt_type],
        [blank, -1],
        delays=[0.0, arguments.check_penalty("delay_penalty", delay_penalty)],
        fastemit=arguments.check_fastemit("fastemit_lambda", fastemit_lambda),
        clamp=arguments.check_clamp("clamp", clamp),
        is_constrained=rnnt_type == "constrained",
        is_normalized=not fused_log_softmax,
        forgive=weights,
        inplace=inplace,
        backend=backend,
        reduction=reduction,
        zero_infinity=zero_infinity,
    )
    return rnnt_losses(call)


_OPTIONS = list(inspect.signature(rnnt_loss).parameters)[4:]


class RNNTLoss(nn.Module):
    """`rnnt_loss` with its options, as `torchaudio.transforms.RNNTLoss`.

    Attributes:
        blank, clamp, reduction, fused_log_softmax, fastemit_lambda, delay_penalty, rnnt_type, forgive, inplace,
            zero_infinity, backend: the options, as for `rnnt_loss`; read at each call.
    """

    clamp = number_option("clamp", arguments.check_clamp)
    fastemit_lambda = number_option("fastemit_lambda", arguments.check_fastemit)
    delay_penalty = number_option("delay_penalty", arguments.check_penalty)
    backend: BackendName = "auto"  # of modules that were pickled before there was the option

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
        forgive: Forgiveness | None = None,
        inplace: bool = False,
        zero_infinity: bool = False,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
        arguments.check_topology(rnnt_type)
        given = locals()
        for name in _OPTIONS:
            setattr(self, name, given[name])

    def extra_repr(self) -> str:
        """The options that matter, for `repr`."""
        return f"blank={self.blank}, rnnt_type={self.rnnt_type!r}, reduction={self.reduction!r}"

    def forward(self, logits: Tensor, targets: Any, logit_lengths: Any, target_lengths: Any) -> Tensor:
        """As `rnnt_loss`."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return rnnt_loss(logits, targets, logit_lengths, target_lengths, **options)


# Lattices: scores of arcs, their occupancies, and the best alignment.


class TransducerOccupancy(NamedTuple):
    """What the paths of a lattice do, weighted with their probabilities.

    Attributes:
        log_prob: [N] log Z, float64.
        ok: [N]; False: no path, or illegal scores; the occupancies are 0 then.
        label, blank: [N, T, U + 1]: how often a path takes a label arc, a blank of any length, from node (t, u).
        node: [N, T, U + 1]: how often it passes there: the sum of both. On each anti-diagonal t + u of a regular lattice the
            nodes sum to one, on each frame of a modified one.
    """

    log_prob: Tensor
    ok: Tensor
    label: Tensor
    blank: Tensor
    node: Tensor

    def __repr__(self) -> str:
        return brief(self)


class TransducerAlignment(NamedTuple):
    """The best path (23) of one sequence.

    Attributes:
        score: its log-probability; -inf or NaN where there is none, and no arcs then.
        frames: [U] the frame at which each label is emitted.
        arcs: [A, 3] rows (kind, t, u): every arc of the path with the node that it leaves.
    """

    score: float
    frames: Ints
    arcs: Ints

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True)
class TransducerLattice:
    """Scores of arcs on the (t, u) grid of each of N sequences.

    Attributes:
        scores: [N, K, T, U + 1]: log-scores of each kind of arc that leaves node (t, u).
        arcs: the kinds, K of them.
        sizes: [N, 4] int64: 0, 0, T_n, U_n.
        backend: what computes.
    """

    scores: Tensor
    arcs: tuple[GridArc, ...]
    sizes: Tensor
    backend: BackendName = "auto"

    __repr__ = brief

    def log_prob(self) -> Tensor:
        """log Z [N] (21), float64, differentiable in the scores: the gradient is the occupancy."""
        differentiable = torch.is_grad_enabled() and self.scores.requires_grad
        return grid(self.scores, self.sizes, as_tensor(self.arcs), self.backend, differentiable).log_prob

    @torch.no_grad()
    def occupancy(self) -> TransducerOccupancy:
        """Equation (22)."""
        log_prob, g = grid(self.scores, self.sizes, as_tensor(self.arcs), self.backend, True)
        label, blank = (
            sum(
                (g[:, k] for k, arc in enumerate(self.arcs) if arc.labels == count), torch.zeros_like(g[:, 0])
            )
            for count in (1, 0)
        )
        return TransducerOccupancy(log_prob, torch.isfinite(log_prob), label, blank, label + blank)

    @torch.no_grad()
    def best_alignment(self) -> list[TransducerAlignment]:
        """The best path of each sequence."""
        wide = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32)).contiguous()
        batch = score_batch(list(wide.shape), self.sizes, as_tensor(self.arcs))
        scores, paths = dispatch.grid(wide, self.backend).best_paths(batch, wide.view(-1))
        is_label = np.array([arc.labels == 1 for arc in self.arcs])
        return [
            TransducerAlignment(float(score), path[is_label[path[:, 0]], 1], path)
            for score, path in zip(scores, paths, strict=True)
        ]


@torch.no_grad()
def rnnt_lattice(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    fused_log_softmax: bool = True,
    *,
    ranges: Any = None,
    delay_penalty: float = 0.0,
    rnnt_type: RnntType = "regular",
    backend: BackendName = "auto",
) -> TransducerLattice:
    """The lattice of `rnnt_loss`, or with `ranges` of `rnnt_loss_pruned`, without history.

    Args:
        logits: padded [N, T, U + 1, V], or [N, T, s_range, V] with `ranges`; the others as for `rnnt_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", arguments.PADDED)
    arguments.check_topology(rnnt_type)
    blank = arguments.class_index(blank, logits.shape[-1], "blank")
    given = arguments.given(logits, targets, logit_lengths, target_lengths)
    if ranges is not None:
        given = given._replace(ranges=arguments.integers_there(ranges, "ranges", logits.device))
    options: dict[str, Any] = {"delays": [0.0, delay_penalty], "is_normalized": not fused_log_softmax}
    options |= {"is_constrained": rnnt_type == "constrained", "backend": backend}
    return lattice_of(rnnt_call(logits, given, TOPOLOGIES[rnnt_type], [blank, -1], **options))


def lattice_of(call: RnntCall) -> TransducerLattice:
    """The lattice of padded logits [N, T, .., ..]."""
    _, _, scores, _ = arc_scores(call)
    arcs = tuple(GridArc(*arc) for arc in arc_kinds(tuple(call.arcs)).tolist())
    boxes = scores.view(len(arcs), *call.logits.shape[:2], -1).transpose(0, 1)
    sizes = as_tensor(arguments.spans(call))
    return TransducerLattice(boxes, arcs, sizes, cast(BackendName, call.backend))
