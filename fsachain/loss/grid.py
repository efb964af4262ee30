"""log Z of grids whose scores are given: those of each kind of arc in one tensor, or px and py by fast_rnnt's names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.dispatch import BackendName
from fsachain.errors import ShapeError
from fsachain.grid import FREE, MODIFIED, GridBatch
from fsachain.loss.arguments import check_beside, check_logits, integers
from fsachain.loss.autograd import Operator, as_tensor, scale_rows


def _wide(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def score_batch(shape: list[int], sizes: Tensor, arcs: Tensor) -> GridBatch:
    """The grids whose scores are [N, K, T, U], C-contiguous."""
    count, kinds, frames, labels = shape
    boxes = np.empty((count, kinds, 5), np.int64)
    boxes[:, :, 0] = np.arange(count * kinds).reshape(count, kinds) * (frames * labels)
    boxes[:, :, 1:] = labels, 1, frames, labels
    return GridBatch(np.ascontiguousarray(arcs.numpy()), np.ascontiguousarray(sizes.numpy()), boxes)


class GridSums(NamedTuple):
    """log Z [N], and occupancies (22), empty unless asked for."""

    log_prob: Tensor
    occupancy: Tensor


def _grid(scores: Tensor, sizes: Tensor, arcs: Tensor, backend: str, with_occupancy: bool) -> GridSums:
    """Scores and occupancies [N, K, T, U]; sizes [N, 4], arcs [K, 3]: as in `GridBatch`."""
    values = scores.detach().to(_wide(scores)).contiguous().clone()
    batch, ours = score_batch(list(scores.shape), sizes, arcs), dispatch.grid(scores, backend)
    if with_occupancy:
        return GridSums(ours.forward_backward(batch, values.view(-1)), values)
    return GridSums(ours.log_probs(batch, values.view(-1)), values.new_empty(0, 0, 0, 0))


def _fake_grid(scores: Tensor, sizes: Tensor, arcs: Tensor, backend: str, with_occupancy: bool) -> GridSums:
    shape = scores.shape if with_occupancy else (0, 0, 0, 0)
    log_prob = scores.new_empty(scores.shape[0], dtype=torch.float64)
    return GridSums(log_prob, scores.new_empty(shape, dtype=_wide(scores)))


def _grid_gradient(factor: Tensor, occupancy: Tensor, scores: Tensor) -> dict[str, Tensor | None]:
    # Not in place: a caller may have asked for the occupancies.
    return {"scores": scale_rows(occupancy, factor, scores)}


grid = Operator(_grid, _fake_grid, _grid_gradient, by={"scores": "with_occupancy"})


def _mutual_information(
    px: Tensor, py: Tensor, boundary: Tensor, backend: str, with_occupancy: bool
) -> GridSums:
    """The occupancies of py and then px, in a row: see `split_occupancy`."""
    kind = torch.promote_types(_wide(px), _wide(py))
    values = _in_a_row([py.detach().to(kind), px.detach().to(kind)])
    batch, ours = _px_py_batch(px, py, boundary), dispatch.grid(px, backend)
    if with_occupancy:
        return GridSums(ours.forward_backward(batch, values), values)
    return GridSums(ours.log_probs(batch, values), values.new_empty(0))


def _in_a_row(tensors: list[Tensor]) -> Tensor:
    """A copy of all entries of tensors of one type."""
    if not all(tensor.is_cpu for tensor in tensors):
        return torch.cat([tensor.flatten() for tensor in tensors])
    # Not by torch, whose threads wait for one another: on a busy machine that takes longer than the recursion.
    return torch.from_numpy(np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors]))


def split_occupancy(occupancy: Tensor, px: Tensor, py: Tensor) -> tuple[Tensor, Tensor]:
    """Views, shaped as px and py, of what `mutual_information` gives."""
    of_py, of_px = occupancy.split([py.numel(), px.numel()])
    return of_px.view(px.shape), of_py.view(py.shape)


def _px_py_batch(px: Tensor, py: Tensor, boundary: Tensor) -> GridBatch:
    size, labels, last = px.shape
    frames = py.shape[2]
    boxes = np.empty((size, 2, 5), np.int64)
    numbers = np.arange(size)
    boxes[:, 0, 0] = numbers * ((labels + 1) * frames)
    boxes[:, 0, 1:] = 1, frames, frames, labels + 1
    boxes[:, 1, 0] = py.numel() + numbers * (labels * last)
    boxes[:, 1, 1:] = 1, last, last, labels
    spans = boundary.numpy()
    low, high = spans[:, :2], spans[:, 2:]
    bad = ((low < 0) | (low > high) | (high > [labels, frames])).any(axis=1)
    for n in np.flatnonzero(bad).tolist():
        raise ShapeError(
            f"boundary[{n}] = {spans[n].tolist()}; expected [s_begin, t_begin, s_end, t_end] with "
            f"0 <= s_begin <= s_end <= {labels} and 0 <= t_begin <= t_end <= {frames}"
        )
    sizes = np.stack([spans[:, 1], spans[:, 0], spans[:, 3] - spans[:, 1], spans[:, 2] - spans[:, 0]], axis=1)
    return GridBatch(np.array(FREE if last > frames else MODIFIED), np.ascontiguousarray(sizes), boxes)


def _fake_mutual_information(
    px: Tensor, py: Tensor, boundary: Tensor, backend: str, with_occupancy: bool
) -> GridSums:
    kind = torch.promote_types(_wide(px), _wide(py))
    entries = px.numel() + py.numel() if with_occupancy else 0
    return GridSums(px.new_empty(px.shape[0], dtype=torch.float64), px.new_empty(entries, dtype=kind))


def _mutual_information_gradient(
    factor: Tensor, occupancy: Tensor, px: Tensor, py: Tensor
) -> dict[str, Tensor | None]:
    of_px, of_py = split_occupancy(occupancy, px, py)
    return {"px": scale_rows(of_px, factor, px), "py": scale_rows(of_py, factor, py)}


mutual_information = Operator(
    *(_mutual_information, _fake_mutual_information, _mutual_information_gradient),
    by={"px": "with_occupancy", "py": "with_occupancy"},
)


def check_arcs(px: Tensor, py: Tensor, suffix: str = "") -> tuple[int, int, int, bool]:
    """B, S, T, and whether a symbol takes a frame; `suffix` ends the names in messages."""
    check_logits(px, f"px{suffix}", "[B, S, T + 1]", "[B, S, T]")
    check_logits(py, f"py{suffix}", "[B, S + 1, T]")
    check_beside(py, f"py{suffix}", px, f"px{suffix}")
    size, labels, last = px.shape
    frames = py.shape[2]
    if py.shape[:2] != (size, labels + 1) or last - frames not in (0, 1):
        raise ShapeError(
            f"px{suffix} and py{suffix} have shapes {list(px.shape)} and {list(py.shape)}; "
            "expected [B, S, T + 1] or [B, S, T], and [B, S + 1, T]"
        )
    return size, labels, frames, last == frames


def check_boundary(boundary: Any, size: int, labels: int, frames: int, device: torch.device) -> Tensor:
    """[N, 4] int64: s_begin, t_begin, s_end, t_end; None: 0, 0, S, T. Values are checked by the operators."""
    if boundary is None:
        return as_tensor([[0, 0, labels, frames]]).expand(size, 4).contiguous()
    spans = integers(boundary, "boundary", device)
    if spans.shape != (size, 4):
        raise ShapeError(f"boundary has shape {list(spans.shape)}; expected [{size}, 4]")
    return spans


def mutual_information_recursion(
    px: Tensor,
    py: Tensor,
    boundary: Any = None,
    return_grad: bool = False,
    *,
    backend: BackendName = "auto",
) -> Any:
    """The sum over monotonic paths of B grids, by the names and arguments of fast_rnnt; (20)-(22) of `fsachain.grid`.

    Args:
        px: [B, S, T + 1]: log-scores of symbol s at frame t, which may be T; or [B, S, T], the modified kind: a symbol
            takes a frame.
        py: [B, S + 1, T]: log-scores of going on to the next frame.
        boundary: [B, 4] integers: s_begin, t_begin, s_end, t_end, from which node to which paths lead; None: 0, 0, S, T.
        return_grad: whether the occupancies come with the sums.

    Returns:
        float64 [B], differentiable in px and py; with `return_grad` the pair (that, (px_grad, py_grad)), shaped as px and
        py: d sum / d px and d sum / d py, without history.

    Raises:
        ShapeError: shapes that do not fit, or a boundary out of range.
    """
    size, labels, frames, _ = check_arcs(px, py)
    if not size:
        raise ShapeError("the batch is empty; expected at least one sequence")
    spans = check_boundary(boundary, size, labels, frames, px.device)
    differentiable = torch.is_grad_enabled() and (px.requires_grad or py.requires_grad)
    scores, occupancy = mutual_information(px, py, spans, backend, differentiable or return_grad)
    return (scores, split_occupancy(occupancy, px, py)) if return_grad else scores
