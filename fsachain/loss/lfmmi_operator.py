"""LF-MMI as one torch operator: numerator and denominator write their occupancies into one gradient buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.loss import operator_parts as parts
from fsachain.loss.operators import budget_of, new_buffer

Floats = npt.NDArray[np.float64]


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
        options: leaky-HMM coefficient, denominator scale, l2 and out-of-range factors, boost, memory budget (see
            `operators.budget_number`); the other arguments are those of `operator_parts`.

    Returns:
        total = objf_ok + l2_term + out_of_range_term (float64, the only result with a gradient); log Z [N] of numerator
        and denominator; ok [N]; l2_term; out_of_range_term; d total / d nnet_output [N, T, P]; w_n times the numerator's
        occupancy [N, T, P]. The last two are empty unless asked for.
    """
    leaky, scale, l2, out_of_range, boost, memory_budget = options
    numerators = find_batch(int(numerator_key.item()))
    parts.check_weights(weights.numpy(), numerators)
    ready = dispatch.prepare(numerators, nnet_output, lengths, "auto", budget_of(memory_budget))
    gradient = new_buffer(nnet_output, with_gradient or with_numerator)
    if boost:
        boosted, num, num_ok = _boost(ready, numerators, boost, weights, gradient)
    else:
        boosted = ready
        num, num_ok = parts.log_probs(ready, numerators, 0.0, weights.numpy(), gradient)
    numerator = gradient.clone() if with_numerator else new_buffer(nnet_output, False)
    if not with_gradient:
        gradient = new_buffer(nnet_output, False)
    signed = np.where(num_ok, -scale * weights.numpy(), 0.0)

    def denominator(
        batch: TableBatch, part: dispatch.Prepared, lanes: parts.Lanes, out: Tensor
    ) -> tuple[Floats]:
        return (parts.log_probs(part, batch, leaky, signed[lanes], out)[0],)

    den = np.empty((1, len(num)))
    parts.by_denominator(denominator_keys, denominator_of, boosted, denominator, gradient, den)
    ok = num_ok & np.isfinite(den[0])
    objf = (weights.numpy()[ok] * (num[ok] - scale * den[0, ok])).sum()
    total, l2_term, range_term = parts.finish(
        ready, objf, ok, weights.numpy(), (l2, out_of_range), frame_weights, (gradient, numerator)
    )
    logs = torch.from_numpy(num), torch.from_numpy(den[0])
    return total, *logs, torch.from_numpy(ok), l2_term, range_term, gradient, numerator


def _boost(
    ready: dispatch.Prepared, numerators: TableBatch, boost: float, weights: Tensor, gradient: Tensor
) -> tuple[dispatch.Prepared, Floats, npt.NDArray[np.bool_]]:
    """The arguments with scores y - boost a, a the numerators' occupancy; their log Z [N] and ok [N].

    Weights times a is written to `gradient` unless that is empty. One more buffer of the scores' size is made, in which
    occupancies become scores.
    """
    scores = torch.from_numpy(ready.scores)
    buffer = torch.zeros_like(scores)
    num, num_ok = parts.log_probs(ready, numerators, 0.0, np.ones(len(weights)), buffer)
    if len(gradient):
        torch.mul(buffer, weights.to(buffer.dtype).view(-1, 1, 1), out=gradient)
    buffer.mul_(-boost).add_(scores)
    return ready._replace(scores=buffer.numpy()), num, num_ok


@lfmmi.register_fake
def _(nnet_output, lengths, weights, frame_weights, num, den, den_of, options, with_gradient, with_numerator):  # type: ignore[no-untyped-def]
    return parts.fake_results(nnet_output, with_gradient, with_numerator)


parts.register_gradient(lfmmi)
