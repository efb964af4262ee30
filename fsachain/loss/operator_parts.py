"""What the operators of `LFMMILoss` and `MBRLoss` share.

Both take the same arguments: nnet_output [N, T, P]; lengths [N]; weights, float64 [N], w_n; frame_weights, [N, T] factors of
the derivative or empty; the key of the numerators; a key for each denominator; denominator_of [N], which of them a sequence
has; options; whether the gradient is wanted; whether the numerator's occupancy is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.errors import ConfigError
from fsachain.loss.operators import new_buffer, refuse_second_derivative

OUT_OF_RANGE = 30.0  # as in Kaldi: scores within +-30 are never penalised
NUM_ARGUMENTS = 10

Floats = npt.NDArray[np.float64]
Lanes = npt.NDArray[np.int64]
# (batch, arguments, lanes, out): one float64 array [len(lanes)] for each result; derivatives are added to out [len, T, P]
Recursion = Callable[[TableBatch, dispatch.Prepared, Lanes, Tensor], tuple[Floats, ...]]


def check_weights(weights: Floats, batch: TableBatch) -> None:
    """Raise unless every w_n is a finite number >= 0."""
    bad = np.flatnonzero(~((weights >= 0.0) & np.isfinite(weights)))
    if bad.size:
        n = int(bad[0])
        raise ConfigError(f"weights[{n}] = {weights[n]} ({batch.names[n]}); expected a finite number >= 0")


def log_probs(
    ready: dispatch.Prepared, batch: TableBatch, leaky: float, weights: Floats, out: Tensor
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """log Z [N] and ok [N]; weights times occupancy is added to `out` unless that is empty: then no beta runs."""
    if not len(out):
        log_prob, ok = ready.backend.log_probs(batch, ready.scores, ready.lengths, leaky)
    else:
        log_prob, ok = ready.backend.add_occupancy(
            batch, ready.scores, ready.lengths, leaky, weights, out.numpy(), ready.memory_budget
        )
    return log_prob, ok


def by_denominator(
    keys: Tensor,
    denominator_of: Tensor,
    ready: dispatch.Prepared,
    run: Recursion,
    out: Tensor,
    results: Floats,
) -> None:
    """`run` for the sequences of each denominator; results [R, N] are filled, derivatives are added to `out`."""
    for index, key in enumerate(keys.tolist()):
        lanes = np.flatnonzero(denominator_of.numpy() == index)
        if not lanes.size:
            continue
        shared = TableBatch.share(find_batch(key).tables[0], len(lanes))
        if len(lanes) == len(ready.scores):
            results[:] = run(shared, ready, lanes, out)
            continue
        part = ready._replace(scores=ready.scores[lanes], lengths=ready.lengths[lanes])
        own = torch.zeros_like(out[lanes] if len(out) else out)
        results[:, lanes] = run(shared, part, lanes, own)
        if len(out):
            out[lanes] += own


def finish(
    ready: dispatch.Prepared,
    objf: float,
    ok: npt.NDArray[np.bool_],
    weights: Floats,
    penalties: tuple[float, float],
    frame_weights: Tensor,
    buffers: tuple[Tensor, Tensor],
) -> list[Tensor]:
    """total = objf + penalties, l2_term and out_of_range_term, float64 scalars.

    `buffers`, gradient and numerator occupancy, may be empty: rows of sequences that are not ok become 0, the penalties'
    derivatives are added to the gradient, and frame weights multiply it. penalties: l2 and out-of-range factors.
    """
    gradient, _ = buffers
    for buffer in buffers:
        if len(buffer):
            buffer[torch.from_numpy(~ok)] = 0
    terms = np.zeros(2)
    if any(penalties):
        used = np.where(ok, weights, 0.0)
        terms[:] = ready.backend.add_penalties(
            ready.scores, ready.lengths, used, (*penalties, OUT_OF_RANGE), gradient.numpy()
        )
    if len(gradient) and frame_weights.numel():
        gradient *= frame_weights.to(gradient.dtype).unsqueeze(2)
    scalars = torch.from_numpy(np.append(objf + terms.sum(), terms)).unbind()
    return [scalar.clone() for scalar in scalars]


def fake_results(nnet_output: Tensor, with_gradient: bool, with_numerator: bool) -> tuple[Tensor, ...]:
    """Empty tensors as the eight results of `lfmmi`."""
    scalars = [nnet_output.new_empty((), dtype=torch.float64) for _ in range(3)]
    values = [nnet_output.new_empty(nnet_output.shape[0], dtype=torch.float64) for _ in range(2)]
    ok = nnet_output.new_empty(nnet_output.shape[0], dtype=torch.bool)
    buffers = [new_buffer(nnet_output, wanted) for wanted in (with_gradient, with_numerator)]
    return scalars[0], *values, ok, *scalars[1:], *buffers


@torch.library.custom_op("fsachain::scale_gradient", mutates_args=())
def scale_gradient(gradient: Tensor, factor: Tensor, like: Tensor) -> Tensor:
    """gradient times a scalar, in the dtype of `like`."""
    return (gradient * factor.to(gradient.dtype)).to(like.dtype)


@scale_gradient.register_fake
def _(gradient, factor, like):  # type: ignore[no-untyped-def]
    return torch.empty_like(gradient, dtype=like.dtype)


scale_gradient.register_autograd(refuse_second_derivative)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[6], inputs[0])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, factor, *_):  # type: ignore[no-untyped-def]
    gradient, like = ctx.saved_tensors
    return scale_gradient(gradient, factor, like), *[None] * (NUM_ARGUMENTS - 1)


def register_gradient(operator: Any) -> None:
    """The gradient of the first result is the seventh; no other result has one."""
    operator.register_autograd(_backward, setup_context=_save)
