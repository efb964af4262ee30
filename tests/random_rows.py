"""Random rows of transducer logits: padded, packed or pruned, for losses of every kind."""

from typing import NamedTuple

import numpy as np

from fsachain.grid import REGULAR, GridArc, Rows, num_cells

SIZES = np.array([[6, 4], [3, 2], [1, 0], [5, 0], [4, 4]])  # frames and labels
KEPT = 3  # labels of a frame of pruned rows


class Kind(NamedTuple):
    """What is special about a loss: arcs and their classes, how many durations a row ends with, a sigmoid for the blank."""

    arcs: tuple[GridArc, ...]
    classes: tuple[int, ...]
    durations: tuple[int, ...] = ()
    has_sigmoid: bool = False


_BIG = (GridArc(2, 0, 0), GridArc(3, 0, 0))
_TIMED = (GridArc(1, 0, 0), GridArc(2, 0, 0), GridArc(0, 1, 1), GridArc(1, 1, 1), GridArc(2, 1, 1))
KINDS = {
    "regular": Kind(REGULAR, (4, -1)),
    "multi-blank": Kind((*REGULAR, *_BIG), (4, -1, 0, 3)),
    "hat": Kind(REGULAR, (4, -1), has_sigmoid=True),
    "tdt": Kind(_TIMED, (4, 4, -1, -1, -1), durations=(1, 2, 0, 1, 2)),
}


def make_rows(layout, kind, num_classes, sizes=SIZES, seed=0):
    """Rows of these sequences; targets are classes below the blank, 4."""
    count, (most_frames, most_labels) = len(sizes), sizes.max(axis=0)
    sequences = np.zeros((count, 8), np.int64)
    sequences[:, 4:6] = sizes
    steps = sizes[:, 1] + 1 if layout == "packed" else np.full(count, most_labels + 1)
    kept = np.full(count, KEPT) if layout == "pruned" else steps
    frames = sizes[:, 0] if layout == "packed" else np.full(count, most_frames + 1)
    sequences[:, 0] = np.cumsum(kept * frames) - kept * frames
    sequences[:, 1], sequences[:, 2], sequences[:, 3] = kept, frames, kept
    sequences[:, 6] = np.cumsum(steps * frames) - steps * frames
    sequences[:, 7] = steps
    generator = np.random.default_rng(seed)
    first = np.zeros((count, int(frames.max())), np.int64)
    if layout == "pruned":
        first = np.sort(generator.integers(0, most_labels + 2 - KEPT, first.shape), axis=1)
    targets = generator.integers(0, 4, (count, most_labels))
    charges = np.stack([[0.1 * arc.labels for arc in kind.arcs], [0.05] * len(kind.arcs)])
    entries = [num_classes + d for d in kind.durations] or [-1] * len(kind.arcs)
    heads = np.array([num_classes, 4 if kind.has_sigmoid else -1])
    return Rows(sequences, first, targets, np.array(kind.classes), charges, heads, np.array(entries))


def make_logits(rows, scale=1.0, seed=0, padding=np.nan):
    """Float64 [R, width] of magnitude `scale`; rows of no node hold `padding`."""
    count = int((rows.sequences[:, 2] * rows.sequences[:, 3]).sum())
    width = int(max(rows.heads[0], rows.durations.max() + 1))
    logits = scale * np.random.default_rng(seed).normal(size=(count, width))
    logits[~is_real(rows)] = padding
    return logits


def is_real(rows):
    """Which rows are of a node [R]."""
    found = []
    for n, (_, _, frames, per_frame, num_frames, num_labels, _, _) in enumerate(rows.sequences.tolist()):
        t, j = np.indices((frames, per_frame))
        found.append(((t < num_frames) & (rows.first[n, t] + j <= num_labels)).reshape(-1))
    return np.concatenate(found)


def empty_scores(rows):
    """Scores [K, cells] before any row is read."""
    return np.full((len(rows.classes), num_cells(rows)), -np.inf)
