"""LF-MMI as one torch operator: numerator and denominator write their occupancies into one gradient buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
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
    ok = torch.from_numpy(num_ok & np.isfinite(den))
    for buffer in (numerator, gradient):
        if len(buffer):
            buffer[~ok] = 0
    objf = torch.where(ok, weights * torch.from_numpy(num - scale * den), 0.0).sum()
    real = _real_frames(weights, lengths, ok, nnet_output.shape[1])
    l2_term = _add_penalty(nnet_output, real, l2, 0.0, gradient)
    range_term = _add_penalty(nnet_output, real, out_of_range, OUT_OF_RANGE, gradient)
    if len(gradient) and frame_weights.numel():
        gradient *= frame_weights.to(gradient.dtype).unsqueeze(2)
    total = objf + l2_term + range_term
    return total, torch.from_numpy(num), torch.from_numpy(den), ok, l2_term, range_term, gradient, numerator


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


def _real_frames(weights: Tensor, lengths: Tensor, ok: Tensor, num_frames: int) -> Tensor:
    """[N, T, 1]: w_n on the real frames of ok sequences, 0 elsewhere."""
    real = torch.arange(num_frames) < lengths.view(-1, 1)
    return (real * (weights * ok).view(-1, 1)).unsqueeze(2)


def _add_penalty(y: Tensor, frame_weights: Tensor, factor: float, limit: float, gradient: Tensor) -> Tensor:
    """-1/2 factor sum w (|y| - limit)_+^2, added with its derivative; a score of -inf costs nothing."""
    if factor == 0.0:
        return torch.zeros((), dtype=torch.float64)
    usable = torch.isfinite(y) & (frame_weights != 0)
    if limit > 0.0:
        usable &= y.abs() > limit
        if not usable.any():
            return torch.zeros((), dtype=torch.float64)
    wide = y.to(torch.float64 if y.dtype == torch.float64 else torch.float32)
    excess = torch.where(usable, wide - wide.clamp(-limit, limit), 0)
    weighted = excess * frame_weights.to(excess.dtype)
    if len(gradient):
        gradient -= factor * weighted
    return -0.5 * factor * (weighted * excess).sum(dtype=torch.float64)


@lfmmi.register_fake
def _(nnet_output, lengths, weights, frame_weights, num, den, den_of, options, with_gradient, with_numerator):  # type: ignore[no-untyped-def]
    scalars = [nnet_output.new_empty((), dtype=torch.float64) for _ in range(3)]
    values = [nnet_output.new_empty(len(nnet_output), dtype=torch.float64) for _ in range(2)]
    ok = nnet_output.new_empty(len(nnet_output), dtype=torch.bool)
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
