"""The CTC loss of scores on a CUDA device, as a torch custom operator: nothing waits for the device.

Loss and gradient come from one forward and one backward recursion, in forward, if a gradient is wanted; backward scales it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsachain.backends import cuda_call, cuda_ctc
from fsachain.backends.ctc import CtcProblem
from fsachain.backends.cuda_device import Device, DeviceArray
from fsachain.loss.ctc_operator import check_sums, make_ctc_problem
from fsachain.loss.operator_parts import scale_gradient
from fsachain.loss.operators import budget_of, only_first_has_gradient
from fsachain.loss.registration import operator

NUM_ARGUMENTS = 12


def losses(scores: Tensor, *rest: Any) -> Tensor:
    """float64 [N]; `rest` are the other arguments of `ctc_operator.ctc` without the backend.

    Raises:
        DataError: log-probabilities that do not sum to one, if unnormalized is "error".
    """
    *arguments, unnormalized, names, memory_budget = rest
    inputs, input_lengths = arguments[5], arguments[1]
    if unnormalized == "error" and inputs == "log_probs":
        _check_sums(scores, input_lengths, names)
    with_gradient = torch.is_grad_enabled() and scores.requires_grad
    return ctc_on_device(scores, *arguments, names, with_gradient, memory_budget)[0]


def _check_sums(scores: Tensor, lengths: Tensor, names: str) -> None:
    """Wait for the device and raise where a real frame's probabilities do not sum to one."""
    frames = torch.arange(scores.shape[0], device=scores.device)[:, None] < lengths.to(scores.device)
    sums = torch.where(frames, scores.detach().double().exp().sum(dim=2), 1.0)
    check_sums(sums.T.cpu().numpy(), scores.detach(), "error", names)


@operator("fsachain::ctc_on_device")
def ctc_on_device(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    log_priors: Tensor,
    blank: int,
    inputs: str,
    topology: str,
    delay_penalty: float,
    names: str,
    with_gradient: bool,
    memory_budget: float,
) -> tuple[Tensor, Tensor]:
    """Losses [N] in float64, inf where there is no path and NaN where something is illegal, and their derivatives.

    Lengths and priors that are on the device are brought to the host, which then waits for them. Labels are checked if the
    host has them; else they stay where they are, and an illegal one makes its sequence's loss NaN.

    Args:
        scores: [T, N, C]. Other arguments: see `fsachain.loss.ctc_operator.ctc`.
        with_gradient: whether derivatives [T, N, C] are made; else they are empty.
    """
    counts, labels = (input_lengths, target_lengths), _known_labels(targets, scores, blank)
    problem = make_ctc_problem(scores, labels, counts, log_priors, blank, topology, delay_penalty, names)
    device = cuda_call.find_device(scores)
    task = cuda_ctc.Task(
        blank,
        inputs == "logits",
        problem.topology,
        problem.log_prior if problem.log_prior.size else None,
        delay_penalty,
    )
    gradient = _gradient(scores, with_gradient)
    loss: Any = cuda_ctc.ctc(
        device,
        cuda_call.view(scores.detach().transpose(0, 1)),
        cuda_ctc.Targets(_labels(device, targets, scores, problem), problem.label_counts),
        problem.frame_counts,
        task,
        cuda_call.view(gradient.transpose(0, 1)) if with_gradient else None,
        budget_of(memory_budget),
    )
    return loss.array("float64", (scores.shape[1],)), gradient


@ctc_on_device.register_fake
def _(scores, *rest):  # type: ignore[no-untyped-def]
    return scores.new_empty(scores.shape[1], dtype=torch.float64), _gradient(scores, rest[-2])


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*output, inputs[0])
    only_first_has_gradient(ctx, output)


def _backward(ctx, factors, _):  # type: ignore[no-untyped-def]
    if factors is None:
        return (None,) * NUM_ARGUMENTS
    losses, gradient, scores = ctx.saved_tensors
    # A loss that is not finite has derivatives 0, whatever comes in.
    used = torch.where(torch.isfinite(losses), factors, 0.0)
    return scale_gradient(gradient, used.view(1, -1, 1), scores), *[None] * (NUM_ARGUMENTS - 1)


ctc_on_device.register_autograd(_backward, setup_context=_save)


def _gradient(scores: Tensor, wanted: bool) -> Tensor:
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if not wanted:
        return scores.new_empty((0, 0, 0), dtype=wide)
    return torch.empty_like(scores, dtype=wide)


def _is_beside(targets: Tensor, scores: Tensor) -> bool:
    """Labels are where the scores are; the host does not know them."""
    return targets.device == scores.device and targets.device.type != "cpu"


def _known_labels(targets: Tensor, scores: Tensor, blank: int) -> Tensor:
    """The labels on the host; legal ones in the place of those that it does not know."""
    if not _is_beside(targets, scores):
        return targets
    some = torch.tensor((blank + 1) % max(1, scores.shape[2]), dtype=targets.dtype)
    return some.expand(targets.shape)


def _labels(device: Device, targets: Tensor, scores: Tensor, problem: CtcProblem) -> DeviceArray:
    """The labels on the device."""
    if _is_beside(targets, scores):
        known = targets.dtype in (torch.int32, torch.int64)
        return cuda_call.view(targets if known else targets.to(torch.int64))
    (memory,) = device.upload([problem.labels])
    return DeviceArray(memory.pointer, "int64", problem.labels.shape, (problem.labels.shape[1], 1), memory)
