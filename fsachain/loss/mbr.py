"""State-level minimum Bayes risk: the frames that a path of the denominator is expected to have right."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.arrays import check_leak
from fsachain.backends.dispatch import BackendName
from fsachain.batch import Graphs, TableBatch, find_batch
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss.autograd import (
    Operator,
    as_tensor,
    by_host,
    new_buffer,
    packed,
    scale_rows,
    wants_gradient,
)
from fsachain.loss.base import (
    MBRRecord,
    SequenceCall,
    SequenceLoss,
    Terms,
    by_denominator,
    fake_terms,
    finish,
    placed_numbers,
    terms_gradient,
)


class ExpectedAccuracy(NamedTuple):
    """E[A] [N] in float64, -inf or NaN where a sequence is not ok; its derivatives by scores and accuracy [N, T, P].

    The derivatives are empty unless asked for; if the second is, the first is made too.
    """

    value: Tensor
    gradient: Tensor
    occupancy: Tensor


class AccuracyCall(NamedTuple):
    scores: Tensor
    accuracy: Tensor
    lengths: Tensor
    batch_key: Tensor
    leaky: float
    backend: str
    memory_budget: float | None
    with_gradient: bool
    with_occupancy: bool

    def buffers(self) -> tuple[Tensor, Tensor]:
        """For the derivatives by the scores and the accuracy."""
        wanted = self.with_gradient or self.with_occupancy
        return new_buffer(self.scores, wanted), new_buffer(self.accuracy, self.with_occupancy)


def _expected_accuracy(given: AccuracyCall) -> ExpectedAccuracy:
    if not given.scores.is_cpu:
        there: ExpectedAccuracy = by_host(_expected_accuracy, given, given.scores.device)
        return there
    leaky, buffers = given.leaky, given.buffers()
    batch = find_batch(int(given.batch_key.item()))
    call = dispatch.bind(batch, given.scores, given.lengths, given.backend, given.memory_budget, on_host=True)
    check_leak(batch, leaky)
    _, values = _run(call, batch, _wide(given.accuracy), leaky, np.ones(batch.size), *buffers)
    return ExpectedAccuracy(values, *buffers)


def _wide(accuracy: Tensor) -> npt.NDArray[np.floating]:
    detached = accuracy.detach()
    return (detached if detached.element_size() == 8 else detached.float()).contiguous().numpy()


def _run(
    call: dispatch.Call,
    batch: TableBatch,
    accuracy: npt.NDArray[np.floating],
    leaky: float,
    weights: npt.NDArray[np.float64],
    gradient: Tensor,
    occupancy: Tensor,
) -> tuple[Tensor, Tensor]:
    """log Z [N] and E[A] [N]; weights times derivatives into the buffers, none if the first is empty."""
    mbr, inputs = call.backend.mbr, (batch, call.scores, accuracy, call.lengths, leaky)
    if not len(gradient):
        log_z, values, _ = mbr.expected_accuracy(*inputs)
    else:
        buffers = gradient.numpy(), occupancy.numpy()
        log_z, values, _ = mbr.set_accuracy_gradient(*inputs, weights, *buffers, call.memory_budget)
    return torch.from_numpy(log_z), torch.from_numpy(values)


def _fake_expected_accuracy(given: AccuracyCall) -> ExpectedAccuracy:
    values = given.scores.new_empty(given.scores.shape[0], dtype=torch.float64)
    return ExpectedAccuracy(values, *given.buffers())


def _expected_accuracy_gradient(
    factor: Tensor, gradient: Tensor, occupancy: Tensor, scores: Tensor, accuracy: Tensor, is_last: bool
) -> dict[str, Tensor | None]:
    return {
        "scores": scale_rows(gradient, factor, scores, is_last),
        "accuracy": scale_rows(occupancy, factor, accuracy, is_last) if len(occupancy) else None,
    }


expected_accuracy_operator = Operator(
    *(_expected_accuracy, _fake_expected_accuracy, _expected_accuracy_gradient),
    by={"scores": "with_gradient", "accuracy": "with_occupancy"},
)


def _mbr(given: SequenceCall) -> Terms:
    """The accuracy is the numerators' occupancy."""
    nnet_output = given.nnet_output
    if not nnet_output.is_cpu:
        there: Terms = by_host(_mbr, given, nnet_output.device)
        return there
    numerators = find_batch(int(given.numerator_key.item()))
    call = dispatch.bind(
        numerators, nnet_output, given.lengths, "cpu", given.memory_budget, argument="nnet_output"
    )
    numbers = placed_numbers(given, numerators, call)
    factors = numbers[0]
    accuracy = new_buffer(nnet_output, True)
    num, num_ok = call.add_occupancy(numerators, 0.0, None, accuracy)
    gradient = new_buffer(nnet_output, given.with_gradient)
    used = torch.where(num_ok, factors, 0.0)

    def denominator(batch: TableBatch, part: dispatch.Call, at: Any, out: Tensor) -> tuple[Tensor, ...]:
        nowhere = new_buffer(accuracy, False)
        own = accuracy[at].numpy(), given.leaky_hmm_coefficient, used[at].numpy()
        return _run(part, batch, *own, out, nowhere)

    den, expected = by_denominator(given, call, denominator, gradient)
    values = torch.where(num_ok, expected, num)
    numerator = new_buffer(nnet_output, False)
    if given.with_numerator:
        numerator = accuracy.mul_(factors.to(accuracy.dtype).view(-1, 1, 1))
    found = {"num_log_prob": num, "den_log_prob": den, "values": values, "numbers": numbers}
    return finish(given, call, found, (gradient, numerator))


mbr = Operator(_mbr, fake_terms, terms_gradient, by={"nnet_output": "with_gradient"})


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
        denominators: the graphs by name; a single one is called "denominator".
        num_pdfs: P.
        leaky_hmm_coefficient, l2_regularize, out_of_range_regularize, xent_regularize, memory_budget: the options; `adjust`
        changes all but the last.
    """

    _operator = mbr

    def _record(self, terms: Terms, **fields: Any) -> MBRRecord:
        return MBRRecord(expected_accuracy=terms.values, **fields)


def expected_accuracy(
    batch: Graphs,
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
        batch: the acceptors of N sequences, as for `forward_backward`.
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
    batch = packed(batch, "batch")
    whole = torch.full((scores.shape[0],), scores.shape[1], device="cpu")
    frames = whole if lengths is None else as_tensor(lengths, name="lengths")
    key, options = torch.from_numpy(batch.key), (leaky_hmm_coefficient, backend, memory_budget)
    wanted = wants_gradient(scores), wants_gradient(accuracy)
    found: Tensor = expected_accuracy_operator(
        AccuracyCall(scores, accuracy, frames, key, *options, *wanted)
    ).value
    return found
