"""The recursions as torch custom operators.

Operators take tensors only, so a `TableBatch` travels as its key. Everything that backward needs is computed in forward;
each backward is an operator of its own without a derivative, so that a second differentiation raises instead of
returning a part of the truth.

Scores may live on a device; then everything does but keys, lengths and numbers of arcs, which the host needs, and nothing
waits for the device. What only the host computes goes through `by_host`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad

from fsachain.backends import arrays as kinds
from fsachain.backends import dispatch
from fsachain.backends.arrays import check_budget, check_leak
from fsachain.batch import TableBatch, find_batch
from fsachain.errors import ConfigError

# How the operators of this package come to torch.


def operator(name: str, mutates_args: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`torch.library.custom_op` for an operator that has derivatives in reverse mode only, and says so.

    Torch takes an operator without a forward derivative for a constant, in silence: `torch.func.jvp`, `jacfwd` and
    `hessian` would give 0.
    """

    def register(kernel: Callable[..., Any]) -> Any:
        @functools.wraps(kernel)
        def reverse_only(*arguments: Any, **named: Any) -> Any:
            refuse_forward_mode()
            return kernel(*arguments, **named)

        return torch.library.custom_op(name, reverse_only, mutates_args=mutates_args)

    return register


def refuse_forward_mode() -> None:
    """Raise if anybody differentiates in forward mode around this call.

    Torch has no public name for the level; where it lacks the private one, nothing is refused.
    """
    if getattr(forward_ad, "_current_level", -1) >= 0:
        raise RuntimeError(
            "fsachain has derivatives in reverse mode only; expected its losses outside of torch.func.jvp, jacfwd, hessian "
            "and torch.autograd.forward_ad"
        )


# Operators take the memory budget as a number, since it also stands in lists of options: any below 0 is None.
DEFAULT_BUDGET = -1.0


def budget_number(memory_budget: float | None) -> float:
    """The memory budget as operators take it.

    Raises:
        ConfigError: it is negative or NaN.
    """
    check_budget(memory_budget)
    return DEFAULT_BUDGET if memory_budget is None else float(memory_budget)


def budget_of(number: float) -> float | None:
    """What `budget_number` was given."""
    return None if number < 0.0 else number


def _occupancy_type(scores: Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def new_buffer(scores: Tensor, wanted: bool) -> Tensor:
    """Zeros [N, T, P] for occupancies of these scores; an empty tensor where none are wanted."""
    shape = scores.shape if wanted else (0, 0, 0)
    return torch.zeros(shape, dtype=_occupancy_type(scores), device=scores.device)


def by_host(operator: Any, device: torch.device, *arguments: Any) -> tuple[Tensor, ...]:
    """The operator's results from copies of the arguments on the host, copied to `device`; the host waits."""
    copies = (value.cpu() if isinstance(value, Tensor) else value for value in arguments)
    return tuple(result.to(device) for result in operator(*copies))


@operator("fsachain::log_prob")
def log_prob(
    scores: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    leaky: float,
    backend: str,
    with_occupancy: bool,
    memory_budget: float,
) -> tuple[Tensor, Tensor]:
    """log Z [N] in float64 and occupancy [N, T, P] (empty unless asked for); -inf or NaN where a sequence is not ok.

    memory_budget: see `budget_number`.
    """
    batch = find_batch(int(batch_key.item()))
    call = dispatch.bind(batch, scores, lengths, backend, budget_of(memory_budget))
    check_leak(batch, leaky)
    out = new_buffer(scores, with_occupancy)
    if with_occupancy:
        values, _ = call.add_occupancy(batch, leaky, None, out)
    else:
        values, _ = call.log_probs(batch, leaky)
    return values, out


@log_prob.register_fake
def _(scores, lengths, batch_key, leaky, backend, with_occupancy, memory_budget):  # type: ignore[no-untyped-def]
    return scores.new_empty(scores.shape[0], dtype=torch.float64), new_buffer(scores, with_occupancy)


def refuse_second_derivative(ctx, *_):  # type: ignore[no-untyped-def]
    """The derivative of an operator that gives first derivatives.

    It is reached because these operators take the scores themselves as `like`: their results depend on them, and a second
    differentiation that passed over that would give a part of the truth.
    """
    raise RuntimeError("fsachain gives first derivatives only; expected its losses to be differentiated once")


class FirstOnly(torch.autograd.Function):
    """A first derivative, made outside of an operator, which depends on `like` in ways that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, like: Tensor) -> Tensor:
        """The value itself."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        """Raises."""
        refuse_second_derivative(ctx, gradient)


def only_first_has_gradient(ctx: Any, output: tuple[Tensor, ...]) -> None:
    """Say so to torch, which else makes zeros of the size of each result before it calls backward.

    The incoming gradient is None then where there is none for the first result either.
    """
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


@operator("fsachain::scale_rows")
def scale_rows(values: Tensor, factors: Tensor, like: Tensor) -> Tensor:
    """values [N, T, P] times factors [N] in the dtype of `like`; what is 0 stays 0 whatever its factor."""
    scaled = values * factors.to(values.dtype).view(-1, 1, 1)
    if not factors.is_cpu:  # which nobody may ask where it is not finite
        return scaled.masked_fill_(values == 0, 0).to(like.dtype)
    for n in torch.nonzero(~torch.isfinite(factors)).flatten().tolist():
        scaled[n] = torch.where(values[n] == 0, 0, scaled[n])
    return scaled.to(like.dtype)


@scale_rows.register_fake
def _(values, factors, like):  # type: ignore[no-untyped-def]
    return torch.empty_like(values, dtype=like.dtype)


scale_rows.register_autograd(refuse_second_derivative)


def _save_log_prob(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[1], inputs[0])
    only_first_has_gradient(ctx, output)


def _log_prob_backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
    if gradient is None:
        return (None,) * 7
    occupancy, like = ctx.saved_tensors
    return scale_rows(occupancy, gradient, like), *[None] * 6


log_prob.register_autograd(_log_prob_backward, setup_context=_save_log_prob)


@operator("fsachain::weighted_log_prob")
def weighted_log_prob(
    scores: Tensor,
    arc_log_probs: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    arc_counts: Tensor,
    leaky: float,
    backend: str,
    rows: int,
    with_occupancy: bool,
    memory_budget: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z [N], occupancy [N, T, P] and the sums over frames of gamma, for arc weights given as one vector.

    Args:
        arc_log_probs: [A] for a shared graph, else the sequences' weights one after another.
        arc_counts: int64, the number of arcs of each graph: one entry for a shared graph, else N.
        rows: rows of the last result, which has a column for each entry of arc_log_probs: N for a shared graph; one for
            graphs of their own, whose sums stand one after another; none where these sums are not wanted.
        with_occupancy: else the second result is empty.
        memory_budget: see `budget_number`; for occupancies, not for the sums of gamma.
    """
    if not scores.is_cpu:
        inputs = scores, arc_log_probs, lengths, batch_key, arc_counts, leaky, backend
        results = by_host(weighted_log_prob, scores.device, *inputs, rows, with_occupancy, memory_budget)
        return results[0], results[1], results[2]
    batch = find_batch(int(batch_key.item()))
    weighted = _with_arc_log_probs(batch, arc_log_probs)
    call = dispatch.bind(weighted, scores, lengths, backend, budget_of(memory_budget), on_host=True)
    check_leak(batch, leaky)
    out = new_buffer(scores, with_occupancy)
    if with_occupancy:
        values, _ = call.add_occupancy(weighted, leaky, None, out)
    else:
        values, _ = call.log_probs(weighted, leaky)
    arcs = torch.zeros(rows, len(arc_log_probs), dtype=torch.float64)
    if rows > 0:
        own = list(arcs) if batch.is_shared else torch.split(arcs[0], arc_counts.tolist())
        counts = [row.numpy() for row in own]
        call.backend.arcs.add_arc_occupancy(weighted, call.scores, call.lengths, leaky, counts)
    return values, out, arcs


def _with_arc_log_probs(batch: TableBatch, arc_log_probs: Tensor) -> TableBatch:
    values = arc_log_probs.detach().double().numpy()
    if batch.is_shared:
        return TableBatch.share(batch.tables[0].with_arc_log_probs(values), batch.size, batch.names)
    pieces = np.split(values, np.cumsum([table.num_arcs for table in batch.tables])[:-1])
    tables = [table.with_arc_log_probs(piece) for table, piece in zip(batch.tables, pieces, strict=True)]
    return TableBatch.pack(tables, batch.names)


@weighted_log_prob.register_fake
def _(scores, arc_log_probs, lengths, key, counts, leaky, backend, rows, with_occupancy, memory_budget):  # type: ignore[no-untyped-def]
    values = scores.new_empty(scores.shape[0], dtype=torch.float64)
    arcs = scores.new_empty(rows, arc_log_probs.shape[0], dtype=torch.float64)
    return values, new_buffer(scores, with_occupancy), arcs


@operator("fsachain::arc_gradient")
def arc_gradient(arcs: Tensor, factors: Tensor, arc_counts: Tensor, like: Tensor) -> Tensor:
    """The sums of gamma, laid out as in `weighted_log_prob`, times the factors [N] of their sequences, added over rows."""
    if len(arcs) == len(factors):
        by_arc = factors.view(-1, 1)
    else:
        counts = arc_counts.to(factors.device)
        by_arc = factors.repeat_interleave(counts, output_size=arcs.shape[1])
    return torch.where(arcs == 0, 0, arcs * by_arc).sum(dim=0).to(like.dtype)


@arc_gradient.register_fake
def _(arcs, factors, arc_counts, like):  # type: ignore[no-untyped-def]
    return torch.empty_like(like)


arc_gradient.register_autograd(refuse_second_derivative)


def _save_weighted(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[1], output[2], inputs[0], inputs[1], inputs[4])
    only_first_has_gradient(ctx, output)


def _weighted_backward(ctx, gradient, *_):  # type: ignore[no-untyped-def]
    if gradient is None:
        return (None,) * 10
    occupancy, arcs, like, weights, counts = ctx.saved_tensors
    by_score = scale_rows(occupancy, gradient, like) if len(occupancy) else None
    by_arc = arc_gradient(arcs, gradient, counts, weights) if len(arcs) else None
    return by_score, by_arc, *[None] * 8


weighted_log_prob.register_autograd(_weighted_backward, setup_context=_save_weighted)


# What the operators of `LFMMILoss` and `MBRLoss` share.
#
# Both take the same arguments: nnet_output [N, T, P]; lengths [N]; weights, float64 [N], w_n; frame_weights,
# [N, T] factors of the derivative or empty; the key of the numerators; a key for each denominator;
# denominator_of [N], which of them a sequence has; options; whether the gradient is wanted; whether the
# numerator's occupancy is. Scores, frame weights and results live on one device, weights there or on the
# host, the others on the host; nothing waits for the device.

OUT_OF_RANGE = 30.0  # as in Kaldi: scores within +-30 are never penalised
NUM_ARGUMENTS = 10

Lanes = npt.NDArray[np.int64]
# (batch, recursions, at, out): one float64 tensor [L] for each result; derivatives are added to out [L, T, P]. `at` says
# which of the N sequences these L are, as an index; None: all of them, in order.
Recursion = Callable[[TableBatch, Any, Tensor | None, Tensor], tuple[Tensor, ...]]


def placed_weights(weights: Tensor, batch: TableBatch, call: dispatch.Call, device: torch.device) -> Tensor:
    """The weights on the device of the scores.

    Raises:
        ConfigError: one is not a finite number >= 0; known only of weights on the host.
    """
    if not weights.is_cpu:
        return weights
    values = weights.numpy()
    bad = np.flatnonzero(~((values >= 0.0) & np.isfinite(values)))
    if bad.size:
        n = int(bad[0])
        raise ConfigError(f"weights[{n}] = {values[n]} ({batch.names[n]}); expected a finite number >= 0")
    return weights if device.type == "cpu" else call.place(values)


def log_probs(
    call: dispatch.Call, batch: TableBatch, leaky: float, weights: Tensor | None, out: Tensor
) -> tuple[Tensor, Tensor]:
    """log Z [N] and ok [N]; weights times occupancy is added to `out` unless that is empty: then no beta runs."""
    if len(out):
        return call.add_occupancy(batch, leaky, weights, out)
    return call.log_probs(batch, leaky)


def by_denominator(
    keys: Tensor,
    denominator_of: Tensor,
    call: dispatch.Call,
    run: Recursion,
    out: Tensor,
    results: Tensor,
) -> None:
    """`run` for the sequences of each denominator; results [R, N] are filled, derivatives are added to `out`."""
    for index, key in enumerate(keys.tolist()):
        lanes = np.flatnonzero(denominator_of.numpy() == index)
        if not lanes.size:
            continue
        shared = TableBatch.share(find_batch(key).tables[0], len(lanes))
        if len(lanes) == results.shape[1]:
            torch.stack(run(shared, call, None, out), out=results)
            continue
        at = call.place(lanes)
        own = out.new_zeros((len(lanes), *out.shape[1:]) if len(out) else out.shape)
        results[:, at] = torch.stack(run(shared, call.part(lanes), at, own))
        if len(out):
            out[at] += own


class Terms(NamedTuple):
    """What the losses share: float64 scalars, lengths [N] as float64, weights [N]."""

    total: Tensor
    l2_term: Tensor
    out_of_range_term: Tensor
    frames: Tensor
    weights: Tensor


def finish(
    call: dispatch.Call,
    objf: Tensor,
    ok: Tensor,
    weights: Tensor,
    penalties: tuple[float, float],
    frame_weights: Tensor,
    buffers: tuple[Tensor, Tensor],
) -> Terms:
    """Add the penalties, l2 and out-of-range factors, to objf.

    `buffers`, gradient and numerator occupancy, may be empty: rows of sequences that are not ok become 0, the penalties'
    derivatives are added to the gradient, and frame weights multiply it.
    """
    gradient, _ = buffers
    for buffer in buffers:
        if len(buffer):
            _clear(buffer, ok)
    terms = objf.new_zeros(2)
    if any(penalties):
        terms = call.add_penalties(torch.where(ok, weights, 0.0), (*penalties, OUT_OF_RANGE), gradient)
    frames = call.place(call.lengths.astype(np.float64))
    if len(gradient) and frame_weights.numel():
        gradient *= real_frames(frame_weights, frames).to(gradient.dtype).unsqueeze(2)
    # Results of an operator are no views of one another or of what others use.
    return Terms(objf + terms.sum(), terms[0].clone(), terms[1].clone(), frames.clone(), weights.clone())


def _clear(buffer: Tensor, ok: Tensor) -> None:
    """0 in the rows [T, P] of sequences that are not ok [N]."""
    if kinds.home_of(buffer) == "cuda":
        buffer.masked_fill_(~ok.view(-1, 1, 1), 0.0)
    else:  # without a look at the others
        buffer.numpy()[~ok.numpy()] = 0.0


def real_frames(values: Tensor, frames: Tensor) -> Tensor:
    """Values [N, T] with 0 beyond the lengths `frames` [N], where they may hold anything."""
    times = torch.arange(values.shape[1], device=values.device)
    return torch.where(times < frames.view(-1, 1), values, 0.0)


def fake_results(nnet_output: Tensor, with_gradient: bool, with_numerator: bool) -> tuple[Tensor, ...]:
    """Empty tensors as the results of `lfmmi`."""
    scalars = [nnet_output.new_empty((), dtype=torch.float64) for _ in range(3)]
    values = [nnet_output.new_empty(nnet_output.shape[0], dtype=torch.float64) for _ in range(4)]
    ok = nnet_output.new_empty(nnet_output.shape[0], dtype=torch.bool)
    buffers = [new_buffer(nnet_output, wanted) for wanted in (with_gradient, with_numerator)]
    return scalars[0], *values[:2], ok, *scalars[1:], *buffers, *values[2:]


@operator("fsachain::scale_gradient")
def scale_gradient(gradient: Tensor, factor: Tensor, like: Tensor) -> Tensor:
    """gradient times a scalar, in the dtype of `like`."""
    return (gradient * factor.to(gradient.dtype)).to(like.dtype)


@scale_gradient.register_fake
def __operator_parts(gradient, factor, like):  # type: ignore[no-untyped-def]
    return torch.empty_like(gradient, dtype=like.dtype)


scale_gradient.register_autograd(refuse_second_derivative)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[6], inputs[0])
    only_first_has_gradient(ctx, output)


def _backward(ctx, factor, *_):  # type: ignore[no-untyped-def]
    if factor is None:
        return (None,) * NUM_ARGUMENTS
    gradient, like = ctx.saved_tensors
    return scale_gradient(gradient, factor, like), *[None] * (NUM_ARGUMENTS - 1)


def register_gradient(operator: Any) -> None:
    """The gradient of the first result is the seventh; no other result has one."""
    operator.register_autograd(_backward, setup_context=_save)
