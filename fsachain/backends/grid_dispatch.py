"""The grid's backends by name: each gives the same seven functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fsachain.backends import grid_cpu, grid_cpu_rows, reference_grid
from fsachain.errors import BackendUnavailable


class GridBackend(NamedTuple):
    """The recursion (20)-(23) and the ways (24), (25) between logits and its scores; see `reference_grid`."""

    log_probs: Callable[..., Any]
    forward_backward: Callable[..., Any]
    best_paths: Callable[..., Any]
    softmax_scores: Callable[..., Any]
    plain_scores: Callable[..., Any]
    softmax_gradient: Callable[..., Any]
    plain_gradient: Callable[..., Any]


def _backend(recursion: Any, rows: Any) -> GridBackend:
    modules = [recursion] * 3 + [rows] * 4
    return GridBackend(
        *(getattr(module, name) for module, name in zip(modules, GridBackend._fields, strict=True))
    )


_BACKENDS = {
    "cpu": _backend(grid_cpu, grid_cpu_rows),
    "reference": _backend(reference_grid, reference_grid),
}


def grid_backend(name: str) -> GridBackend:
    """The backend of this name; "auto" is the CPU's, since there is no other for devices yet.

    Raises:
        BackendUnavailable: there is none; the message names those that there are.
    """
    if name == "auto":
        return _BACKENDS["cpu"]
    if name not in _BACKENDS:
        raise BackendUnavailable(
            f"backend {name!r} has no transducer grid; available: {', '.join(_BACKENDS)}"
        )
    return _BACKENDS[name]
