"""LF-MMI as one torch operator: numerator and denominator write their occupancies into one gradient buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.loss import operator_parts as parts
from fsachain.loss.operators import budget_of, new_buffer
from fsachain.loss.registration import operator


@operator("fsachain::lfmmi")
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The weighted sums over ok sequences, before division by their frames.

    Args:
        options: leaky-HMM coefficient, denominator scale, l2 and out-of-range factors, boost, memory budget (see
            `operators.budget_number`); the other arguments are those of `operator_parts`.

    Returns:
        total = objf_ok + l2_term + out_of_range_term (float64, the only result with a gradient); log Z [N] of numerator
        and denominator; ok [N]; l2_term; out_of_range_term; d total / d nnet_output [N, T, P]; w_n times the numerator's
        occupancy [N, T, P], these two empty unless asked for; T_n and w_n as float64 [N].
    """
    leaky, scale, l2, out_of_range, boost, memory_budget = options
    numerators = find_batch(int(numerator_key.item()))
    call = dispatch.recursions(numerators, nnet_output, lengths, budget_of(memory_budget))
    factors = parts.placed_weights(weights, numerators, call, nnet_output.device)
    gradient = new_buffer(nnet_output, with_gradient or with_numerator)
    boosted = call
    if boost:
        boosted, num, num_ok = _boost(call, numerators, nnet_output, boost, factors, gradient)
    else:
        num, num_ok = parts.log_probs(call, numerators, 0.0, factors, gradient)
    numerator = gradient.clone() if with_numerator else new_buffer(nnet_output, False)
    if not with_gradient:
        gradient = new_buffer(nnet_output, False)
    signed = torch.where(num_ok, -scale * factors, 0.0)

    def denominator(
        batch: TableBatch, part: dispatch.Recursions, at: Tensor | None, out: Tensor
    ) -> tuple[Tensor]:
        return (parts.log_probs(part, batch, leaky, signed if at is None else signed[at], out)[0],)

    den = torch.empty_like(num).view(1, -1)
    parts.by_denominator(denominator_keys, denominator_of, boosted, denominator, gradient, den)
    ok = num_ok & torch.isfinite(den[0])
    objf = torch.where(ok, factors * (num - scale * den[0]), 0.0).sum()
    penalties = l2, out_of_range
    terms = parts.finish(call, objf, ok, factors, penalties, frame_weights, (gradient, numerator))
    values = num, den[0].clone(), ok, terms.l2_term, terms.out_of_range_term
    return terms.total, *values, gradient, numerator, terms.frames, terms.weights


def _boost(
    call: dispatch.Recursions,
    numerators: TableBatch,
    nnet_output: Tensor,
    boost: float,
    weights: Tensor,
    gradient: Tensor,
) -> tuple[dispatch.Recursions, Tensor, Tensor]:
    """The recursions for scores y - boost a, a the numerators' occupancy; the numerators' log Z [N] and ok [N].

    Weights times a is written to `gradient` unless that is empty. One more buffer of the scores' size is made, in which
    occupancies become scores.
    """
    buffer = new_buffer(nnet_output, True)
    num, num_ok = parts.log_probs(call, numerators, 0.0, None, buffer)
    if len(gradient):
        torch.mul(buffer, weights.to(buffer.dtype).view(-1, 1, 1), out=gradient)
    buffer.mul_(-boost).add_(nnet_output.detach())
    return call.with_scores(buffer), num, num_ok


@lfmmi.register_fake
def _(nnet_output, lengths, weights, frame_weights, num, den, den_of, options, with_gradient, with_numerator):  # type: ignore[no-untyped-def]
    return parts.fake_results(nnet_output, with_gradient, with_numerator)


parts.register_gradient(lfmmi)
