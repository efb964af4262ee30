"""Transducer losses with the call of `warprnnt_pytorch`, for the toolkits that import it: ESPnet, NeMo and others.

`install` makes `import warprnnt_pytorch` give this module. Nothing has to be compiled, and the losses run on the CPU and on
the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsachain.backends.dispatch import BackendName
from fsachain.errors import ConfigError, counted
from fsachain.integrations.reduction import check_reduction, reduce_losses, without_impossible
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.variants import multi_blank_loss, tdt_loss

NAME = "warprnnt_pytorch"


def install() -> None:
    """Make `import warprnnt_pytorch` give this module.

    Call it before the toolkit is imported: NeMo looks for `warprnnt_pytorch` once, when it is imported.

    Raises:
        ConfigError: another `warprnnt_pytorch` has been imported already.
    """
    imported = sys.modules.get(NAME)
    this = sys.modules[__name__]
    if imported is not None and imported is not this:
        raise ConfigError(
            f"{NAME} has been imported from {getattr(imported, '__file__', None)}; expected install() to be called before"
        )
    sys.modules[NAME] = this


class _Loss(nn.Module):
    """What the losses have in common.

    As in warprnnt_pytorch, a reduced loss has the shape [1], and "mean" is over the sequences.
    """

    def __init__(
        self,
        blank: int,
        reduction: str | None,
        fastemit_lambda: float,
        clamp: float,
        zero_infinity: bool,
        backend: BackendName,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.blank = blank
        self.reduction = reduction
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp
        self.zero_infinity = zero_infinity
        self.backend: BackendName = backend

    def extra_repr(self) -> str:
        """The options that matter, for `repr`."""
        return f"blank={self.blank}, reduction={self.reduction!r}"

    def _losses(self, acts: Tensor, labels: Any, act_lens: Any, label_lens: Any, **options: Any) -> Tensor:
        raise NotImplementedError

    def forward(self, acts: Tensor, labels: Any, act_lens: Any, label_lens: Any) -> Tensor:
        """Return the loss.

        Args:
            acts: [N, T, U + 1, V], the joint network's output before its softmax.
            labels: [N, U]; what lies beyond `label_lens` is ignored.
            act_lens, label_lens: [N], frames and labels of each sequence.

        Returns:
            [N] for the reduction "none" or None, else [1]; float32, or float64 for float64 acts.

        Raises:
            ShapeError, ConfigError: an argument that cannot be used.
        """
        name = check_reduction(self.reduction)
        losses = self._losses(
            acts,
            labels,
            act_lens,
            label_lens,
            blank=self.blank,
            reduction="none",
            clamp=self.clamp,
            fastemit_lambda=self.fastemit_lambda,
            backend=self.backend,
        )
        if self.zero_infinity:
            losses = without_impossible(losses)
        losses = losses.to(torch.promote_types(acts.dtype, torch.float32))
        if name == "none":
            return losses
        counts = torch.as_tensor(label_lens, device=losses.device)
        return reduce_losses(losses, counts, "mean_batch" if name == "mean" else name).unsqueeze(0)


class RNNTLoss(_Loss):
    """The transducer loss, called as `warprnnt_pytorch.RNNTLoss`.

    Attributes:
        blank, reduction, fastemit_lambda, clamp, zero_infinity, backend: the options; read at each call.
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        *,
        clamp: float = -1.0,
        zero_infinity: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            blank: the blank's class.
            reduction: "none" or None, "sum", "mean" and "mean_batch" over the sequences, "mean_volume": the sum over all
                labels.
            fastemit_lambda: gradients of labels count 1 + lambda times; the loss stays as it is.
            clamp: entries of the gradient are kept within +-clamp; not above 0: no limit.
            zero_infinity: whether an impossible sequence has the loss 0 and not infinity; its gradient is 0 either way.
            backend: "auto" follows the device of the acts.

        Raises:
            ConfigError: an unknown reduction.
        """
        super().__init__(blank, reduction, fastemit_lambda, clamp, zero_infinity, backend)

    def _losses(self, acts: Tensor, labels: Any, act_lens: Any, label_lens: Any, **options: Any) -> Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, **options)


class TDTLoss(_Loss):
    """The token-and-duration transducer loss with the same call; acts are [N, T, U + 1, V + D]."""

    def __init__(
        self,
        blank: int,
        durations: Sequence[int],
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        *,
        sigma: float = 0.0,
        clamp: float = -1.0,
        zero_infinity: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            blank: the blank's class among the V.
            durations: D numbers of frames, in the order of the last D entries of `acts`.
            sigma: logit undernormalisation.
            reduction, fastemit_lambda, clamp, zero_infinity, backend: as for `RNNTLoss`.

        Raises:
            ConfigError: an unknown reduction.
        """
        super().__init__(blank, reduction, fastemit_lambda, clamp, zero_infinity, backend)
        self.durations = list(durations)
        self.sigma = sigma

    def _losses(self, acts: Tensor, labels: Any, act_lens: Any, label_lens: Any, **options: Any) -> Tensor:
        return tdt_loss(acts, labels, act_lens, label_lens, self.durations, sigma=self.sigma, **options)


class MultiblankRNNTLoss(_Loss):
    """The multi-blank transducer loss with the same call; big blanks stand before the blank, the first one next to it."""

    def __init__(
        self,
        blank: int,
        big_blank_durations: Sequence[int],
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        *,
        sigma: float = 0.0,
        clamp: float = -1.0,
        zero_infinity: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            blank: the class of the blank of one frame.
            big_blank_durations: frames of the classes blank - 1, blank - 2, ...
            sigma: logit undernormalisation.
            reduction, fastemit_lambda, clamp, zero_infinity, backend: as for `RNNTLoss`.

        Raises:
            ConfigError: an unknown reduction, or more big blanks than classes below the blank.
        """
        super().__init__(blank, reduction, fastemit_lambda, clamp, zero_infinity, backend)
        durations = list(big_blank_durations)
        if len(durations) > blank:
            raise ConfigError(
                f"big_blank_durations has {counted(len(durations), 'entry')} and blank = {blank}; expected at most {blank}, "
                "since the big blanks are the classes below the blank"
            )
        self.big_blanks = {blank - 1 - place: frames for place, frames in enumerate(durations)}
        self.sigma = sigma

    def _losses(self, acts: Tensor, labels: Any, act_lens: Any, label_lens: Any, **options: Any) -> Tensor:
        return multi_blank_loss(
            acts, labels, act_lens, label_lens, self.big_blanks, sigma=self.sigma, **options
        )
