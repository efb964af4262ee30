"""State-level minimum Bayes risk: the frames that a path of the denominator is expected to have right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.arrays import check_leak
from fsachain.backends.dispatch import BackendName
from fsachain.batch import TableBatch, find_batch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss import autograd as parts
from fsachain.loss.autograd import (
    budget_number,
    budget_of,
    by_host,
    new_buffer,
    only_first_has_gradient,
    operator,
    scale_rows,
)
from fsachain.loss.base import Call, MBRRecord, SequenceLoss, common_fields

# State-level minimum Bayes risk as torch operators.


@operator("fsachain::expected_accuracy")
def expected_accuracy_mbr_operator(
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
        results = by_host(expected_accuracy_mbr_operator, scores.device, *inputs, memory_budget)
        return results[0], results[1], results[2]
    batch = find_batch(int(batch_key.item()))
    ready = dispatch.bind(batch, scores, lengths, backend, budget_of(memory_budget), on_host=True)
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
    ready: dispatch.Call,
    batch: TableBatch,
    accuracy: npt.NDArray[np.floating],
    leaky: float,
    weights: npt.NDArray[np.float64],
    gradient: Tensor,
    occupancy: Tensor,
) -> tuple[npt.NDArray[Any], ...]:
    """log Z [N], E[A] [N] and ok [N]; weights times derivatives into the buffers, none if the first is empty."""
    recursions, inputs = ready.backend.mbr, (batch, ready.scores, accuracy, ready.lengths, leaky)
    if not len(gradient):
        result = recursions.expected_accuracy(*inputs)
    else:
        buffers = gradient.numpy(), occupancy.numpy()
        result = recursions.set_accuracy_gradient(*inputs, weights, *buffers, ready.memory_budget)
    log_z, values, ok = result
    return log_z, values, ok


@expected_accuracy_mbr_operator.register_fake
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


expected_accuracy_mbr_operator.register_autograd(_backward, setup_context=_save)


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
    call = dispatch.bind(numerators, nnet_output, lengths, "cpu", budget_of(memory_budget))
    factors = parts.placed_weights(weights, numerators, call, nnet_output.device)
    accuracy = new_buffer(nnet_output, True)
    num, num_ok = parts.log_probs(call, numerators, 0.0, None, accuracy)
    gradient = new_buffer(nnet_output, with_gradient)
    used = torch.where(num_ok, factors, 0.0)

    def denominator(
        batch: TableBatch, part: dispatch.Call, at: Tensor | None, out: Tensor
    ) -> tuple[Tensor, ...]:
        own, its = (accuracy, used) if at is None else (accuracy[at], used[at])
        nowhere = new_buffer(accuracy, False)
        values = _run(part, batch, own.numpy(), leaky, its.numpy(), out, nowhere)[:2]
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


class MBRLoss(SequenceLoss[MBRRecord]):
    """-(objf + l2_term + out_of_range_term + xent_regularize xent_objf) / frames, over the sequences that are possible.

        objf   = sum_n w_n E_n[A]
        E_n[A] = sum over paths of the denominator, each with its probability given y_n, of sum_t a(t, pdf of the path at t)
        a(t,p) = occupancy_num(t, p), taken as a constant

    The other terms, and what becomes of impossible sequences, are those of `LFMMILoss`. E_n[A] is in [0, T_n] and bounded,
    unlike log-probabilities: a sequence that is all wrong has little gradient, so that MBR is for models that LF-MMI has
    trained. Povey and Kingsbury, ICASSP 2007; Vesely et al., Interspeech 2013 (state-level); here without lattices.

    Attributes:
        last_record: `MBRRecord` of the last call, None before the first.
    """

    def __init__(
        self,
        denominator: DenominatorGraph | Mapping[str, DenominatorGraph],
        *,
        leaky_hmm_coefficient: float = 1e-5,
        l2_regularize: float = 0.0,
        out_of_range_regularize: float = 0.01,
        xent_regularize: float = 0.0,
        memory_budget: float | None = None,
    ) -> None:
        """Set up the loss.

        Args:
            denominator: the graph, or several by name (then each call says `denominator_of`).
            leaky_hmm_coefficient: c of equation (3), in [0, 1]; a leak itself has neither right nor wrong frames.
            l2_regularize: l2 >= 0; 5e-5 is usual.
            out_of_range_regularize: o >= 0, holds scores near [-30, 30].
            xent_regularize: factor of the cross-entropy branch; 0.1 is usual.
            memory_budget: bytes, beside scores, accuracy and gradient, for the alphas of all frames, of the numerators and
                then of the denominators; None: a share of the free memory, infinity: no limit. Where they need more, about
                2 sqrt(T) of T are kept and the others computed again: no bit of the loss or its gradient changes, and it
                takes at most 1.6 times as long.

        Raises:
            ConfigError: a negative factor or budget, no denominator, or denominators that differ in their number of pdfs.
        """
        super().__init__(
            denominator,
            leaky_hmm_coefficient=leaky_hmm_coefficient,
            l2_regularize=l2_regularize,
            out_of_range_regularize=out_of_range_regularize,
            xent_regularize=xent_regularize,
            memory_budget=memory_budget,
        )

    def _options(self) -> list[float]:
        penalties = [self.l2_regularize, self.out_of_range_regularize]
        return [self.leaky_hmm_coefficient, *penalties, budget_number(self.memory_budget)]

    def _operate(self, *arguments: Any) -> tuple[Tensor, ...]:
        return mbr(*arguments)

    def _record(self, call: Call, results: tuple[Tensor, ...], xent_objf: Tensor) -> MBRRecord:
        expected = results[10]
        fields = common_fields(call.batch, results, xent_objf, expected)
        return MBRRecord(objf=fields["objf_ok"], expected_accuracy=expected, **fields)


def expected_accuracy(
    batch: TableBatch,
    scores: Tensor,
    accuracy: Tensor,
    lengths: Any = None,
    *,
    leaky_hmm_coefficient: float = 0.0,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> Tensor:
    """E[A] of every sequence, A(path) being the sum over frames t of accuracy(t, pdf of the path at t).

    Equations (M1)-(M6) of `fsachain.backends.reference.mbr`.

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] float16, bfloat16, float32 or float64; the gradient comes in the same dtype.
        accuracy: [N, T, P], float as well: any finite numbers; E[A] is linear in them, and its gradient by them is the
            occupancy, equation (7).
        lengths: [N] integers on the host; None takes all T frames.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`. A leak adds nothing to A.
        backend: "auto" or "cpu"; "reference" for the oracle. Scores of a device are copied to the host, and results back.
        memory_budget: bytes for the alphas of all frames, as for `forward_backward`; no bit of the results depends on it.

    Returns:
        float64 [N]; -inf (no path) and NaN (illegal score, or an accuracy of an active pdf that is not finite) have zero
        gradient. Differentiating twice raises.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: as `forward_backward`.
    """
    for name, value in (("scores", scores), ("accuracy", accuracy)):
        if not isinstance(value, Tensor):
            raise ShapeError(f"{name} is a {type(value).__name__}; expected a torch tensor")
    if accuracy.shape != scores.shape or not accuracy.is_floating_point():
        raise ShapeError(
            f"accuracy has shape {list(accuracy.shape)} and dtype {accuracy.dtype}; "
            f"expected floating-point numbers of shape {list(scores.shape)} as in scores"
        )
    if accuracy.device != scores.device:
        raise BackendUnavailable(f"accuracy is on {accuracy.device}; expected {scores.device} as the scores")
    frames = torch.full((scores.shape[0],), scores.shape[1]) if lengths is None else torch.as_tensor(lengths)
    wanted = (torch.is_grad_enabled() and tensor.requires_grad for tensor in (scores, accuracy))
    key = torch.from_numpy(batch.key)
    return expected_accuracy_mbr_operator(
        scores,
        accuracy,
        frames,
        key,
        leaky_hmm_coefficient,
        backend,
        *wanted,
        budget_number(memory_budget),
    )[0]
