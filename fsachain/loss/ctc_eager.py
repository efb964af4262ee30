"""The CTC loss of scores on the host where nothing traces it: what the custom operator does, without what operators cost.

A custom operator takes a fifth of a millisecond in each direction, more than the loss of a short utterance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsachain.backends.ctc import CtcProblem
from fsachain.loss.ctc_operator import derivatives_of, losses_of, make_ctc_problem
from fsachain.loss.operators import FirstOnly
from fsachain.loss.registration import refuse_forward_mode


def takes(scores: Tensor) -> bool:
    """Whether only autograd looks at what is done with these scores: no compiler, no tracer, no transform, no subclass.

    Torch has no public name for two of these; where it lacks the private ones, the operator runs.
    """
    modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
    transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
    is_plain = type(scores) in (Tensor, torch.nn.Parameter)
    return is_plain and not torch.compiler.is_compiling() and not modes() and not transforms()


def losses(scores: Tensor, *rest: Any) -> Tensor:
    """float64 [N]; `rest` are the other arguments of `ctc_operator.ctc`."""
    targets, frame_counts, label_counts, log_priors, blank, inputs, topology, delay_penalty = rest[:8]
    unnormalized, names, backend, memory_budget = rest[8:]
    counts = frame_counts, label_counts
    refuse_forward_mode()
    problem = make_ctc_problem(scores, targets, counts, log_priors, blank, topology, delay_penalty, names)
    options = inputs, unnormalized, names, backend, memory_budget
    found: Tensor = _Ctc.apply(scores, problem, *options)
    return found


class _Ctc(torch.autograd.Function):
    """Losses [N]. The problem is kept, with the tables of its targets, until the gradient has been made of it."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        problem: CtcProblem,
        inputs: str,
        unnormalized: str,
        names: str,
        backend: str,
        memory_budget: float,
    ) -> Tensor:
        found, statistics, kinds = losses_of(problem, scores, inputs, unnormalized, names, backend)
        ctx.save_for_backward(scores, found, statistics, kinds)
        ctx.problem, ctx.options = problem, (backend, memory_budget)
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, factors: Tensor | None) -> tuple[Tensor | None, ...]:
        if factors is None:
            return (None,) * 7
        scores, found, statistics, kinds = ctx.saved_tensors
        with torch.no_grad():
            gradient = derivatives_of(ctx.problem, factors, found, statistics, kinds, scores, *ctx.options)
        if torch.is_grad_enabled():
            gradient = FirstOnly.apply(gradient, scores)
        return gradient, *(None,) * 6
