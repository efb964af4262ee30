"""The grid and its rows, called with torch tensors where these live: on the host, or on a device without waiting for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda.device import Device, DeviceArray
from fsachain.grid import GridBatch, Ints, Rows, constrain, num_cells, num_softmaxes, release


class Placed(NamedTuple):
    """`Rows`, of which a device may know more than the host.

    rows: without targets, and with first labels of 0, where the next two stand for them.
    targets [N, U], first [N, T]: int64 on the device of the logits; None: those of `rows` hold. A target that is no label
        makes the scores NaN.
    illegal [N]: sequences whose scores become NaN; None: none of them.
    """

    rows: Rows
    targets: Any
    first: Any
    illegal: Any


class HostGrid:
    """Equations (20)-(29) of `fsachain.grid` on the host; `dispatch.grid` makes it.

    `recursion` and `rows` are modules such as `cpu.grid` and `cpu.grid_rows`. Tensors are torch's and live together: logits
    [.., V] of any floating-point type; scores and occupancies [K, cells], float64; stats [2 S, R]; log Z [N], float64;
    weights [N], or one of all.
    """

    def __init__(self, recursion: Any, rows: Any) -> None:
        self._recursion, self._rows, self._like = recursion, rows, kinds.to_torch()

    def scores(self, placed: Placed, logits: Any, is_normalized: bool) -> tuple[Any, Any]:
        """Scores (24) of logits or, normalized, log-probs, -inf in padding; and stats, of S = 0 for log-probs."""
        values = np.empty((len(placed.rows.classes), num_cells(placed.rows)))
        values.fill(-np.inf)
        stats = self._rows.row_scores(placed.rows, _host_rows(logits), is_normalized, values)
        return self._like(values), self._like(stats)

    def constrain(self, placed: Placed, scores: Any) -> None:
        """Equation (26), in place."""
        constrain(placed.rows, scores.numpy())

    def release(self, placed: Placed, occupancy: Any) -> None:
        """What (26) asks of occupancies, in place."""
        release(placed.rows, occupancy.numpy())

    def log_probs(self, batch: GridBatch, values: Any) -> Any:
        """log Z (21) of contiguous scores, float32 or float64: -inf without a path, NaN for NaN and +inf."""
        return self._like(self._recursion.log_probs(batch, values.numpy().reshape(-1)))

    def forward_backward(self, batch: GridBatch, values: Any) -> Any:
        """As `log_probs`; scores give way to occupancies (22), 0 in padding and where log Z is not finite."""
        return self._like(self._recursion.forward_backward(batch, values.numpy().reshape(-1)))

    def best_paths(self, batch: GridBatch, values: Any) -> tuple[Any, list[Ints]]:
        """The best paths (23), on the host: scores, float64 [N], and rows (k, t, u)."""
        scores, paths = self._recursion.best_paths(batch, values.numpy().reshape(-1))
        return scores, paths

    def gradient(
        self,
        placed: Placed,
        logits: Any,
        stats: Any,
        occupancy: Any,
        weights: Any,
        limit: float,
        inplace: bool = False,
    ) -> Any:
        """Equation (25) of each row, kept within +-limit, times weights; shaped and typed as the logits.

        `inplace`: written over the logits, which must be contiguous.
        """
        flat, g, factors = _host_rows(logits), occupancy.numpy(), weights.tolist()
        factors = factors if weights.ndim else [factors] * len(placed.rows.sequences)
        # numpy asks for large pages, torch does not: with small ones their first use takes longer than the gradient.
        out = flat if inplace else np.empty(flat.shape, flat.dtype)
        self._rows.row_gradient(placed.rows, flat, stats.numpy(), g, factors, limit, out)
        made = self._like(out.reshape(logits.shape))
        if logits.element_size() >= 4:
            return made
        return logits.copy_(made) if inplace else made.to(logits.dtype)

    def losses_and_gradient(
        self, logits: Any, targets: Any, frames: Any, labels: Any, *options: Any
    ) -> tuple[list[float], Any, bool]:
        """As `cpu.grid_rows.losses_and_gradient`, which no other backend has: a gradient of float32 or float64."""
        rows = _host_rows(logits).reshape(logits.shape)
        given = [np.ascontiguousarray(each.numpy()) for each in (targets, frames, labels)]
        found, out, is_plain = self._rows.losses_and_gradient(rows, *given, *options)
        return found.tolist(), self._like(out), is_plain


def _host_rows(logits: Any) -> Any:
    """Logits as an array [R, V] of float32 or float64, without a copy where they are that and contiguous."""
    wide = logits.detach() if logits.element_size() >= 4 else logits.detach().float()
    return wide.contiguous().numpy().reshape(-1, logits.shape[-1])


class DeviceGrid:
    """As `HostGrid`, on a device; all work is on the stream that is current when a method is called."""

    def __init__(self, like: Any) -> None:
        self._like = like
        cuda_call.find_device(like)

    @property
    def _device(self) -> Device:
        return cuda_call.find_device(self._like)

    def scores(self, placed: Placed, logits: Any, is_normalized: bool) -> tuple[Any, Any]:
        flat, rows = _rows(logits), placed.rows
        values = self._like.new_empty(0).double().new_empty(len(rows.classes), num_cells(rows)).fill_(-np.inf)
        memory = self._of_logits(placed, flat).scores(cuda_call.view(values), is_normalized)
        if placed.illegal is not None:
            values.view(len(values), len(placed.illegal), -1).masked_fill_(placed.illegal.view(-1, 1), np.nan)
        wide = "float64" if logits.element_size() == 8 else "float32"
        return values, memory.array(wide, (0 if is_normalized else 2 * num_softmaxes(rows), len(flat)))

    def constrain(self, placed: Placed, scores: Any) -> None:
        cuda_grid.constrain(self._device, placed.rows, cuda_call.view(scores))

    def release(self, placed: Placed, occupancy: Any) -> None:
        cuda_grid.release(self._device, placed.rows, cuda_call.view(occupancy))

    def log_probs(self, batch: GridBatch, values: Any) -> Any:
        memory = cuda_grid.log_probs(self._device, batch, cuda_call.view(values))
        return memory.array("float64", (len(batch.sizes),))

    def forward_backward(self, batch: GridBatch, values: Any) -> Any:
        memory = cuda_grid.forward_backward(self._device, batch, cuda_call.view(values))
        return memory.array("float64", (len(batch.sizes),))

    def best_paths(self, batch: GridBatch, values: Any) -> tuple[Any, list[Ints]]:
        memory = cuda_grid.best_paths(self._device, batch, cuda_call.view(values))
        data = memory.array("uint8", (memory.num_bytes,)).cpu().numpy()
        return cuda_grid.read_paths(batch, data)

    def gradient(
        self,
        placed: Placed,
        logits: Any,
        stats: Any,
        occupancy: Any,
        weights: Any,
        limit: float,
        inplace: bool = False,
    ) -> Any:
        flat = _rows(logits)
        out = flat if inplace else flat.new_empty(flat.shape)
        factors = weights.double().expand(len(placed.rows.sequences))
        made = cuda_call.view(stats) if len(stats) else None
        work = self._of_logits(placed, flat, cuda_call.view(out))
        work.gradient(made, cuda_call.view(occupancy), cuda_call.view(factors), limit)
        return out.view(logits.shape)

    def _of_logits(self, placed: Placed, flat: Any, out: DeviceArray | None = None) -> cuda_grid.LogitRows:
        def known(array: Any) -> DeviceArray | None:
            return None if array is None else cuda_call.view(array)

        given = self._device, placed.rows, cuda_call.view(flat), out
        return cuda_grid.LogitRows(*given, known(placed.targets), known(placed.first))


def _rows(logits: Any) -> Any:
    return logits.detach().contiguous().view(-1, logits.shape[-1])


Grid = HostGrid | DeviceGrid
