"""The CTC loss as a torch custom operator.

The forward operator makes the losses alone; the backward operator runs the recursion again, with the incoming gradient as
factors. The recursion is a small part of the work, so nothing of the size of the scores is kept in between, and the
gradient is written once, in its final scale.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends.ctc import Checks, CtcProblem, Rows, make_problem
from fsachain.backends.dispatch import ctc_backend
from fsachain.errors import DataError
from fsachain.loss.operators import budget_of, only_first_has_gradient, refuse_second_derivative
from fsachain.loss.registration import operator

NUM_ARGUMENTS = 13

Floats = npt.NDArray[np.float64]

# To warn, one of so many frames is looked at, another one in the next call, so that three calls see them all: to add up the
# probabilities of all frames takes 5 to 7 % of the loss, see docs/losses.md.
_TURNS = 3

_calls = itertools.count()
_warned_under: Any = None  # the list of filters under which the warning was given


class NormalizationWarning(UserWarning):
    """Rows of log-probabilities do not sum to one."""


def losses_of(
    problem: CtcProblem, scores: Tensor, inputs: str, unnormalized: str, names: str, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """What `ctc` returns."""
    module = ctc_backend(backend, scores)
    rows = _rows(scores)
    size, num_frames, _ = rows.shape
    is_logits = inputs == "logits"
    statistics = np.zeros((2 if is_logits else 0, size, num_frames))
    checks = _checks(unnormalized) if not is_logits else None
    sums = np.ones((size, num_frames) if checks else (0, 0))
    log_z, kinds = module.log_probs(problem, rows, statistics, sums, checks or Checks())
    losses = 0.0 - log_z  # -log_z would be -0 for a probability of one
    if is_logits:
        with np.errstate(invalid="ignore"):  # a frame of -inf alone has no softmax: NaN
            losses += _log_sums(problem, statistics)
    if checks:
        if checks.every > 1 and _is_far(sums, scores.dtype).any():
            module.log_probs(problem, rows, statistics, sums, Checks())  # of all rows the worst is named
        check_sums(sums, scores, unnormalized, names)
    if problem.is_probability:
        _take_off_rounding(losses, problem, scores.dtype)
    return torch.from_numpy(losses), torch.from_numpy(statistics), torch.from_numpy(kinds)


def derivatives_of(
    problem: CtcProblem,
    factors: Tensor,
    losses: Tensor,
    statistics: Tensor,
    kinds: Tensor,
    scores: Tensor,
    backend: str,
    memory_budget: float,
) -> Tensor:
    """What `ctc_gradient` returns."""
    wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    gradient = _like(wide)
    used = np.where(np.isfinite(losses.numpy()), factors.double().numpy(), 0.0)
    ctc_backend(backend, scores).gradient(
        problem,
        _rows(scores),
        statistics.numpy(),
        kinds.numpy(),
        used,
        _rows(gradient).flat,
        budget_of(memory_budget),
    )
    for n, frames in enumerate(problem.frame_counts.tolist()):
        if frames < len(gradient) or used[n] == 0.0:
            gradient[frames if used[n] != 0.0 else 0 :, n] = 0.0
    return gradient.to(scores.dtype)


@operator("fsachain::ctc")
def ctc(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    log_priors: Tensor,
    blank: int,
    inputs: str,
    topology: str,
    delay_penalty: float,
    unnormalized: str,
    names: str,
    backend: str,
    memory_budget: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [N] in float64, inf where there is no path and NaN for an illegal score; and what `ctc_gradient` needs.

    Args:
        scores: [T, N, C]. Other arguments: see `fsachain.loss.ctc.ctc_loss`.
        log_priors: [C], or empty.
        names: of the utterances, one in a line; empty for numbers.
        memory_budget: see `fsachain.loss.operators.budget_number`.
    """
    counts = input_lengths, target_lengths
    problem = make_ctc_problem(scores, targets, counts, log_priors, blank, topology, delay_penalty, names)
    return losses_of(problem, scores, inputs, unnormalized, names, backend)


@ctc.register_fake
def _(scores, *_):  # type: ignore[no-untyped-def]
    size = scores.shape[1]
    inputs = _[5]
    statistics = scores.new_empty(
        (2 if inputs == "logits" else 0, size, scores.shape[0]), dtype=torch.float64
    )
    return (
        scores.new_empty(size, dtype=torch.float64),
        statistics,
        scores.new_empty(size, dtype=torch.uint8),
    )


@operator("fsachain::ctc_gradient")
def ctc_gradient(
    factors: Tensor,
    losses: Tensor,
    statistics: Tensor,
    kinds: Tensor,
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
    backend: str,
    memory_budget: float,
) -> Tensor:
    """factors [N] times the derivatives of the losses by the scores, shaped and typed as these.

    0 beyond the sequences' ends and where a loss is not finite.
    """
    counts = input_lengths, target_lengths
    problem = make_ctc_problem(scores, targets, counts, log_priors, blank, topology, delay_penalty, names)
    return derivatives_of(problem, factors, losses, statistics, kinds, scores, backend, memory_budget)


@ctc_gradient.register_fake
def _(factors, losses, statistics, kinds, scores, *_):  # type: ignore[no-untyped-def]
    return _like(scores)


ctc_gradient.register_autograd(refuse_second_derivative)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.options = [*inputs[5:9], *inputs[10:]]
    only_first_has_gradient(ctx, output)


def _backward(ctx, factors, *_):  # type: ignore[no-untyped-def]
    if factors is None:
        return (None,) * NUM_ARGUMENTS
    return ctc_gradient(factors, *ctx.saved_tensors, *ctx.options), *[None] * (NUM_ARGUMENTS - 1)


ctc.register_autograd(_backward, setup_context=_save)


def make_ctc_problem(
    scores: Tensor,
    targets: Tensor,
    counts: tuple[Tensor, Tensor],
    log_priors: Tensor,
    blank: int,
    topology: Any,
    delay_penalty: float,
    names: str,
) -> CtcProblem:
    """The checked arguments of `ctc`, brought to the host; counts: input_lengths and target_lengths."""
    num_frames, size, num_classes = scores.shape
    frame_counts, label_counts = (values.cpu().numpy() for values in counts)
    return make_problem(
        targets.cpu().numpy(),
        frame_counts,
        label_counts,
        (size, num_frames, num_classes),
        blank,
        topology,
        log_priors.detach().double().cpu().numpy(),
        delay_penalty,
        _names(names, size),
    )


def _names(names: str, size: int) -> list[str]:
    return names.split("\n") if names else [f"sequence {n}" for n in range(size)]


def _is_batch_first(scores: Tensor) -> bool:
    """Scores [T, N, C] of which those of one sequence lie together."""
    return not scores.is_contiguous() and scores.transpose(0, 1).is_contiguous()


def _like(scores: Tensor) -> Tensor:
    """An empty tensor of this shape and dtype, contiguous or batch first as the scores are."""
    if _is_batch_first(scores):
        return torch.empty_like(scores.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _rows(scores: Tensor) -> Rows:
    """The scores [T, N, C] as float32 or float64 rows; a copy only where their type or order asks for one."""
    num_frames, size, num_classes = scores.shape
    wide = scores.detach()
    if wide.dtype not in (torch.float32, torch.float64):
        wide = wide.float()
    if _is_batch_first(wide):
        strides = num_frames * num_classes, num_classes
        flat = wide.transpose(0, 1).reshape(-1)
    else:
        strides = num_classes, size * num_classes
        flat = wide.contiguous().reshape(-1)
    return Rows(flat.numpy(), strides, (size, num_frames, num_classes))


def _log_sums(problem: CtcProblem, statistics: Floats) -> Floats:
    """[N]: the log-sums of all rows of each sequence, added up."""
    real = np.arange(statistics.shape[2]) < problem.frame_counts[:, None]
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(real, statistics[1], 1.0))
    if not real.shape[1]:
        return np.zeros(len(real))
    # One frame after another: another order of summation for another T would give other bits.
    return np.asarray(np.cumsum(np.where(real, statistics[0], 0.0) + logs, axis=1)[:, -1])


def _is_far(sums: Floats, dtype: torch.dtype) -> npt.NDArray[np.bool_]:
    """Whether each sum misses one, by more than rounding of the scores."""
    # Log-probabilities down to -16 that are rounded by half a unit may miss one by 8 units.
    near: npt.NDArray[np.bool_] = np.abs(sums - 1.0) <= max(1e-3, 16.0 * torch.finfo(dtype).eps)
    return ~near


def _checks(unnormalized: str) -> Checks | None:
    """Which rows are looked at, None for none."""
    if unnormalized == "error":
        return Checks()
    if unnormalized == "ignore" or _warned_under is warnings.filters:
        return None
    return Checks(_TURNS, next(_calls) % _TURNS)


def check_sums(sums: Floats, scores: Tensor, mode: str, names: str) -> None:
    """Say which row of log-probabilities is farthest from a sum of one, if any is far; padding counts as one."""
    if not _is_far(sums, scores.dtype).any():
        return
    global _warned_under
    if mode == "warn" and _warned_under is warnings.filters:
        return
    n, t = np.unravel_index(int(np.abs(sums - 1.0).argmax()), sums.shape)  # the first NaN, if there is one
    total = float(scores[int(t), int(n)].double().exp().sum())
    name = _names(names, len(sums))[int(n)]
    message = (
        f"{name}: the probabilities of frame {t} sum to {total:.6g}; expected 1: log_probs must be the output of "
        "log_softmax over all classes; for scores that are not normalized pass inputs='logits'; if this is meant, pass "
        "unnormalized='ignore'"
    )
    if mode == "error":
        raise DataError(message)
    _warned_under = warnings.filters  # once, and again where someone set filters anew
    warnings.warn(message, NormalizationWarning, stacklevel=2)


def _take_off_rounding(losses: Floats, problem: CtcProblem, dtype: torch.dtype) -> None:
    """A probability of one may come out above one by what rounding does to each frame; its loss is then 0."""
    most = 8.0 * torch.finfo(dtype).eps * (problem.frame_counts + 1)
    losses[(losses < 0.0) & (losses >= -most)] = 0.0
