"""Ragged tensors: the part of `k2.RaggedTensor` and `k2.ragged` that trainings use."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fsachain.errors import ShapeError, counted


class RaggedShape:
    """Row splits of every axis but the first.

    Args:
        splits: one int32 tensor [rows + 1] for each axis from 1 on.
    """

    def __init__(self, splits: Sequence[Tensor]) -> None:
        self._splits = [split.to(torch.int32) for split in splits]

    @property
    def num_axes(self) -> int:
        """Number of axes, 2 or more."""
        return len(self._splits) + 1

    @property
    def dim0(self) -> int:
        """Number of rows of axis 0."""
        return len(self._splits[0]) - 1

    @property
    def device(self) -> torch.device:
        """Where the splits live."""
        return self._splits[0].device

    def row_splits(self, axis: int) -> Tensor:
        """Return the splits of an axis >= 1, int32 [rows + 1]."""
        return self._splits[axis - 1]

    def row_ids(self, axis: int) -> Tensor:
        """Return the row of each element of an axis >= 1, int32."""
        split = self._splits[axis - 1]
        rows = torch.arange(len(split) - 1, dtype=torch.int32, device=split.device)
        return rows.repeat_interleave((split[1:] - split[:-1]).long())

    def tot_size(self, axis: int) -> int:
        """Return the number of elements of an axis over all rows."""
        return self.dim0 if axis == 0 else int(self._splits[axis - 1][-1])

    def numel(self) -> int:
        """Return the number of values."""
        return self.tot_size(self.num_axes - 1)

    def remove_axis(self, axis: int) -> RaggedShape:
        """Return the shape without an axis, whose rows join those of the axis above."""
        splits = list(self._splits)
        if axis == 0:
            return RaggedShape(splits[1:])
        removed = splits.pop(axis - 1)
        if axis - 1 < len(splits):
            splits[axis - 1] = splits[axis - 1][removed.long()]
        return RaggedShape(splits)

    def to(self, device: Any) -> RaggedShape:
        """Return the shape on a device."""
        return RaggedShape([split.to(device) for split in self._splits])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedShape) or self.num_axes != other.num_axes:
            return False
        return all(torch.equal(a, b) for a, b in zip(self._splits, other._splits, strict=True))


def _flatten(rows: Any, depth: int, splits: list[list[int]]) -> list[Any]:
    for _ in range(depth):
        split = [0]
        for row in rows:
            split.append(split[-1] + len(row))
        splits.append(split)
        rows = [entry for row in rows for entry in row]
    return list(rows)


def _depth(rows: Any) -> int:
    """Levels of lists below the outermost one."""
    depths = [1 + _depth(row) for row in rows if isinstance(row, list | tuple)]
    return max(depths, default=0)


class RaggedTensor:
    """Values in rows of different lengths, with any number of axes.

    Args:
        data: nested lists, a string such as "[[1 2] [3]]", a tensor [rows, columns], or a `RaggedShape` for `values`.
        values: [numel] if `data` is a shape.
        dtype: of the values; by default int32 for integers and float32 for other numbers.
        device: where the values live.

    Raises:
        ShapeError: lists without a second axis, or values that do not fit the shape.
    """

    def __init__(self, data: Any, values: Any = None, *, dtype: Any = None, device: Any = None) -> None:
        if isinstance(data, RaggedShape):
            self.shape, self.values = data, torch.as_tensor(values)
        elif isinstance(data, Tensor):
            rows, columns = data.shape
            split = torch.arange(rows + 1, dtype=torch.int32, device=data.device) * columns
            self.shape, self.values = RaggedShape([split]), data.reshape(-1)
        else:
            if isinstance(data, str):
                data = ast.literal_eval(re.sub(r"(?<=[\]\d.])\s+(?=[\[\d.+-])", ", ", data.strip()))
            is_nested = isinstance(data, list | tuple) and all(isinstance(row, list | tuple) for row in data)
            if not is_nested:
                raise ShapeError("a ragged tensor needs two axes or more; expected lists of lists")
            splits: list[list[int]] = []
            flat = _flatten(data, max(1, _depth(data)), splits)
            kind = torch.float32 if any(isinstance(entry, float) for entry in flat) else torch.int32
            self.values = torch.tensor(flat, dtype=dtype or kind, device=device)
            self.shape = RaggedShape([torch.tensor(s, dtype=torch.int32, device=device) for s in splits])
        if dtype is not None or device is not None:
            self.values = self.values.to(dtype=dtype, device=device)
            self.shape = self.shape.to(self.values.device)
        if len(self.values) != self.shape.numel():
            raise ShapeError(
                f"values has {counted(len(self.values), 'entry')}; expected {self.shape.numel()}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values live."""
        return self.values.device

    @property
    def num_axes(self) -> int:
        """Number of axes, 2 or more."""
        return self.shape.num_axes

    @property
    def dim0(self) -> int:
        """Number of rows of axis 0."""
        return self.shape.dim0

    def numel(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def tot_size(self, axis: int) -> int:
        """Return the number of elements of an axis over all rows."""
        return self.shape.tot_size(axis)

    def to(self, target: Any) -> RaggedTensor:
        """Return the tensor on a device or in a dtype."""
        values = self.values.to(target)
        return RaggedTensor(self.shape.to(values.device), values)

    def tolist(self) -> list[Any]:
        """Return nested lists."""
        nested = self.values.tolist()
        for axis in range(self.num_axes - 1, 0, -1):
            split = self.shape.row_splits(axis).tolist()
            nested = [nested[a:b] for a, b in itertools.pairwise(split)]
        return list(nested)

    def __getitem__(self, row: int) -> Any:
        """Return a row: a tensor of two axes gives a dense vector, one of more axes a ragged tensor."""
        first, last = self.shape.row_splits(1)[row : row + 2].tolist()
        if self.num_axes == 2:
            return self.values[first:last]
        return self.index(torch.tensor([row], device=self.device)).remove_axis(0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedTensor) or self.shape != other.shape:
            return False
        return torch.equal(self.values, other.values)

    def __repr__(self) -> str:
        return f"RaggedTensor({self.tolist()}, dtype={self.dtype})"

    def pad(self, mode: str = "constant", padding_value: Any = 0) -> Tensor:
        """Return [rows, longest row] for a tensor of two axes.

        Raises:
            ShapeError: another mode than "constant".
        """
        if mode != "constant":
            raise ShapeError(f"mode = {mode!r}; expected 'constant'")
        split = self.shape.row_splits(1).long()
        sizes = split[1:] - split[:-1]
        padded = self.values.new_full((self.dim0, int(sizes.max()) if len(sizes) else 0), padding_value)
        rows = self.shape.row_ids(1).long()
        columns = torch.arange(len(rows), device=rows.device) - split[rows]
        return padded.index_put((rows, columns), self.values)

    def sum(self, initial_value: float = 0.0) -> Tensor:
        """Return the sum of each row of the last axis, differentiable."""
        rows = self.shape.row_ids(self.num_axes - 1).long()
        sums = self.values.new_full((self.shape.tot_size(self.num_axes - 2),), initial_value)
        return sums.index_add(0, rows, self.values)

    def argmax(self, initial_value: Any = None) -> Tensor:
        """Return the index into `values` of the largest value of each row of the last axis, int32; -1 for empty rows."""
        split = self.shape.row_splits(self.num_axes - 1).tolist()
        found = [
            first + int(self.values[first:last].argmax()) if last > first else -1
            for first, last in itertools.pairwise(split)
        ]
        return torch.tensor(found, dtype=torch.int32, device=self.device)

    def normalize(self, use_log: bool) -> RaggedTensor:
        """Return values that sum to one over each row of the last axis, or their logs, as the values are."""
        rows = self.shape.row_ids(self.num_axes - 1).long()
        count = self.shape.tot_size(self.num_axes - 2)
        if not use_log:
            return RaggedTensor(self.shape, self.values / self.sum()[rows])
        largest = self.values.new_full((count,), -torch.inf)
        largest = largest.scatter_reduce(0, rows, self.values.detach(), "amax")
        sums = torch.zeros_like(largest).index_add(0, rows, (self.values - largest[rows]).exp())
        return RaggedTensor(self.shape, self.values - (sums.log() + largest)[rows])

    def remove_axis(self, axis: int) -> RaggedTensor:
        """Return the same values without an axis, see `RaggedShape.remove_axis`."""
        return RaggedTensor(self.shape.remove_axis(axis), self.values)

    def _filtered(self, keep: Tensor) -> RaggedTensor:
        before = torch.nn.functional.pad(keep.int().cumsum(0), (1, 0))
        splits = [self.shape.row_splits(axis) for axis in range(1, self.num_axes)]
        splits[-1] = before[splits[-1].long()]
        return RaggedTensor(RaggedShape(splits), self.values[keep])

    def remove_values_eq(self, value: Any) -> RaggedTensor:
        """Return the tensor without values equal to `value`."""
        return self._filtered(self.values != value)

    def remove_values_leq(self, value: Any) -> RaggedTensor:
        """Return the tensor without values of at most `value`."""
        return self._filtered(self.values > value)

    def index(self, indexes: Any, axis: int = 0, need_value_indexes: bool = False) -> Any:
        """Return the rows of axis 0 at `indexes`, a tensor or a ragged tensor, which adds its axes in front.

        Args:
            indexes: integers, rows of this tensor.
            axis: 0.
            need_value_indexes: whether to return (rows, indexes of their values) for a tensor of indexes.
        """
        chosen = (indexes.values if isinstance(indexes, RaggedTensor) else indexes).long()
        front = indexes.shape._splits if isinstance(indexes, RaggedTensor) else []
        splits: list[Tensor] = []
        for level in range(1, self.num_axes):
            split = self.shape.row_splits(level).long()
            sizes = split[1:][chosen] - split[:-1][chosen]
            new_split = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
            offsets = (split[:-1][chosen] - new_split[:-1]).repeat_interleave(sizes)
            chosen = offsets + torch.arange(len(offsets), device=offsets.device)
            splits.append(new_split)
        rows = RaggedTensor(RaggedShape([*front, *splits]), self.values[chosen])
        if isinstance(indexes, RaggedTensor) or not need_value_indexes:
            return rows
        return rows, chosen.to(torch.int32)


def create_ragged_shape2(
    row_splits: Tensor | None = None, row_ids: Tensor | None = None, cached_tot_size: int = -1
) -> RaggedShape:
    """Return a shape of two axes from row splits [rows + 1], or from row ids [elements] in ascending order."""
    if row_splits is None:
        if row_ids is None:
            raise ShapeError("neither row_splits nor row_ids is set; expected one of them")
        counts = torch.bincount(row_ids.long())
        row_splits = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return RaggedShape([row_splits])


def cat(srcs: Sequence[RaggedTensor], axis: int) -> RaggedTensor:
    """Join ragged tensors of two axes: axis 0 puts rows after rows, axis 1 joins rows of the same number.

    Raises:
        ShapeError: another axis, or other numbers of rows for axis 1.
    """
    if axis == 0:
        sizes = [src.shape.row_splits(1)[1:] - src.shape.row_splits(1)[:-1] for src in srcs]
        split = torch.nn.functional.pad(torch.cat(sizes).cumsum(0), (1, 0))
        return RaggedTensor(RaggedShape([split]), torch.cat([src.values for src in srcs]))
    if axis != 1 or len({src.dim0 for src in srcs}) != 1:
        raise ShapeError(
            f"axis = {axis}, numbers of rows {[src.dim0 for src in srcs]}; expected axis 0, or 1 and equal numbers of rows"
        )
    joined = cat(srcs, 0)
    order = torch.arange(joined.dim0, device=joined.device).view(len(srcs), -1).t().reshape(-1)
    rows = joined.index(order)
    return RaggedTensor(RaggedShape([rows.shape.row_splits(1)[:: len(srcs)]]), rows.values)


def index(src: Tensor, indexes: RaggedTensor, default_value: Any = 0) -> RaggedTensor:
    """Return src [entries] at ragged indexes; -1 gives `default_value`."""
    return RaggedTensor(indexes.shape, index_select(src, indexes.values, default_value))


def index_select(src: Tensor, indexes: Tensor, default_value: Any = 0) -> Tensor:
    """Return src [entries, ..] at indexes [n]; -1 gives `default_value`."""
    chosen = indexes.long()
    if not len(src):
        return src.new_full((len(chosen), *src.shape[1:]), default_value)
    values = src[chosen.clamp(min=0)]
    absent = (chosen < 0).view(-1, *[1] * (src.ndim - 1))
    return torch.where(absent, torch.as_tensor(default_value, dtype=src.dtype, device=src.device), values)
