"""CTC on a device, from scores to loss and gradient, through the recursion of `backend`: see ctc.cu and log_softmax.cu.

Targets stay on the device: what is different about them is written into the scores of an acceptor that depends on nothing
but the length of a target, rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import Lengths
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda.device import (
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    address,
    macros,
    strided,
)
from fsachain.backends.cuda.memory import Memory
from fsachain.batch import TableBatch
from fsachain.fsa import Floats, Fsa
from fsachain.graph.ctc import CtcTopology
from fsachain.table import TransitionTable, compile_table

COLUMNS = 4  # of a label, see `ctc.cu`
ROUNDING = 8  # labels: as many lengths of targets share an acceptor


class Targets(NamedTuple):
    """Labels of all sequences.

    labels: int32 or int64 [N, U], or [sum of lengths], one target after another; or int64 [N, U] of the host, sent along
    with the lengths, int64 [N] on the host.
    """

    labels: DeviceArray | npt.NDArray[np.int64]
    lengths: Lengths


class Task(NamedTuple):
    """What is asked for beside scores and targets.

    normalizes: scores are logits, whose log-softmax is part of the loss; else they are taken as log-probabilities, and
    their own derivatives are made. log_priors: float64 [C] on the host, taken off the scores; None for none.
    delay_penalty: in nats for each frame, see `fsachain.backends.ctc`. shares: float64 [N] on the host, what each loss
    counts in the total and its derivatives in the gradient; None: ones.
    """

    blank: int
    normalizes: bool = True
    topology: CtcTopology = "standard"
    log_priors: Floats | None = None
    delay_penalty: float = 0.0
    shares: Floats | None = None

    @property
    def rounding(self) -> float:
        """How far below 0 rounding may bring a loss for each frame; 0 where scores need not be probabilities."""
        is_probability = self.log_priors is None and self.delay_penalty == 0.0
        return 8.0 * float(np.finfo(np.float32).eps) if is_probability else 0.0


class Sizes(NamedTuple):
    """Threads of a block, multiples of 32: of kernels whose warps take a frame each, and of those for a target."""

    rows: int = 256
    targets: int = 128


DEFAULT_SIZES = Sizes()


def ctc(
    device: Device,
    scores: DeviceArray,
    targets: Targets,
    lengths: Lengths,
    task: Task,
    gradient: DeviceArray | None,
    memory_budget: float | None = None,
    sizes: Sizes = DEFAULT_SIZES,
    reduced: cuda.Reduced | None = None,
) -> Memory:
    """The CTC loss of every sequence, float64 [N] on the device, and its share's derivative by the scores; nothing waits.

    The loss is +inf where there is no path, NaN for an illegal score and for a label that is the blank or no class;
    there the gradient is 0. The caller has checked shapes and lengths.

    scores [N, T, C] are of any type, lengths [N] on the host. gradient [N, T, C]: float64 for float64 scores, else
    float32; all of it is written; None: no gradient, no beta. memory_budget: as for `backend.add_occupancy`. reduced: what
    else is made of the losses.
    """
    size, num_frames, num_classes = scores.shape
    dtype = "float64" if scores.dtype == "float64" else "float32"
    defines = macros(ELEMENT=scores, OUT=dtype)
    shape = size, num_frames
    given = targets.labels
    sent = [lengths, targets.lengths, np.ones(size) if task.shares is None else task.shares]
    frames, counts, shares, *rest = device.upload(
        [*sent, *([given] if isinstance(given, np.ndarray) else [])]
    )
    if isinstance(given, np.ndarray):
        given = DeviceArray(rest[0].pointer, "int64", given.shape, (given.shape[1], 1), rest[0])

    def launch(text: str, name: str, arguments: Sequence[Argument]) -> None:
        """A kernel that takes a warp for a frame."""
        grid = max(1, -(-size * num_frames // (sizes.rows // 32)))
        device.launch(KernelSpec(text, name, defines), grid, sizes.rows, 0, arguments)

    # Labels in 32 bits, where they repeat, and whether they are legal.
    most = int(targets.lengths.max(initial=0))  # each target has room for so many labels
    width = COLUMNS * int(_rounded(targets.lengths).max(initial=0)) + 1
    softmax_bytes = 8 * size * num_frames if task.normalizes else 0
    labels, links, legal, log_sums, loss = device.pieces(
        [4 * size * most, 4 * size * most, 8 * size, softmax_bytes, 8 * size]
    )
    linked = labels.pointer, links.pointer, legal.pointer
    by_sequence = given.strides[0] if len(given.shape) == 2 else -1
    device.launch(
        KernelSpec("ctc.cu", "ctc_links", (*defines, *macros(INTEGER=given))),
        size,
        sizes.targets,
        0,
        [
            *(given.pointer, by_sequence, given.strides[-1], counts.pointer),
            *(most, num_classes, task.blank, *linked),
        ],
    )
    label_sizes = most, task.blank, width

    if task.normalizes:  # the softmax goes to the gradient
        arguments = [
            *strided(scores),
            *shape,
            num_classes,
            frames.pointer,
            shares.pointer,
            log_sums.pointer,
            *strided(gradient),
        ]
        launch("log_softmax.cu", "log_softmax", arguments)

    # The scores of the acceptors' columns, and zeros for their occupancies, if there is a gradient.
    columns = _new_array(device, (size, num_frames, width), dtype)
    occupancy = None if gradient is None else _new_array(device, (size, num_frames, width), dtype)
    priors: Memory | None = None
    if task.log_priors is not None:
        (priors,) = device.upload([task.log_priors])
    after_blank = int(task.topology in ("standard", "compact"))
    doubles = int(task.topology in ("compact", "minimal"))
    launch(
        "ctc.cu",
        "ctc_column_rows",
        [
            *(*strided(scores), *shape, frames.pointer, labels.pointer, legal.pointer, *label_sizes),
            *(after_blank, doubles, address(priors), float(task.delay_penalty)),
            *(columns.pointer, address(occupancy)),
        ],
    )
    batch = templates(tuple(_rounded(targets.lengths).tolist()))
    inputs = device, batch, columns, lengths, 0.0
    if occupancy is None:
        log_prob, _ = cuda.log_probs(*inputs)
    else:
        log_prob, _ = cuda.add_occupancy(*inputs, shares, occupancy, memory_budget)

    device.launch(
        KernelSpec("ctc.cu", "ctc_loss", defines),
        size,
        sizes.targets,
        sizes.targets // 32 * 8,
        [
            *(log_sums.pointer if task.normalizes else 0, log_prob.pointer, frames.pointer, legal.pointer),
            *(num_frames, task.rounding, loss.pointer),
        ],
    )
    if reduced is not None:
        cuda.reduce_losses(device, loss, False, size, shares, reduced)
    if occupancy is not None:
        launch(
            "ctc.cu",
            "ctc_gradient_rows",
            [
                *(
                    loss.pointer,
                    frames.pointer,
                    *linked,
                    *label_sizes,
                    int(task.normalizes),
                    occupancy.pointer,
                ),
                *(*shape, num_classes, *strided(gradient)),
            ],
        )
    return loss


def _new_array(device: Device, shape: tuple[int, int, int], dtype: str) -> DeviceArray:
    memory = device.empty(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return DeviceArray(memory.pointer, dtype, shape, (shape[1] * shape[2], shape[2], 1), memory)


def _rounded(lengths: Lengths) -> Lengths:
    return -(-lengths // ROUNDING) * ROUNDING


@lru_cache(maxsize=64)
def templates(lengths: tuple[int, ...]) -> TableBatch:
    """The acceptors for targets of these lengths, multiples of ROUNDING."""
    return TableBatch.pack([template(length) for length in lengths])


@lru_cache(maxsize=1024)
def template(length: int) -> TransitionTable:
    """The acceptor of all targets of up to `length` labels; its pdfs are the columns of `ctc.cu`."""
    blank, label = 1 + 2 * np.arange(length + 1), 2 + 2 * np.arange(length)
    labels = COLUMNS * np.arange(length)
    parts = [
        (blank, blank, COLUMNS * np.arange(length + 1)),
        (label, blank[1:], labels + COLUMNS),
        (label, label, labels + 1),
        (blank[:-1], label, labels + 2),
        (label[:-1], label[1:], labels[1:] + 3),
        (np.zeros(1, int), blank[:1], np.zeros(1, int)),
        (np.zeros(len(label[:1]), int), label[:1], labels[:1] + 2),
    ]
    src, dst, column = (np.concatenate(column) for column in zip(*parts, strict=True))
    num_states = 2 * length + 2
    fsa = Fsa(num_states, src, dst, column, np.zeros(len(src)), np.zeros(num_states))
    return compile_table(fsa, COLUMNS * length + 1)
