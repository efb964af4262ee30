"""LF-MMI as one torch operator: numerator and denominator write their occupancies into one gradient buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.errors import ConfigError
from fsachain.loss.operators import new_buffer

OUT_OF_RANGE = 30.0  # as in Kaldi: scores within +-30 are never penalised


@torch.library.custom_op("fsachain::lfmmi", mutates_args=())
def lfmmi(
    nnet_output: Tensor,
    lengths: Tensor,
    weights: Tensor,
    frame_weights: Tensor,
    numerator_key: Tensor,
    denominator_keys: Tensor,
    denominator_of: Tensor,
    options: list[float],
    with_gradient: bool,
    with_numerator: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The weighted sums over ok sequences, before division by their frames.

    Args:
        weights: float64 [N], w_n. frame_weights: [N, T] factors of the derivative, or empty.
        denominator_keys: one key for each denominator; denominator_of [N]: which of them a sequence has.
        options: leaky-HMM coefficient, denominator scale, l2 and out-of-range factors.

    Returns:
        total = objf_ok + l2_term + out_of_range_term (float64, the only result with a gradient); log Z [N] of numerator
        and denominator; ok [N]; l2_term; out_of_range_term; d total / d nnet_output [N, T, P]; w_n times the numerator's
        occupancy [N, T, P]. The last two are empty unless asked for.
    """
    leaky, scale, l2, out_of_range = options
    numerators = find_batch(int(numerator_key.item()))
    _check_weights(weights.numpy(), numerators)
    ready = dispatch.prepare(numerators, nnet_output, lengths, "auto")
    gradient = new_buffer(nnet_output, with_gradient or with_numerator)
    num, num_ok = _run(ready, numerators, 0.0, weights.numpy(), gradient)
    numerator = gradient.clone() if with_numerator else new_buffer(nnet_output, False)
    if not with_gradient:
        gradient = new_buffer(nnet_output, False)
    den = np.empty_like(num)
    signed = np.where(num_ok, -scale * weights.numpy(), 0.0)
    for index, key in enumerate(denominator_keys.tolist()):
        lanes = np.flatnonzero(denominator_of.numpy() == index)
        if lanes.size:
            den[lanes] = _denominator(ready, find_batch(key), lanes, leaky, signed, gradient)
    ok = num_ok & np.isfinite(den)
    for buffer in (numerator, gradient):
        if len(buffer):
            buffer[torch.from_numpy(~ok)] = 0
    used = np.where(ok, weights.numpy(), 0.0)
    objf = (used[ok] * (num[ok] - scale * den[ok])).sum()
    penalties = np.zeros(2)
    if l2 or out_of_range:
        factors = (l2, out_of_range, OUT_OF_RANGE)
        penalties[:] = ready.backend.add_penalties(
            ready.scores, ready.lengths, used, factors, gradient.numpy()
        )
    if len(gradient) and frame_weights.numel():
        gradient *= frame_weights.to(gradient.dtype).unsqueeze(2)
    scalars = torch.from_numpy(np.append(objf + penalties.sum(), penalties)).unbind()
    total, l2_term, range_term = (scalar.clone() for scalar in scalars)
    logs = torch.from_numpy(num), torch.from_numpy(den)
    return total, *logs, torch.from_numpy(ok), l2_term, range_term, gradient, numerator


def _check_weights(weights: npt.NDArray[np.float64], batch: TableBatch) -> None:
    bad = np.flatnonzero(~((weights >= 0.0) & np.isfinite(weights)))
    if bad.size:
        n = int(bad[0])
        raise ConfigError(f"weights[{n}] = {weights[n]} ({batch.names[n]}); expected a finite number >= 0")


def _run(
    ready: dispatch.Prepared, batch: TableBatch, leaky: float, weights: npt.NDArray[np.float64], out: Tensor
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """log Z and ok; weights times occupancy is added to `out` unless that is empty: then no beta runs."""
    if not len(out):
        log_prob, ok = ready.backend.log_probs(batch, ready.scores, ready.lengths, leaky)
    else:
        log_prob, ok = ready.backend.add_occupancy(
            batch, ready.scores, ready.lengths, leaky, weights, out.numpy()
        )
    return log_prob, ok


def _denominator(
    ready: dispatch.Prepared,
    batch: TableBatch,
    lanes: npt.NDArray[np.int64],
    leaky: float,
    weights: npt.NDArray[np.float64],
    out: Tensor,
) -> npt.NDArray[np.float64]:
    """log Z of the sequences `lanes` in this denominator; their occupancies times weights are added to out."""
    shared = TableBatch.share(batch.tables[0], len(lanes))
    if len(lanes) == len(ready.scores):
        return _run(ready, shared, leaky, weights, out)[0]
    part = ready._replace(scores=ready.scores[lanes], lengths=ready.lengths[lanes])
    own = torch.zeros_like(out[lanes] if len(out) else out)
    log_prob, _ = _run(part, shared, leaky, weights[lanes], own)
    if len(out):
        out[lanes] += own
    return log_prob


@lfmmi.register_fake
def _(nnet_output, lengths, weights, frame_weights, num, den, den_of, options, with_gradient, with_numerator):  # type: ignore[no-untyped-def]
    scalars = [nnet_output.new_empty((), dtype=torch.float64) for _ in range(3)]
    values = [nnet_output.new_empty(nnet_output.shape[0], dtype=torch.float64) for _ in range(2)]
    ok = nnet_output.new_empty(nnet_output.shape[0], dtype=torch.bool)
    buffers = [new_buffer(nnet_output, wanted) for wanted in (with_gradient, with_numerator)]
    return scalars[0], *values, ok, *scalars[1:], *buffers


@torch.library.custom_op("fsachain::lfmmi_backward", mutates_args=())
def lfmmi_backward(gradient: Tensor, factor: Tensor, like: Tensor) -> Tensor:
    """gradient times a scalar, in the dtype of `like`."""
    return (gradient * factor.to(gradient.dtype)).to(like.dtype)


@lfmmi_backward.register_fake
def _(gradient, factor, like):  # type: ignore[no-untyped-def]
    return torch.empty_like(gradient, dtype=like.dtype)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[6], inputs[0].new_empty(0))
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, factor, *_):  # type: ignore[no-untyped-def]
    gradient, like = ctx.saved_tensors
    return lfmmi_backward(gradient, factor, like), *[None] * 9


lfmmi.register_autograd(_backward, setup_context=_save)
