"""The transducer loss of Graves, 2012, by torchaudio's names and arguments; equations (20)-(27) of `fsachain.grid`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsachain.backends.dispatch import BackendName
from fsachain.grid import TOPOLOGIES, RnntType
from fsachain.loss import transducer_arguments as arguments
from fsachain.loss.transducer_operators import rnnt


def rnnt_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
    *,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: RnntType = "regular",
    inplace: bool = False,
    zero_infinity: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """Minus the log-probability of the targets, summed over all alignments.

    Args:
        logits: the joiner's output, float32, float64, or float16 and bfloat16, which are computed in a float32 copy: padded
            [N, T, U + 1, V], or packed [sum of T_n (U_n + 1), V] with the rows of a sequence one after another, frame by
            frame.
        targets: [N, U] integers, classes of V; what lies beyond target_lengths is ignored. Lists, arrays or tensors, as both
            lengths. The host does not look at those on the device of the logits: one that is no class makes the loss NaN.
        logit_lengths: [N], frames T_n of 0..T. Frames beyond are ignored, whatever they hold, and get a gradient of 0.
            Lengths of a device are brought to the host, which waits for them.
        target_lengths: [N], labels U_n of 0..U.
        blank: the class of the blank; a negative one counts from the end.
        clamp: entries of the gradient by the logits are kept within +-clamp, before they are multiplied by the incoming
            gradient; not above 0: no limit.
        reduction: "none" gives [N]; "mean" and "sum" are over the sequences.
        fused_log_softmax: True: the softmax over V is taken here. False: logits are log-probs, normalised or not; the
            gradient by a log-prob then is minus the expected number of times that its arc is taken.
        fastemit_lambda: lambda of FastEmit (27): gradients of labels count 1 + lambda times; the loss stays as it is.
        delay_penalty: a label at frame t costs delay_penalty x (t - (T_n - 1) / 2); part of the loss.
        rnnt_type: "regular"; "modified": a label takes a frame; "constrained": (26).
        inplace: the gradient is written over the logits, which must not be used afterwards; backward then runs once.
        zero_infinity: losses of sequences that cannot be aligned count as 0; NaN stays NaN.
        backend: "auto" follows the device of the logits.

    Returns:
        float64: +inf for a sequence without an alignment (more labels than frames, scores of -inf), NaN for one with NaN or
        +inf in its logits; their gradient is 0. Differentiating twice raises.

    Raises:
        ShapeError: shapes that do not fit, lengths or targets out of range; the message names the sequence.
        ConfigError: an option with an illegal value.
        BackendUnavailable: a device that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4, 2))
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    blank = arguments.class_index(blank, logits.shape[-1], "blank")
    call = arguments.given(logits, targets, logit_lengths, target_lengths, [blank, -1])
    results = rnnt(
        logits,
        *call,
        torch.tensor(TOPOLOGIES[rnnt_type]),
        [logits.shape[-1], -1],
        [0.0, arguments.check_finite("delay_penalty", delay_penalty)],
        0.0,
        arguments.check_fastemit(fastemit_lambda),
        arguments.check_clamp(clamp),
        rnnt_type == "constrained",
        not fused_log_softmax,
        inplace,
        backend,
        torch.is_grad_enabled() and logits.requires_grad,
    )
    return arguments.reduce_losses(results[0], reduction, zero_infinity)


class RNNTLoss(nn.Module):
    """`rnnt_loss` with its options, as `torchaudio.transforms.RNNTLoss`."""

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        fused_log_softmax: bool = True,
        *,
        fastemit_lambda: float = 0.0,
        delay_penalty: float = 0.0,
        rnnt_type: RnntType = "regular",
        inplace: bool = False,
        zero_infinity: bool = False,
    ) -> None:
        super().__init__()
        arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
        arguments.check_topology(rnnt_type)
        arguments.check_clamp(clamp)
        self.blank, self.clamp, self.reduction = blank, clamp, reduction
        self.fused_log_softmax = fused_log_softmax
        self.fastemit_lambda = arguments.check_fastemit(fastemit_lambda)
        self.delay_penalty = arguments.check_finite("delay_penalty", delay_penalty)
        self.rnnt_type: RnntType = rnnt_type
        self.inplace, self.zero_infinity = inplace, zero_infinity

    def extra_repr(self) -> str:
        """The options that matter, for `repr`."""
        return f"blank={self.blank}, rnnt_type={self.rnnt_type!r}, reduction={self.reduction!r}"

    def forward(self, logits: Tensor, targets: Any, logit_lengths: Any, target_lengths: Any) -> Tensor:
        """As `rnnt_loss`."""
        return rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            self.fused_log_softmax,
            fastemit_lambda=self.fastemit_lambda,
            delay_penalty=self.delay_penalty,
            rnnt_type=self.rnnt_type,
            inplace=self.inplace,
            zero_infinity=self.zero_infinity,
        )
