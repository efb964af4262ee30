"""Random grids, and the sum over their paths one by one."""

import numpy as np

from fsachain.grid import FREE, MODIFIED, REGULAR, GridArc, GridBatch, dense_boxes, grid_sizes

# Of a token-and-duration transducer.
DURATIONS = tuple([GridArc(d, 0, 0) for d in (1, 2, 4)] + [GridArc(d, 1, 1) for d in (0, 1, 2, 4)])
MULTI_BLANK = (*REGULAR, GridArc(2, 0, 0), GridArc(3, 0, 0))
TOPOLOGIES = {"regular": REGULAR, "modified": MODIFIED, "free": FREE}
TOPOLOGIES |= {"durations": DURATIONS, "multi-blank": MULTI_BLANK}


def make_grids(arcs, frames, labels, scale=1.0, seed=0, dtype=np.float64, impossible=0.0):
    """A batch of grids and its scores, flat; a share `impossible` of them is -inf."""
    generator = np.random.default_rng(seed)
    count, kinds, most_frames, most_labels = len(frames), len(arcs), max(frames) + 1, max(labels) + 1
    boxes = dense_boxes(count, kinds, most_frames, most_labels)
    batch = GridBatch(np.array(arcs, np.int64), grid_sizes(frames, labels), boxes)
    scores = scale * generator.standard_normal((kinds, count, most_frames, most_labels))
    scores[generator.random(scores.shape) < impossible] = -np.inf
    return batch, scores.astype(dtype).reshape(-1)


def paths(arcs, num_frames, num_labels):
    """Every path from (0, 0) to (T, U), as rows (k, t, u)."""

    def onwards(t, u):
        if (t, u) == (num_frames, num_labels):
            yield []
        for k, (d, label, gap) in enumerate(arcs):
            if u + label <= num_labels and t + d <= num_frames - gap:
                for rest in onwards(t + d, u + label):
                    yield [(k, t, u), *rest]

    return list(onwards(0, 0))


def enumerate_grid(arcs, scores, num_frames, num_labels):
    """log Z, the occupancies like scores [K, T, U], the best score and the first path that has it."""
    found = paths(arcs, num_frames, num_labels)
    totals = np.array([sum(scores[arc] for arc in path) for path in found])
    occupancy = np.zeros(scores.shape)
    if not len(found) or np.isneginf(totals.max()):
        return -np.inf, occupancy, -np.inf, []
    shares = np.exp(totals - totals.max())
    for path, share in zip(found, shares / shares.sum(), strict=True):
        for arc in path:
            occupancy[arc] += share
    log_z = totals.max() + np.log(shares.sum())
    return log_z, occupancy, totals.max(), found[int(totals.argmax())]
