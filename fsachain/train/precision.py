"""The number format of the network's passes. Parameters, loss, its gradient, and all sums stay float32 or better.

With bfloat16 and float16 torch's autocast chooses, operation by operation, what is computed in 16 bits. float16 has no
numbers above 65504 and few below 6e-8: the gradient enters the network times a factor, which is halved when something
overflows, for a step that is then skipped, and doubled after `GROW_AFTER` steps in which nothing did (Micikevicius et al.,
ICLR 2018). That the decision is about the gradient summed over all processes makes it the same in all of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_TYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
GROW_AFTER = 2000
LEAST = 2.0**-24
MOST = 2.0**16


class Precision:
    """The format of one training.

    Args:
        name: one of `fsachain.train.config.PRECISIONS`.

    Attributes:
        factor: of the gradients in the network. It begins with 1: the gradient of a sum over frames, as it is here, is
            already thousands of times that of their mean.
        good_steps: since the factor changed.
    """

    def __init__(self, name: str = "float32") -> None:
        self._dtype = _TYPES[name]
        self.factor = 1.0
        self.good_steps = 0

    def passes(self, device: torch.device) -> AbstractContextManager[object]:
        """A block in which the network is run forward."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self._dtype)

    def note(self, finite: bool) -> bool:
        """Choose the factor for the next step.

        Args:
            finite: whether the summed gradient of this step is.

        Returns:
            Whether the factor was lowered: then what is not finite may be nothing but an overflow.
        """
        if self._dtype is not torch.float16:
            return False
        if finite:
            self.good_steps += 1
            if self.good_steps >= GROW_AFTER:
                self.factor, self.good_steps = min(self.factor * 2.0, MOST), 0
            return False
        lowered = self.factor > LEAST
        self.factor, self.good_steps = max(self.factor / 2.0, LEAST), 0
        return lowered
