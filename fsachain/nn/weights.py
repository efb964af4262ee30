"""A network that begins with the weights of another: what fits is taken, what does not is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fsachain.errors import DataError

_MOST_NAMED = 8


@dataclass(frozen=True)
class TakenWeights:
    """Names of parameters and buffers, sorted.

    Attributes:
        taken: given the values of the other network.
        other_shape: of both networks, but of different shapes; as they were.
        fresh: the other network has none of that name; as they were.
        unused: of the other network alone.
    """

    taken: tuple[str, ...]
    other_shape: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.taken)} weights taken"]
        for names, what in (
            (self.other_shape, "of another shape"),
            (self.fresh, "not in the file"),
            (self.unused, "of the file not used"),
        ):
            if names:
                parts.append(f"{len(names)} {what} ({_listed(names)})")
        return "; ".join(parts)


def take_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> TakenWeights:
    """Give a network those weights of another whose names and shapes fit; the others stay as they are.

    Values are rounded to the type that the network has. An output layer for another number of pdfs has another shape, and so
    begins anew.

    Args:
        network: changed in place.
        weights: the other network's `state_dict()`, or a part of it.

    Raises:
        DataError: nothing fits.
    """
    own = network.state_dict()
    shared = own.keys() & weights.keys()
    fitting = sorted(name for name in shared if own[name].shape == weights[name].shape)
    result = TakenWeights(
        tuple(fitting),
        tuple(sorted(shared - set(fitting))),
        tuple(sorted(own.keys() - weights.keys())),
        tuple(sorted(weights.keys() - own.keys())),
    )
    if not fitting:
        raise DataError(
            f"no weight has the name and shape of one of the network's; expected such as {_listed(sorted(own))}, "
            f"got {_listed(sorted(weights)) or 'none'}"
        )
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(weights[name])
    return result


def _listed(names: tuple[str, ...] | list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
