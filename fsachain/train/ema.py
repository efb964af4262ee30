"""An exponential moving average of the parameters over the steps of a training (Polyak and Juditsky, 1992).

    e(0) = p(0),    e(t) = d_t e(t - 1) + (1 - d_t) p(t),    d_t = min(decay, (1 + t) / (10 + t))

with p(t) the parameters after step t. The smaller d_t of the first steps lets the start be forgotten. d_t depends on t
alone: the averages are all that a checkpoint has to keep.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fsachain.errors import DataError


class ParameterEma:
    """The moving average of a model's parameters; buffers take no part.

    Args:
        model: its parameters now are the average's start.
        decay: of the average, in (0, 1); about 1 / (1 - decay) steps are averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters = dict(model.named_parameters())
        self._averages = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after step `step`, counted from 1."""
        average = get_ema_multi_avg_fn(min(self._decay, (1 + step) / (10 + step)))
        average(list(self._averages.values()), [value.detach() for value in self._parameters.values()], step)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again with the parameters as they are."""
        for name, average in self._averages.items():
            average.copy_(self._parameters[name])

    def state(self) -> dict[str, torch.Tensor]:
        """The averages by the names of the parameters."""
        return dict(self._averages)

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from the averages that `state` gave.

        Raises:
            DataError: names or shapes are not those of the model.
        """
        for name, average in self._averages.items():
            value = state.get(name)
            if value is None or value.shape != average.shape:
                raise DataError(
                    f"the moving average of {name!r} has shape {None if value is None else list(value.shape)}; "
                    f"expected {list(average.shape)}"
                )
            average.copy_(value)
