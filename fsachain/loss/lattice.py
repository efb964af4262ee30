"""The lattice of a transducer: scores of its arcs, their occupancies, and the best alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.dispatch import BackendName
from fsachain.brief import brief
from fsachain.fsa import Ints
from fsachain.grid import TOPOLOGIES, GridArc, RnntType
from fsachain.loss import arguments
from fsachain.loss.grid import grid, score_batch
from fsachain.loss.rnnt import RnntCall, arc_scores, rnnt_call


class TransducerOccupancy(NamedTuple):
    """What the paths of a lattice do, weighted with their probabilities.

    Attributes:
        log_prob: [N] log Z, float64.
        ok: [N]; False: no path, or illegal scores; the occupancies are 0 then.
        label, blank: [N, T, U + 1]: how often a path takes a label arc, a blank of any length, from node (t, u).
        node: [N, T, U + 1]: how often it passes there: the sum of both. On each anti-diagonal t + u of a regular lattice the
            nodes sum to one, on each frame of a modified one.
    """

    log_prob: Tensor
    ok: Tensor
    label: Tensor
    blank: Tensor
    node: Tensor

    def __repr__(self) -> str:
        return brief(self)


class TransducerAlignment(NamedTuple):
    """The best path (23) of one sequence.

    Attributes:
        score: its log-probability; -inf or NaN where there is none, and no arcs then.
        frames: [U] the frame at which each label is emitted.
        arcs: [A, 3] rows (kind, t, u): every arc of the path with the node that it leaves.
    """

    score: float
    frames: Ints
    arcs: Ints

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True)
class TransducerLattice:
    """Scores of arcs on the (t, u) grid of each of N sequences.

    Attributes:
        scores: [N, K, T, U + 1]: log-scores of each kind of arc that leaves node (t, u).
        arcs: the kinds, K of them.
        sizes: [N, 4] int64: 0, 0, T_n, U_n.
        backend: what computes.
    """

    scores: Tensor
    arcs: tuple[GridArc, ...]
    sizes: Tensor
    backend: BackendName = "auto"

    __repr__ = brief

    def log_prob(self) -> Tensor:
        """log Z [N] (21), float64, differentiable in the scores: the gradient is the occupancy."""
        differentiable = torch.is_grad_enabled() and self.scores.requires_grad
        return grid(self.scores, self.sizes, torch.tensor(self.arcs), self.backend, differentiable).log_prob

    @torch.no_grad()
    def occupancy(self) -> TransducerOccupancy:
        """Equation (22)."""
        log_prob, g = grid(self.scores, self.sizes, torch.tensor(self.arcs), self.backend, True)
        label, blank = (
            sum(
                (g[:, k] for k, arc in enumerate(self.arcs) if arc.labels == count), torch.zeros_like(g[:, 0])
            )
            for count in (1, 0)
        )
        return TransducerOccupancy(log_prob, torch.isfinite(log_prob), label, blank, label + blank)

    @torch.no_grad()
    def best_alignment(self) -> list[TransducerAlignment]:
        """The best path of each sequence."""
        wide = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32)).contiguous()
        batch = score_batch(list(wide.shape), self.sizes, torch.tensor(self.arcs))
        scores, paths = dispatch.grid(wide, self.backend).best_paths(batch, wide.view(-1))
        is_label = np.array([arc.labels == 1 for arc in self.arcs])
        return [
            TransducerAlignment(float(score), path[is_label[path[:, 0]], 1], path)
            for score, path in zip(scores, paths, strict=True)
        ]


@torch.no_grad()
def rnnt_lattice(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    fused_log_softmax: bool = True,
    *,
    ranges: Any = None,
    delay_penalty: float = 0.0,
    rnnt_type: RnntType = "regular",
    backend: BackendName = "auto",
) -> TransducerLattice:
    """The lattice of `rnnt_loss`, or with `ranges` of `rnnt_loss_pruned`, without history.

    Args:
        logits: padded [N, T, U + 1, V], or [N, T, s_range, V] with `ranges`; the others as for `rnnt_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4,))
    arguments.check_topology(rnnt_type)
    blank = arguments.class_index(blank, logits.shape[-1], "blank")
    call = arguments.given(logits, targets, logit_lengths, target_lengths, [blank, -1])
    if ranges is not None:
        call = call._replace(ranges=arguments.integers_there(ranges, "ranges", logits.device))
    options: dict[str, Any] = {"delays": [0.0, delay_penalty], "is_normalized": not fused_log_softmax}
    options |= {"is_constrained": rnnt_type == "constrained", "backend": backend}
    return lattice_of(rnnt_call(logits, call, TOPOLOGIES[rnnt_type], **options), TOPOLOGIES[rnnt_type])


def lattice_of(call: RnntCall, arcs: tuple[GridArc, ...]) -> TransducerLattice:
    """The lattice of padded logits [N, T, .., ..]."""
    _, _, scores, _ = arc_scores(call)
    boxes = scores.view(len(arcs), *call.logits.shape[:2], -1).transpose(0, 1)
    return TransducerLattice(boxes, arcs, call.sizes, cast(BackendName, call.backend))
