"""The final model, made of the models of the last epochs.

"best-average" does what Kaldi's nnet3-chain-combine does: from the newest model on, one older model after the other joins a
mean, the objective of each mean is taken, and the best is kept. An exponential moving average stands beside them, if there
is one. Everything is a pure function of checkpoints and data: a training that is killed meanwhile does it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from fsachain.errors import DataError
from fsachain.train.checkpoint import Tensors

EMA = "ema"


@dataclass(frozen=True)
class Combination:
    """What was chosen.

    Attributes:
        state: the chosen model's `state_dict()`.
        num_models: models in the mean; 0 for the moving average.
        objf: the objective by candidate: "1", "2", ... for the means of so many models, and "ema".
    """

    state: Tensors
    num_models: int
    objf: dict[str, float]

    @property
    def name(self) -> str:
        """The chosen candidate's name."""
        return str(self.num_models) if self.num_models else EMA


def best_average(
    newest_first: Iterable[Mapping[str, torch.Tensor]],
    objective: Callable[[Tensors], float],
    ema: Tensors | None = None,
) -> Combination:
    """The best of the means of the newest 1, 2, 3, ... models, and of `ema`.

    Args:
        newest_first: `state_dict()`s, loaded one at a time.
        objective: what to maximise; NaN loses against any number. Called once for each candidate, in order.
        ema: one more candidate; at equal objectives the earlier candidate, the mean of fewer models, is kept.

    Raises:
        DataError: there is no model, or names or shapes differ.
    """
    best: Combination | None = None
    objf: dict[str, float] = {}
    for num_models, state in _candidates(newest_first, ema):
        candidate = Combination(state, num_models, objf)
        value = objf[candidate.name] = objective(state)
        if best is None or value > objf[best.name] or (value == value and objf[best.name] != objf[best.name]):
            best = candidate
    if best is None:
        raise DataError("newest_first: nothing to combine")
    return best


def _candidates(
    newest_first: Iterable[Mapping[str, torch.Tensor]], ema: Tensors | None
) -> Iterator[tuple[int, Tensors]]:
    newest: Mapping[str, torch.Tensor] | None = None
    sums: Tensors = {}
    for count, state in enumerate(newest_first, start=1):
        newest = state if newest is None else newest
        _check_same(newest, state)
        for name, tensor in state.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor.double() if count > 1 else tensor.double()
        yield (
            count,
            {
                name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor.clone()
                for name, tensor in newest.items()
            },
        )
    if ema is not None:
        yield 0, {name: tensor.clone() for name, tensor in ema.items()}


def _check_same(newest: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    for name in sorted(newest.keys() | state.keys()):
        shapes = [list(part[name].shape) if name in part else None for part in (newest, state)]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"models to combine: {name!r} has shape {shapes[0]} in one and {shapes[1]} in another"
            )
