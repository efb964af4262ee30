"""Why an example cannot be trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fsachain.data.dataset import Example
from fsachain.data.faults import Fault
from fsachain.reachability import arcs_from
from fsachain.table import TransitionTable

OutputLengths = Callable[[torch.Tensor], torch.Tensor]


def min_frames(table: TransitionTable) -> float:
    """Fewest frames that a sequence through the table has; infinity where there is no path."""
    arcs = table.by_src
    final = np.isfinite(table.final_log_prob)
    starts = np.flatnonzero(np.isfinite(table.initial_log_prob))
    distances = (arcs_from(int(state), table.num_states, arcs.src, arcs.dst) for state in starts)
    return float(min((distance[final].min(initial=np.inf) for distance in distances), default=np.inf))


def fault_of(example: Example, need: float, output_lengths: OutputLengths) -> Fault | None:
    """What is wrong with an example that has a numerator; None if it can be trained on.

    Args:
        example: features that are not finite are found.
        need: `min_frames` of its numerator.
        output_lengths: the model's, from input to output frames.
    """
    if not np.isfinite(example.features).all():
        frame = int(np.argmin(np.isfinite(example.features).all(axis=1)))
        return Fault(
            example.id, f"its features are not finite, first in frame {frame}", "features not finite"
        )
    if example.window is not None:
        have = example.window.length
    else:
        have = int(output_lengths(torch.tensor([example.num_frames]))[0])
    if have >= need and have > 0:
        return None
    if np.isinf(need):
        return Fault(example.id, "its numerator has no path", "no path")
    return Fault(
        example.id, f"needs {need:.0f} output frames, has {have}", "too short" if have else "no frames"
    )
