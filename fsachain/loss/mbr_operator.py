"""State-level minimum Bayes risk as torch operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import cpu, cpu_mbr, dispatch, reference, reference_mbr
from fsachain.backends.arguments import check_leak
from fsachain.backends.host_call import HostCall, Prepared
from fsachain.batch import TableBatch, find_batch
from fsachain.loss import operator_parts as parts
from fsachain.loss.operators import budget_of, by_host, new_buffer, only_first_has_gradient, scale_rows
from fsachain.loss.registration import operator

# The recursions (M1)-(M6) of each backend.
_RECURSIONS: dict[Any, Any] = {cpu: cpu_mbr, reference: reference_mbr}


@operator("fsachain::expected_accuracy")
def expected_accuracy(
    scores: Tensor,
    accuracy: Tensor,
    lengths: Tensor,
    batch_key: Tensor,
    leaky: float,
    backend: str,
    with_gradient: bool,
    with_occupancy: bool,
    memory_budget: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """E[A] [N] in float64, -inf or NaN where a sequence is not ok; its derivatives by scores and accuracy [N, T, P].

    The derivatives are empty unless asked for; if the second is, the first is made too. memory_budget: see
    `operators.budget_number`.
    """
    if not scores.is_cpu:
        inputs = scores, accuracy, lengths, batch_key, leaky, backend, with_gradient, with_occupancy
        results = by_host(expected_accuracy, scores.device, *inputs, memory_budget)
        return results[0], results[1], results[2]
    batch = find_batch(int(batch_key.item()))
    ready = dispatch.prepare(batch, scores, lengths, backend, budget_of(memory_budget))
    check_leak(batch, leaky)
    gradient, occupancy = (
        new_buffer(scores, with_gradient or with_occupancy),
        new_buffer(accuracy, with_occupancy),
    )
    _, values, _ = _run(ready, batch, _wide(accuracy), leaky, np.ones(batch.size), gradient, occupancy)
    return torch.from_numpy(values), gradient, occupancy


def _wide(accuracy: Tensor) -> npt.NDArray[np.floating]:
    detached = accuracy.detach()
    return (detached if detached.element_size() == 8 else detached.float()).contiguous().numpy()


def _run(
    ready: Prepared,
    batch: TableBatch,
    accuracy: npt.NDArray[np.floating],
    leaky: float,
    weights: npt.NDArray[np.float64],
    gradient: Tensor,
    occupancy: Tensor,
) -> tuple[npt.NDArray[Any], ...]:
    """log Z [N], E[A] [N] and ok [N]; weights times derivatives into the buffers, none if the first is empty."""
    recursions, inputs = _RECURSIONS[ready.backend], (batch, ready.scores, accuracy, ready.lengths, leaky)
    if not len(gradient):
        result = recursions.expected_accuracy(*inputs)
    else:
        buffers = gradient.numpy(), occupancy.numpy()
        result = recursions.set_accuracy_gradient(*inputs, weights, *buffers, ready.memory_budget)
    log_z, values, ok = result
    return log_z, values, ok


@expected_accuracy.register_fake
def _(scores, accuracy, lengths, batch_key, leaky, backend, with_gradient, with_occupancy, memory_budget):  # type: ignore[no-untyped-def]
    values = scores.new_empty(scores.shape[0], dtype=torch.float64)
    gradient = new_buffer(scores, with_gradient or with_occupancy)
    return values, gradient, new_buffer(accuracy, with_occupancy)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output[1], output[2], inputs[0], inputs[1])
    only_first_has_gradient(ctx, output)


def _backward(ctx, factors, *_):  # type: ignore[no-untyped-def]
    if factors is None:
        return (None,) * 9
    gradient, occupancy, like, like_accuracy = ctx.saved_tensors
    by_accuracy = scale_rows(occupancy, factors, like_accuracy) if len(occupancy) else None
    return scale_rows(gradient, factors, like), by_accuracy, *[None] * 7


expected_accuracy.register_autograd(_backward, setup_context=_save)


@operator("fsachain::mbr")
def mbr(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The weighted sums over ok sequences, before division by their frames; the accuracy is the numerators' occupancy.

    Args:
        options: leaky-HMM coefficient, l2 and out-of-range factors, memory budget (see `operators.budget_number`); the
            other arguments are those of `operator_parts`.

    Returns:
        As `lfmmi`, with sum_n w_n E_n[A] for objf_ok; then E_n[A] [N], -inf or NaN where a sequence is not ok.
    """
    if not nnet_output.is_cpu:
        tensors = (
            nnet_output,
            lengths,
            weights,
            frame_weights,
            numerator_key,
            denominator_keys,
            denominator_of,
        )
        options_too = options, with_gradient, with_numerator
        return by_host(mbr, nnet_output.device, *tensors, *options_too)  # type: ignore[return-value]
    leaky, l2, out_of_range, memory_budget = options
    numerators = find_batch(int(numerator_key.item()))
    call = HostCall(dispatch.prepare(numerators, nnet_output, lengths, "cpu", budget_of(memory_budget)))
    factors = parts.placed_weights(weights, numerators, call, nnet_output.device)
    accuracy = new_buffer(nnet_output, True)
    num, num_ok = parts.log_probs(call, numerators, 0.0, None, accuracy)
    gradient = new_buffer(nnet_output, with_gradient)
    used = torch.where(num_ok, factors, 0.0)

    def denominator(batch: TableBatch, part: HostCall, at: Tensor | None, out: Tensor) -> tuple[Tensor, ...]:
        own, its = (accuracy, used) if at is None else (accuracy[at], used[at])
        nowhere = new_buffer(accuracy, False)
        values = _run(part.ready, batch, own.numpy(), leaky, its.numpy(), out, nowhere)[:2]
        return tuple(torch.from_numpy(value) for value in values)

    results = torch.empty((2, len(num)), dtype=torch.float64)
    parts.by_denominator(denominator_keys, denominator_of, call, denominator, gradient, results)
    expected = torch.where(num_ok, results[1], num)
    ok = torch.isfinite(expected)
    scaled = accuracy.mul_(factors.to(accuracy.dtype).view(-1, 1, 1)) if with_numerator else None
    numerator = new_buffer(nnet_output, False) if scaled is None else scaled
    objf = torch.where(ok, factors * expected, 0.0).sum()
    penalties = l2, out_of_range
    terms = parts.finish(call, objf, ok, factors, penalties, frame_weights, (gradient, numerator))
    values = num, results[0].clone(), ok, terms.l2_term, terms.out_of_range_term
    return terms.total, *values, gradient, numerator, terms.frames, terms.weights, expected


@mbr.register_fake
def _(nnet_output, lengths, weights, frame_weights, num, den, den_of, options, with_gradient, with_numerator):  # type: ignore[no-untyped-def]
    results = parts.fake_results(nnet_output, with_gradient, with_numerator)
    return *results, nnet_output.new_empty(nnet_output.shape[0], dtype=torch.float64)


parts.register_gradient(mbr)
