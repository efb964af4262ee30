"""What a user without a kernel writes: the recursions in the log semiring, frame by frame, of torch's own operations."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from fsachain.table import TransitionTable

NEVER = -1e30  # for log 0: of minus infinities the gradient is NaN


class Arcs(NamedTuple):
    """Of one acceptor, or of several side by side.

    row: of the scores, which each arc reads. initial, final, leak: [S]. acceptor: [S], of `count`.
    """

    src: torch.Tensor
    dst: torch.Tensor
    row: torch.Tensor
    weight: torch.Tensor
    initial: torch.Tensor
    final: torch.Tensor
    leak: torch.Tensor
    acceptor: torch.Tensor
    count: int

    def to(self, device: torch.device) -> Arcs:
        return Arcs(*(part.to(device) for part in self[:-1]), self.count)


def arcs_of(tables: tuple[TransitionTable, ...], width: int) -> Arcs:
    """Acceptor n reads rows n P to n P + P - 1, P the width of the scores."""
    first = np.cumsum([0, *(table.num_states for table in tables)])
    integers, floats = [], []
    for n, table in enumerate(tables):
        arcs = table.by_dst
        integers.append(
            [
                arcs.src + first[n],
                arcs.dst + first[n],
                table.active_pdfs[arcs.column].astype(np.int64) + n * width,
            ]
        )
        floats.append([arcs.log_prob, table.initial_log_prob, table.final_log_prob, table.leak_target])
    src, dst, row = (torch.from_numpy(np.concatenate(column)) for column in zip(*integers, strict=True))
    weight, *ends = (
        torch.from_numpy(np.maximum(np.concatenate(column), NEVER)).float()
        for column in zip(*floats, strict=True)
    )
    acceptor = torch.from_numpy(np.repeat(np.arange(len(tables)), np.diff(first)))
    return Arcs(src, dst, row, weight, *ends, acceptor, len(tables))


def log_z(arcs: Arcs, rows: torch.Tensor, leaky: float = 0.0) -> torch.Tensor:
    """[acceptors, B] by equations (1) to (4), of scores [T, rows, B]; a leak is for one acceptor alone."""
    alpha, entering = arcs.initial[:, None].expand(-1, rows.shape[2]), arcs.weight[:, None]
    for frame in rows:
        along = (
            _leaked(arcs, alpha, leaky).index_select(0, arcs.src) + frame.index_select(0, arcs.row) + entering
        )
        alpha = _log_sums(along, arcs.dst, len(alpha))
    return _log_sums(_leaked(arcs, alpha, leaky) + arcs.final[:, None], arcs.acceptor, arcs.count)


def _leaked(arcs: Arcs, alpha: torch.Tensor, leaky: float) -> torch.Tensor:
    if not leaky:
        return alpha
    return torch.logaddexp(alpha, alpha.logsumexp(0) + float(np.log(leaky)) + arcs.leak[:, None])


def _log_sums(values: torch.Tensor, into: torch.Tensor, count: int) -> torch.Tensor:
    """[count, B]: of values [A, B], each in the row that `into` says."""
    shape = count, values.shape[1]
    places = into[:, None].expand_as(values)
    most = values.new_full(shape, NEVER).scatter_reduce(0, places, values.detach(), "amax")
    shifted = (values - most.index_select(0, into)).exp()
    sums = values.new_zeros(shape).index_add(0, into, shifted)
    return sums.clamp(min=torch.finfo(sums.dtype).tiny).log() + most


class EagerLFMMI:
    """(log Z of the denominators - log Z of the numerators) / frames, of scores [N, T, P] without padding."""

    def __init__(
        self, denominator: TransitionTable, numerators: tuple[TransitionTable, ...], width: int, leaky: float
    ) -> None:
        self._denominator = cache(arcs_of((denominator,), width).to)
        self._numerators = cache(arcs_of(numerators, width).to)
        self._leaky = leaky

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        size, frames, width = scores.shape
        of_all = scores.permute(1, 2, 0).contiguous()
        of_each = scores.transpose(0, 1).reshape(frames, size * width, 1)
        den = log_z(self._denominator(scores.device), of_all, self._leaky).sum()
        return (den - log_z(self._numerators(scores.device), of_each).sum()) / (size * frames)
