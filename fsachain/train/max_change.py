"""Limits on how far one step of an optimiser moves the parameters, as in Kaldi's neural-network training.

    d_c   = change of the parameters of component c in the step, all of its tensors together
    f_c   = min(1, max_change_per_component / |d_c|)
    g     = min(1, max_change / sqrt(sum_c f_c^2 |d_c|^2))
    step  = g f_c d_c

with Euclidean norms; Kaldi's recipes have max_change_per_component = 0.75 and max_change = 2. A component is a module with
parameters of its own: a convolution or linear layer with weight and bias is what Kaldi calls an affine component.
"""

from __future__ import annotations

import math
from types import TracebackType

import torch
from torch import nn


class MaxChange:
    """Scales the step that is taken within its `with` block, whatever takes it.

        with limit:
            optimizer.step()

    The change is the parameters after the step less a copy made before it: the one thing that every optimiser has in
    common. The copy takes as much memory as the parameters, half of what Adam keeps. Parameters without a gradient
    take no part. Projections that come after the step, such as `constrain_orthonormal`, are not limited, as in Kaldi.

    Args:
        model: whose parameters are watched.
        per_component: largest norm of a component's change, > 0; None for no limit.
        total: largest norm of the whole change, > 0; None for no limit.

    Attributes:
        limited: whether the last step was scaled down as a whole: 1 or 0.
        limited_components: how many components were scaled down by themselves in the last step.
        norm: of the last step after scaling; NaN without limits.
    """

    def __init__(
        self, model: nn.Module, *, per_component: float | None = None, total: float | None = None
    ) -> None:
        self.per_component = math.inf if per_component is None else per_component
        self.total = math.inf if total is None else total
        self.limited = 0
        self.limited_components = 0
        self.norm = math.nan
        self._components: list[tuple[int, nn.Parameter]] = []
        seen: set[nn.Parameter] = set()
        for number, module in enumerate(model.modules()):
            own = [parameter for parameter in module.parameters(recurse=False) if parameter not in seen]
            seen.update(own)  # a tensor that two modules share belongs to the first
            self._components += [(number, parameter) for parameter in own]
        self._copies: dict[nn.Parameter, torch.Tensor] = {}
        self._moving: list[tuple[int, nn.Parameter]] = []

    @property
    def active(self) -> bool:
        """Whether there is a limit at all; without one the block costs nothing."""
        return min(self.per_component, self.total) < math.inf

    def __enter__(self) -> MaxChange:
        if self.active:
            self._moving = [entry for entry in self._components if entry[1].grad is not None]
            for _, parameter in self._moving:
                if parameter not in self._copies:
                    self._copies[parameter] = torch.empty_like(parameter, requires_grad=False)
            with torch.no_grad():
                if self._moving:
                    torch._foreach_copy_(self._before(), [parameter for _, parameter in self._moving])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active and kind is None:
            self._scale()

    def _before(self) -> list[torch.Tensor]:
        return [self._copies[parameter] for _, parameter in self._moving]

    @torch.no_grad()
    def _scale(self) -> None:
        """Take back what is too much: parameters += (1 - g f_c) (before - after)."""
        self.limited, self.limited_components, self.norm = 0, 0, 0.0
        if not self._moving:
            return
        back = self._before()
        torch._foreach_sub_(back, [parameter for _, parameter in self._moving])
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(back)]).tolist()
        factors = self._factors(norms)
        much = [position for position, factor in enumerate(factors) if factor < 1.0]
        if much:
            excess = [back[position] for position in much]
            torch._foreach_mul_(excess, [1.0 - factors[position] for position in much])
            torch._foreach_add_([self._moving[position][1] for position in much], excess)

    def _factors(self, norms: list[float]) -> list[float]:
        """g f_c for every moving tensor, from the norms of their changes."""
        squares: dict[int, float] = {}
        for (number, _), norm in zip(self._moving, norms, strict=True):
            squares[number] = squares.get(number, 0.0) + norm * norm
        changes = {number: math.sqrt(square) for number, square in squares.items()}
        if not all(map(math.isfinite, changes.values())):
            return [1.0] * len(norms)  # no number to scale to; the next loss says what is wrong
        scale = {number: _down_to(self.per_component, change) for number, change in changes.items()}
        whole = math.sqrt(sum((scale[number] * change) ** 2 for number, change in changes.items()))
        overall = _down_to(self.total, whole)
        self.limited_components = sum(factor < 1.0 for factor in scale.values())
        self.limited = int(overall < 1.0)
        self.norm = overall * whole
        return [overall * scale[number] for number, _ in self._moving]


def _down_to(limit: float, norm: float) -> float:
    """The factor, at most 1, that brings `norm` to `limit`."""
    return 1.0 if norm <= limit else limit / norm
