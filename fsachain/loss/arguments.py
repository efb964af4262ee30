"""The arguments of the transducer losses, checked, where their rows and cells lie, and what losses are reduced to.

Rows are nodes' logits: padded [N, T, U + 1, V]; packed [sum of T_n (U_n + 1), V], frame by frame; or pruned [N, T, R, V],
of which row (n, t, r) is the node (t, ranges[n, t, r]).
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.grid_call import Placed
from fsachain.errors import (
    BackendUnavailable,
    ConfigError,
    ShapeError,
    as_number,
    check_finite,
    counted,
    integer,
    warn_once,
)
from fsachain.grid import TOPOLOGIES, Ints, Rows
from fsachain.loss.autograd import as_tensor, refuse_jit_trace
from fsachain.loss.registered import is_traced_number

Span = tuple[int, int, int, int]


class NormalizationWarning(UserWarning):
    """Rows of log-probabilities do not sum to one."""


def most_off(dtype: torch.dtype) -> float:
    """How far probabilities of a row may sum from one by rounding of their logs.

    Log-probabilities down to -16 that are rounded by half a unit may miss one by 8 units.
    """
    return max(1e-3, 16.0 * torch.finfo(dtype).eps)


REDUCTIONS = ("none", "mean", "sum")
_NO_RANGES = torch.zeros(0, 0, 0, dtype=torch.int64, device="cpu")
_NO_STARTS = torch.zeros(0, 2, dtype=torch.int64, device="cpu")


class Given(NamedTuple):
    """What the operators take beside the logits, tensors as int64 on the host.

    targets [N, U]; frames, labels [N]: T_n and U_n; starts [N, 2]: first frame and label, [0, 2] where all are 0; ranges:
    [N, T, R] of pruned logits, [0, 0, 0] otherwise. Targets and ranges that were on the device of the logits stay there: no
    host waits for them.
    """

    targets: Tensor
    frames: Tensor
    labels: Tensor
    starts: Tensor
    ranges: Tensor


def spans(given: Any) -> list[Span]:
    """First frame and label, T_n and U_n of each sequence of a `Given`, or of another tuple that has its fields."""
    ends = given.frames.tolist(), given.labels.tolist()
    starts = given.starts.T.tolist() if given.starts.numel() else [[0] * len(ends[0])] * 2
    return list(zip(*starts, *ends, strict=True))


PADDED, PACKED = "[N, T, U + 1, V]", "[sum of T_n (U_n + 1), V]"  # layouts of logits


def check_logits(logits: Any, name: str, *layouts: str) -> None:
    refuse_jit_trace()
    if not isinstance(logits, Tensor):
        raise ShapeError(f"{name} is a {type(logits).__name__}; expected a torch tensor")
    if not logits.is_floating_point():
        raise ShapeError(f"{name} has dtype {logits.dtype}; expected float16, bfloat16, float32 or float64")
    if logits.ndim not in [layout.count(",") + 1 for layout in layouts]:
        raise ShapeError(f"{name} has shape {list(logits.shape)}; expected {' or '.join(layouts)}")
    if not (logits.is_cpu or logits.is_cuda):
        raise BackendUnavailable(f"{name} is on {logits.device}; expected a CPU or CUDA tensor")


def check_beside(tensor: Tensor, name: str, other: Tensor, other_name: str) -> None:
    if tensor.device != other.device:
        raise BackendUnavailable(f"{name} is on {tensor.device}; expected {other.device}, as {other_name}")


def integers(values: Any, name: str, device: torch.device) -> Tensor:
    """Lists, arrays and tensors of integers as an int64 tensor on the host, which waits for those of a device; a copy."""
    return _on_host(own(_integers(values, name, device)))


def integers_there(values: Any, name: str, device: torch.device) -> Tensor:
    """As int64 on the device where they are: that of the logits, or the host.

    Those on the host are copied: backward does not check again what the caller may have written over.
    """
    return own(_integers(values, name, device))


def own(tensor: Tensor) -> Tensor:
    """A copy of what the host has, which the caller may write over."""
    return tensor.clone() if tensor.is_cpu else tensor


def _on_host(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cpu else tensor.cpu()


def _integers(values: Any, name: str, device: torch.device) -> Tensor:
    """The caller's own tensor, if it is of int64."""
    if isinstance(values, Tensor) and values.is_cpu and values.dtype == torch.int64:
        return values
    tensor = as_tensor(values, name=name)
    if tensor.device.type != "cpu" and tensor.device != device:
        raise ShapeError(f"{name} is on {tensor.device}; expected {device}, as the logits, or the host")
    is_of_integers = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.numel() and not is_of_integers:  # an empty list becomes a tensor of floats
        raise ShapeError(f"{name} has dtype {tensor.dtype}; expected integers")
    return tensor.to(torch.int64)


def class_index(value: int, width: int, name: str) -> int:
    """A class counted from 0; negative ones count from the end, as torchaudio's blank -1."""
    expected = f"a class of {width}, or one counted from the end"
    value = integer(name, value, expected=expected)
    if not -width <= value < width:
        raise ConfigError(f"{name} = {value}; expected {expected}")
    return value % width


def check_choice(value: str, name: str, choices: Any) -> None:
    if value not in choices:
        raise ConfigError(f"{name} = {value!r}; expected one of {list(choices)}")


# Numbers may be tensors where a compiler traces: see `registered.number_option`.


def check_clamp(name: str, value: Any) -> Any:
    """The largest magnitude of an entry of the gradient: inf where the option is not above 0."""
    if is_traced_number(name, value):
        return torch.where(value > 0, value, math.inf)
    if not (as_number(name, value) > 0 or value <= 0):
        raise ConfigError(f"{name} = {value}; expected a number, above 0 where the gradient is to be clamped")
    return float(value) if value > 0 else math.inf


def check_fastemit(name: str, value: Any) -> Any:
    """lambda of (27)."""
    return value if is_traced_number(name, value) else check_finite(name, value, least=0.0)


def check_penalty(name: str, value: Any) -> Any:
    return value if is_traced_number(name, value) else check_finite(name, value)


def is_set(value: Any) -> bool:
    """Whether a number is not 0; one that only a compiler's code will know counts as 0."""
    return not isinstance(value, Tensor) and bool(value)


def share_of(reduction: str, size: int) -> float:
    """What each of `size` losses counts in `reduce_losses`."""
    return 1.0 / size if reduction == "mean" else 1.0


def reduce_losses(
    log_prob: Tensor, reduction: str, zero_infinity: bool = False, is_probability: bool = False
) -> Tensor:
    """-log Z [N], its mean or its sum; with `zero_infinity` an infinite one counts as 0, and NaN stays NaN.

    is_probability: Z is at most 1 but for rounding, so that a loss below 0 is 0; its gradient stays as it is.
    """
    losses = 0 - log_prob  # not -log_prob: the loss of no frames is 0 and not -0
    if is_probability:
        losses = losses - torch.where(losses < 0, losses, 0).detach()
    if zero_infinity:
        losses = torch.where(torch.isposinf(losses), 0, losses)
    check_choice(reduction, "reduction", REDUCTIONS)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def room_for_loss(
    like: Tensor, size: int, reduction: str, zero_infinity: bool, dtype: torch.dtype
) -> tuple[Tensor, cuda.Reduced]:
    """On a device: what `cuda.reduce_losses` of `size` losses writes, and how it is told."""
    is_each = reduction == "none"
    loss = like.new_empty((size,) if is_each else (), dtype=dtype)
    into = (cuda.view(loss), None) if is_each else (None, cuda.view(loss))
    return loss, cuda.Reduced(zero_infinity, *into)


def reduce_on_host(
    losses: list[float], shares: list[float], reduction: str, zero_infinity: bool, dtype: torch.dtype
) -> Tensor:
    """Losses that need no derivative, or their sum, each times its share; `zero_infinity` as in `reduce_losses`.

    Torch's operations on so few numbers take 4 to 7 microseconds more, 3 to 5 % of a small loss.
    """
    if zero_infinity:
        losses = [0.0 if loss == math.inf else loss for loss in losses]
    if reduction == "none":
        return as_tensor(losses, dtype)
    total = sum(map(operator.mul, losses, shares))
    return torch.from_numpy(np.array(total, np.float64 if dtype == torch.float64 else np.float32))


def as_labels(values: Any, name: str) -> tuple[Any, list[int] | None]:
    """Labels as a caller gave them, and how many each sequence has where that can be told from them.

    Label sequences of different lengths, in a list of tensors, arrays or lists, become one tensor [N, U] with zeros behind
    them; what is no such list is returned as it is.
    """
    if not isinstance(values, (list, tuple)) or not values or not all(map(_is_sequence, values)):
        return values, None
    if _are_alike(values):
        return values, None
    rows = [as_tensor(row, name=f"{name}[{n}]") for n, row in enumerate(values)]
    for n, row in enumerate(rows):
        if row.ndim != 1:
            raise ShapeError(
                f"{name}[{n}] has shape {list(row.shape)}; expected the labels of one sequence [U_n], or {name} as one "
                "tensor [N, U] with anything after the labels that target_lengths counts"
            )
    counts = [len(row) for row in rows]
    rows = [
        row if len(row) else row.to(rows[0].device, torch.int64) for row in rows
    ]  # an empty list gives floats
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), counts


def _are_alike(rows: list[Any] | tuple[Any, ...]) -> bool:
    """Whether the rows are lists of one length, which is how a tensor [N, U] is written."""
    return all(isinstance(row, (list, tuple)) and len(row) == len(rows[0]) for row in rows)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)


def check_counts(counts: list[int] | None, lengths: Tensor, name: str, lengths_name: str) -> None:
    """Raise where a length reaches past the labels of a sequence that `as_labels` has padded."""
    if counts is None or len(counts) != len(lengths):
        return  # what is told of shapes names another error
    for n, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        if length > count:
            raise ShapeError(f"{lengths_name}[{n}] = {length}; {name}[{n}] has {counted(count, 'label')}")


def check_topology(rnnt_type: str) -> None:
    check_choice(rnnt_type, "rnnt_type", TOPOLOGIES)


def given(logits: Tensor, targets: Any, logit_lengths: Any, target_lengths: Any) -> Given:
    """Padded or packed logits; values are checked by `make_rows`, and may be the caller's own."""
    frames = _on_host(_integers(logit_lengths, "logit_lengths", logits.device))
    labels = _on_host(_integers(target_lengths, "target_lengths", logits.device))
    if frames.ndim != 1 or labels.shape != frames.shape:
        raise ShapeError(
            f"logit_lengths and target_lengths have shapes {list(frames.shape)} and {list(labels.shape)}; "
            "expected [N] both"
        )
    padded, counts = as_labels(targets, "targets")
    check_counts(counts, labels, "targets", "target_lengths")
    there = _integers(padded, "targets", logits.device)
    return Given(there, frames, labels, _NO_STARTS, _NO_RANGES)


def make_rows(shape: list[int], call: Any) -> Placed:
    """Where rows of logits of this shape and the cells of their scores lie; the values of a `RnntCall` are checked.

    Targets and ranges of a device are not: illegal ones make the loss of their sequence NaN.
    """
    ends, targets, ranges = spans(call), call.targets, call.ranges
    _check_sizes(ends, list(targets.shape))
    is_pruned = ranges.numel() > 0
    if is_pruned and ranges.is_cpu:
        _check_ranges(ranges.numpy(), shape, targets.shape[1])
    sequences = _sequences(shape, ends, targets.shape[1], is_pruned)
    placed = place_rows(shape, sequences, call)
    if placed.targets is None:
        _check_targets(placed.rows.targets, call)
    return placed


def place_rows(shape: list[int], sequences: Ints, call: Any) -> Placed:
    """`make_rows` of arguments that it has checked, with the `sequences` that it made."""
    targets, ranges = call.targets, call.ranges
    placed_targets = placed_first = illegal = first = None
    if targets.is_cpu:
        on_host = np.ascontiguousarray(targets.numpy())
    else:
        on_host, placed_targets = np.empty((len(targets), 0), np.int64), targets
    if ranges.numel():
        if ranges.is_cpu:
            first = np.ascontiguousarray(ranges.numpy()[:, :, 0])
        else:
            placed_first, illegal = _usable_ranges(ranges, shape, targets.shape[1])
    if first is None:
        first = np.zeros((len(sequences), max(sequences[:, 2].tolist())), np.int64)
    return Placed(Rows(sequences, first, on_host, *row_kinds(call)), placed_targets, placed_first, illegal)


def row_kinds(call: Any) -> tuple[Any, ...]:
    """The last fields of `Rows`, which many calls share."""
    kinds = tuple(call.classes), tuple(call.durations), tuple(call.heads), tuple(call.delays)
    return _row_kinds(*kinds, call.sigma)


@lru_cache(maxsize=64)
def _row_kinds(classes: Any, durations: Any, heads: Any, delays: Any, sigma: float) -> tuple[Any, ...]:
    charges = np.array([delays, [sigma] * len(delays)])
    return np.array(classes), charges, np.array(heads), np.array(durations)


def _sequences(shape: list[int], spans: list[Span], num_targets: int, is_pruned: bool) -> Ints:
    """[N, 8], see `grid.Rows`."""
    if len(shape) == 2:
        rows, first = [], 0
        for _, _, num_frames, num_labels in spans:
            per_frame = num_labels + 1
            rows.append((first, per_frame, num_frames, per_frame, num_frames, num_labels, first, per_frame))
            first += num_frames * per_frame
        if first != shape[0]:
            raise ShapeError(
                f"logits has {counted(shape[0], 'row')} (shape {shape}); expected {first}, "
                "the sum of logit_lengths x (target_lengths + 1)"
            )
        return np.array(rows)
    _check_padded(spans, shape, "logits")
    most, (_, frames, labels, _) = max(span[3] for span in spans), shape
    cells = num_targets + 1 if is_pruned else labels
    if most >= cells:
        raise ShapeError(
            f"logits has shape {shape}; expected U + 1 = {most + 1} or more in its third dimension ({PADDED}), one "
            "more than the largest of target_lengths"
        )
    return np.array(
        [
            (n * frames * labels, labels, frames, labels, num_frames, num_labels, n * frames * cells, cells)
            for n, (_, _, num_frames, num_labels) in enumerate(spans)
        ]
    )


def _check_targets(values: Ints, call: Any) -> None:
    """Labels that are no class, or the blank, which is an error only where the softmax of labels is without it."""
    (labels, alone), blanks = call.heads, {c for c in call.classes if c >= 0}
    every = values.reshape(-1).tolist()
    if not every or (0 <= min(every) <= max(every) < labels and blanks.isdisjoint(every)):  # padding, too
        return
    real = np.arange(values.shape[1]) < call.labels.numpy()[:, None]
    for n, u in np.argwhere(real & ((values < 0) | (values >= labels))):
        raise ShapeError(f"targets[{n}, {u}] = {values[n, u]}; expected a class, 0 to {labels - 1}")
    for n, u in np.argwhere(real & np.isin(values, list(blanks)))[:1]:
        message = f"targets[{n}, {u}] = {values[n, u]} is the blank; expected a label: "
        if alone >= 0:
            raise ConfigError(f"{message}the softmax of labels is without the blank")
        warn_once("blank", f"{message}blank=0 says that it is the first class, -1 the last", UserWarning)


def check_frames(given: Given, encoder: list[int], predictor: list[int]) -> None:
    if encoder[0] != predictor[0]:
        raise ShapeError(
            f"encoder_out and predictor_out have shapes {encoder} and {predictor}; expected one N"
        )
    ends = spans(given)
    _check_sizes(ends, list(given.targets.shape))
    _check_padded(ends, encoder, "encoder_out")
    for n, count in enumerate(given.labels.tolist()):
        if count >= predictor[1]:
            raise ShapeError(
                f"target_lengths[{n}] = {count}; expected 0 to {predictor[1] - 1}, as predictor_out {predictor}"
            )


def _check_padded(spans: list[Span], shape: list[int], name: str) -> None:
    if shape[0] != len(spans):
        raise ShapeError(
            f"{name} has {counted(shape[0], 'sequence')} (shape {shape}, [N, T, ...]); expected {len(spans)}"
        )
    for n, (_, _, frames, _) in enumerate(spans):
        if frames > shape[1]:
            raise ShapeError(
                f"logit_lengths[{n}] = {frames}; expected 0 to {shape[1]}, the T of {name} [N, T, ...] = {shape}"
            )


def _check_sizes(spans: list[Span], targets: list[int]) -> None:
    if not spans:
        raise ShapeError("the batch is empty; expected at least one sequence")
    if len(targets) != 2 or targets[0] != len(spans):
        raise ShapeError(f"targets has shape {targets}; expected [{len(spans)}, U]")
    for n, (first, label, frames, count) in enumerate(spans):
        if frames < first:
            raise ShapeError(f"logit_lengths[{n}] = {frames}; expected {first} or more")
        if not label <= count <= targets[1]:
            limit = f"{label} to {targets[1]}, the labels of targets"
            raise ShapeError(f"target_lengths[{n}] = {count}; expected {limit}")


def _check_ranges_shape(ranges: list[int], shape: list[int]) -> None:
    if ranges != shape[:3]:
        raise ShapeError(f"ranges has shape {ranges}; expected {shape[:3]} as logits (shape {shape})")


def _usable_ranges(ranges: Tensor, shape: list[int], labels: int) -> tuple[Tensor, Tensor]:
    """The first labels [N, T] of ranges on a device, within 0 to `labels`, and which sequences had others, [N]."""
    _check_ranges_shape(list(ranges.shape), shape)
    first = ranges[:, :, 0].clamp(0, max(0, labels + 1 - shape[2]))
    steps = first.unsqueeze(2) + torch.arange(shape[2], device=ranges.device)
    return first, (ranges != steps).flatten(1).any(dim=1)


def _check_ranges(ranges: Ints, shape: list[int], labels: int) -> None:
    _check_ranges_shape(list(ranges.shape), shape)
    first = ranges[:, :, 0]
    steps = first[:, :, None] + np.arange(shape[2])
    if (ranges != steps).any() or first.min() < 0 or first.max() + shape[2] > labels + 1:
        raise ShapeError(
            f"ranges is not made of {counted(shape[2], 'successive label')} of 0 to {labels} for each frame; "
            "expected what get_rnnt_prune_ranges returns"
        )
