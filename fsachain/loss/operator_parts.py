"""What the operators of `LFMMILoss` and `MBRLoss` share.

Both take the same arguments: nnet_output [N, T, P]; lengths [N]; weights, float64 [N], w_n; frame_weights, [N, T] factors of
the derivative or empty; the key of the numerators; a key for each denominator; denominator_of [N], which of them a sequence
has; options; whether the gradient is wanted; whether the numerator's occupancy is. Scores, frame weights and results live on
one device, weights there or on the host, the others on the host; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.errors import ConfigError
from fsachain.loss.operators import new_buffer, only_first_has_gradient, refuse_second_derivative
from fsachain.loss.registration import operator

OUT_OF_RANGE = 30.0  # as in Kaldi: scores within +-30 are never penalised
NUM_ARGUMENTS = 10

Lanes = npt.NDArray[np.int64]
# (batch, recursions, at, out): one float64 tensor [L] for each result; derivatives are added to out [L, T, P]. `at` says
# which of the N sequences these L are, as an index; None: all of them, in order.
Recursion = Callable[[TableBatch, Any, Tensor | None, Tensor], tuple[Tensor, ...]]


def placed_weights(
    weights: Tensor, batch: TableBatch, call: dispatch.Recursions, device: torch.device
) -> Tensor:
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
    return weights if device.type == "cpu" else call.constant(values)


def log_probs(
    call: dispatch.Recursions, batch: TableBatch, leaky: float, weights: Tensor | None, out: Tensor
) -> tuple[Tensor, Tensor]:
    """log Z [N] and ok [N]; weights times occupancy is added to `out` unless that is empty: then no beta runs."""
    if len(out):
        return call.add_occupancy(batch, leaky, weights, out)
    return call.log_probs(batch, leaky)


def by_denominator(
    keys: Tensor,
    denominator_of: Tensor,
    call: dispatch.Recursions,
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
        at = call.constant(lanes)
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
    call: dispatch.Recursions,
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
            call.clear(buffer, ok)
    terms = objf.new_zeros(2)
    if any(penalties):
        terms = call.add_penalties(torch.where(ok, weights, 0.0), (*penalties, OUT_OF_RANGE), gradient)
    frames = call.constant(call.lengths.astype(np.float64))
    if len(gradient) and frame_weights.numel():
        gradient *= real_frames(frame_weights, frames).to(gradient.dtype).unsqueeze(2)
    # Results of an operator are no views of one another or of what others use.
    return Terms(objf + terms.sum(), terms[0].clone(), terms[1].clone(), frames.clone(), weights.clone())


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
def _(gradient, factor, like):  # type: ignore[no-untyped-def]
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
