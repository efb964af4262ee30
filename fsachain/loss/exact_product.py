"""Products of matrices that are as exact as their type, whatever the user allows elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Lock
from typing import Any

import torch
from torch import Tensor

_lock = Lock()  # what is set is the process's: two threads must not keep what the other has set


def exact_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y of float32 or float64 [.., I, K] and [.., K, J], without autocast, TF32 or bfloat16 inside.

    These are for the layers of a network. A sum of probabilities that is off by a thousandth is a log-probability that is
    off by as much, at every node of a path.
    """
    with torch.autocast(x.device.type, enabled=False), _full_precision():
        return x @ y


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    with _lock:
        before = [(place, name, getattr(place, name)) for place, name, _ in _settings()]
        try:
            for place, name, exact in _settings():
                setattr(place, name, exact)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


def _settings() -> list[tuple[Any, str, Any]]:
    """Where torch keeps how exact products of float32 are, under which name, and the value for exact ones."""
    places = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if hasattr(places[0], "fp32_precision"):  # since torch 2.9
        return [(place, "fp32_precision", "ieee") for place in places if place is not None]
    return [(places[0], "allow_tf32", False)]
