"""The CTC loss (Graves et al., ICML 2006), called as torch's: from log-probabilities, or from logits in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fsachain.backends.dispatch import BackendName, computes_ctc_on_device
from fsachain.errors import ConfigError, ShapeError
from fsachain.graph.ctc import CtcTopology
from fsachain.loss import ctc_device, ctc_eager, ctc_operator
from fsachain.loss.operators import budget_number

Inputs = Literal["log_probs", "logits"]
Reduction = Literal["none", "mean", "sum"]
Unnormalized = Literal["warn", "error", "ignore"]


def ctc_loss(
    log_probs: Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    *,
    inputs: Inputs = "log_probs",
    topology: CtcTopology = "standard",
    log_priors: Tensor | None = None,
    delay_penalty: float = 0.0,
    unnormalized: Unnormalized = "warn",
    names: Sequence[str] | None = None,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> Tensor:
    """Minus the log-probability of each target, summed over all ways to spell it: -log Z of equation (4).

    The first seven arguments are those of `torch.nn.functional.ctc_loss`, with the same values and, through `log_softmax`,
    the same gradients. See docs/losses.md for what the gradient of log-probabilities is, and for the traps.

    Args:
        log_probs: [T, N, C], or [T, C] for one sequence; float16, bfloat16, float32 or float64; outputs of `log_softmax`,
            or logits (see `inputs`). Frames beyond a sequence's length may hold anything.
        targets: [N, S] padded with anything, or all labels one after another; [S] for one sequence. Integers in [0, C) other
            than the blank.
        input_lengths, target_lengths: [N] integers, tensors or lists; of one sequence a number.
        blank: the blank's class.
        reduction: "none", "sum" over sequences, or "mean": each loss over its target's length (at least 1), then the mean.
        zero_infinity: a loss of a sequence that no path can spell is 0 instead of infinite. Its gradient is 0 either way.
        inputs: "logits": scores that are not normalized; the log-softmax is part of the loss.
        topology: which frame sequences spell a target: see `fsachain.graph.ctc`.
        log_priors: [C], taken off the scores: the logs of label priors times a scale (Huang et al., ICASSP 2024, for
            alignments that are less peaky). The loss is then not that of a probability and may be negative.
        delay_penalty: d in nats for each frame; a label's first frame t gains d ((T_n - 1) / 2 - t), so that late labels
            cost (Yao et al., ICASSP 2023). Part of the reported loss, which may then be negative.
        unnormalized: what happens if probabilities of a frame do not sum to one: "warn" looks at a third of the frames,
            another one in the next call, and gives one `NormalizationWarning`, "error" looks at all, "ignore" at none. On a
            device "warn" does nothing, since the host would have to wait, and "error" waits.
        names: [N] utterances, for messages.
        backend: "auto" follows the scores' device; "cpu" and "reference" take scores of the host.
        memory_budget: bytes for the alphas of all frames, as for `forward_backward`; no bit of the result depends on it.

    Returns:
        A scalar, or [N] for "none" (a scalar for one sequence); float64 for float64 scores, else float32. A sequence that is
        too short for its target has the loss inf, one with NaN among its scores NaN; both have zero gradient. Never negative
        for normalized scores, but for equal labels in a row under "compact". Differentiating twice raises.

    Raises:
        ShapeError: an argument of the wrong shape or dtype, a length out of range, no sequences.
        DataError: a label that is the blank or no class, named with its utterance; or unnormalized="error".
        ConfigError: an unknown option.
        BackendUnavailable: scores on a device for which there is no backend.
    """
    scores = _check_scores(log_probs, inputs, reduction, unnormalized)
    labels = _on_host_or_beside(targets, "targets", scores)
    arguments = (
        scores,
        labels.unsqueeze(0) if log_probs.ndim == 2 and labels.ndim == 1 else labels,
        _lengths(input_lengths, "input_lengths", scores),
        _lengths(target_lengths, "target_lengths", scores),
        torch.empty(0) if log_priors is None else torch.as_tensor(log_priors).detach(),
        blank,
        inputs,
        topology,
        delay_penalty,
        unnormalized,
        _joined(names, scores.shape[1]),
    )
    budget = budget_number(memory_budget)
    if computes_ctc_on_device(scores, backend):
        losses = ctc_device.losses(*arguments, budget)
    elif ctc_eager.takes(scores):
        losses = ctc_eager.losses(*arguments, backend, budget)
    else:
        losses = ctc_operator.ctc(*arguments, backend, budget)[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), 0.0, losses)
    if reduction == "mean":
        counts = _lengths(target_lengths, "target_lengths", scores).clamp(min=1)
        losses = (losses / counts.to(losses.device)).mean()
    elif reduction == "sum":
        losses = losses.sum()
    elif log_probs.ndim == 2:
        losses = losses[0]
    return losses.to(torch.float64 if scores.dtype == torch.float64 else torch.float32)


class CTCLoss(nn.Module):
    """`ctc_loss` as a module; options are its arguments of the same names.

    Attributes:
        log_priors: a buffer [C], or None.
    """

    log_priors: Tensor | None

    def __init__(
        self,
        blank: int = 0,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
        *,
        inputs: Inputs = "log_probs",
        topology: CtcTopology = "standard",
        log_priors: Tensor | None = None,
        delay_penalty: float = 0.0,
        unnormalized: Unnormalized = "warn",
        backend: BackendName = "auto",
        memory_budget: float | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("log_priors", log_priors)
        self._options: dict[str, Any] = {
            "blank": blank,
            "reduction": reduction,
            "zero_infinity": zero_infinity,
            "inputs": inputs,
            "topology": topology,
            "delay_penalty": delay_penalty,
            "unnormalized": unnormalized,
            "backend": backend,
            "memory_budget": memory_budget,
        }

    def extra_repr(self) -> str:
        """Options, for `repr`."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())

    def forward(
        self,
        log_probs: Tensor,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        names: Sequence[str] | None = None,
    ) -> Tensor:
        """The loss of a batch; arguments, result and errors as for `ctc_loss`."""
        return ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            log_priors=self.log_priors,
            names=names,
            **self._options,
        )


def _check_scores(log_probs: Tensor, inputs: str, reduction: str, unnormalized: str) -> Tensor:
    """The scores as [T, N, C]."""
    for name, value, known in (
        ("inputs", inputs, ("log_probs", "logits")),
        ("reduction", reduction, ("none", "mean", "sum")),
        ("unnormalized", unnormalized, ("warn", "error", "ignore")),
    ):
        if value not in known:
            raise ConfigError(f"{name} = {value!r}; expected one of {list(known)}")
    if not isinstance(log_probs, Tensor):
        raise ShapeError(f"log_probs is a {type(log_probs).__name__}; expected a torch tensor")
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"log_probs has shape {list(log_probs.shape)}; expected [T, N, C] or [T, C]")
    if not log_probs.is_floating_point():
        raise ShapeError(
            f"log_probs has dtype {log_probs.dtype}; expected float16, bfloat16, float32 or float64"
        )
    return log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)


def _on_host_or_beside(values: Any, name: str, scores: Tensor) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} is no tensor of integers ({error})") from error
    if tensor.device.type != "cpu" and tensor.device != scores.device:
        raise ShapeError(
            f"{name} is on {tensor.device}, log_probs on {scores.device}; expected one device, or {name} on the host"
        )
    return tensor


def _lengths(values: Any, name: str, scores: Tensor) -> Tensor:
    tensor = _on_host_or_beside(values, name, scores)
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


def _joined(names: Sequence[str] | None, size: int) -> str:
    """Names as an operator can take them: lines of a text, empty for none."""
    if names is None:
        return ""
    if len(names) != size:
        raise ShapeError(f"names has {len(names)} entries; expected {size}, one for each sequence")
    return "\n".join(" ".join(str(name).split()) for name in names)
