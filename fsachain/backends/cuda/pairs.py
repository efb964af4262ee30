"""The driver of `pairs.cu`: normalizers that a product of matrices has lost, summed again where the device finds them."""

from __future__ import annotations

import numpy as np

from fsachain.backends.cuda.device import C_TYPES, Argument, Device, DeviceArray, KernelSpec

THREADS = 128
WARP = 32
REALS: dict[str, type[np.floating]] = {"float32": np.float32, "float64": np.float64}


def log_sums(
    device: Device,
    am: DeviceArray,
    lm: DeviceArray,
    sums: DeviceArray,
    least: float,
    out: DeviceArray,
    threads: int = THREADS,
) -> None:
    """out = log sum_c exp(am[n, t, c] + lm[n, s, c]) where `sums` is not above `least`.

    Args:
        device: where everything happens; nothing waits for it.
        am, lm: [N, T, C] and [N, S, C], float32 or float64, contiguous as all arrays here.
        sums, out: [N, S, T] of the same type.
        least: see above; a sum of NaN counts as below.
        threads: of a block, a multiple of 32; no bit depends on it.
    """
    (size, frames, width), positions = am.shape, lm.shape[1]
    pairs = size * positions * frames
    if not pairs:
        return
    blocks = -(-pairs // threads)
    arguments = [
        *_given(am, lm, sums, least),
        *_counts(frames, positions, width, pairs),
        np.uint64(out.pointer),
    ]
    device.launch(_kernel("pair_log_sums", am, threads), blocks, threads, 0, arguments)


def add_gradient(
    device: Device,
    am: DeviceArray,
    lm: DeviceArray,
    sums: DeviceArray,
    least: float,
    normalizer: DeviceArray,
    factors: DeviceArray,
    by_am: DeviceArray,
    by_lm: DeviceArray,
    threads: int = THREADS,
) -> None:
    """Add factors [N, S, T] times the derivatives of the pairs of `log_sums` to by_am [N, T, C] and by_lm [N, S, C].

    normalizer: [N, S, T], what `log_sums` has left there. The others: see `log_sums`.
    """
    size, frames, width = am.shape
    kernel, values = _kernel("pair_gradient", am, threads), (normalizer, factors)
    for own, other, steps, into in ((am, lm, (1, frames), by_am), (lm, am, (frames, 1), by_lm)):
        rows, others = size * own.shape[1], other.shape[1]
        if not rows or not others:
            continue
        arguments = [*_given(own, other, sums, least), *(np.uint64(array.pointer) for array in values)]
        arguments += _counts(own.shape[1], others, *steps, width, rows)
        blocks = -(-rows // (threads // WARP))
        device.launch(kernel, blocks, threads, 0, [*arguments, np.uint64(into.pointer)])


def _kernel(name: str, like: DeviceArray, threads: int) -> KernelSpec:
    return KernelSpec("pairs.cu", name, (("ELEMENT", C_TYPES[like.dtype]), ("THREADS", threads)))


def _given(first: DeviceArray, second: DeviceArray, sums: DeviceArray, least: float) -> list[Argument]:
    number: Argument = REALS[first.dtype](least)
    return [*(np.uint64(array.pointer) for array in (first, second, sums)), number]


def _counts(*counts: int) -> list[Argument]:
    return [np.int64(count) for count in counts]
