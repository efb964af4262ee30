"""The driver of `penalties.cu`: what large scores cost, and the derivatives, without leaving the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_device import Device, DeviceArray, KernelSpec, Memory
from fsachain.backends.cuda_elements import element, nowhere, place_of

DOUBLE = 8  # bytes
THREADS = 256
ROWS = 32  # frames of a block


def add_penalties(
    device: Device,
    scores: DeviceArray,
    lengths: npt.NDArray[np.int64],
    weights: Memory | DeviceArray,
    factors: tuple[float, float, float],
    out: DeviceArray | None,
    threads: int = THREADS,
) -> Memory:
    """Penalties on large scores and their derivatives; see `reference.add_penalties`.

    Args:
        device: where everything happens.
        scores: [N, T, P]; out, of the same shape, float32 or float64, or None where no derivative is wanted.
        lengths: [N] on the host.
        weights: float64 [N] on the device; sequences of weight 0 are not looked at.
        factors: l2, o and the limit L.
        out: see scores.
        threads: of a block, a multiple of 32, at most 256; the order of the sums depends on it.

    Returns:
        float64 [2] on the device: -1/2 l2 sum w y^2 and -1/2 o sum w (|y| - L)_+^2.
    """
    size, _, num_pdfs = scores.shape
    l2, out_of_range, limit = (np.float64(factor) for factor in factors)
    blocks = max(1, -(-int(lengths.max(initial=0)) // ROWS))
    (on_device,) = device.upload([lengths])
    sums, terms = device.empty(2 * DOUBLE * size * blocks), device.empty(2 * DOUBLE)
    into = nowhere() if out is None else place_of(out)
    factor_of = np.uint64(weights.pointer)
    types = element(scores), ("OUT", "float") if out is None else element(out, "OUT")
    read = KernelSpec("penalties.cu", "penalties", (*types, ("ROWS", ROWS)))
    add = KernelSpec("penalties.cu", "penalty_terms", (*types, ("ROWS", ROWS)))
    shared = threads // 32 * DOUBLE
    arguments = [*place_of(scores), np.int64(num_pdfs), on_device, factor_of, l2, out_of_range, limit]
    device.launch(read, (blocks, size), threads, shared, [*arguments, *into, sums])
    counts = np.int64(blocks), np.int64(size)
    device.launch(add, 1, threads, shared, [sums, *counts, on_device, factor_of, l2, out_of_range, terms])
    return terms
