"""Small lattices, logs and graphs for the tests of pictures. PyTorch is imported by those that need it."""

import numpy as np

from fsachain import Fsa
from fsachain.asr.decode.ctm import CtmEntry
from fsachain.asr.plot import (
    OccupancyPanel,
    TrellisPair,
    plot_alignment,
    plot_occupancy,
    plot_training,
    plot_trellis,
    plot_wer,
)

HOSTILE = "<script>alert(1)</script> $\\frac{1}{0$ & \"' -- \x07\x00]]>"


def lattice_inputs(frames=(7, 5), labels=(3, 2), num_classes=6, seed=0):
    """Logits, targets and lengths of a batch, as `rnnt_loss` takes them; blank is the last class."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (len(frames), max(frames), max(labels) + 1, num_classes)
    targets = torch.randint(0, num_classes - 1, (len(frames), max(labels)), generator=generator)
    return torch.randn(shape, generator=generator), targets, torch.tensor(frames), torch.tensor(labels)


def planted_lattice(steps, num_frames, labels, num_classes=6):
    """A lattice in which the path that emits label u at frame `steps[u]` has nearly all probability."""
    import torch

    from fsachain import rnnt_lattice

    logits = torch.zeros(1, num_frames, len(labels) + 1, num_classes)
    logits[..., -1] = 30.0
    for u, t in enumerate(steps):
        logits[0, t, u, labels[u]] = 60.0
    sizes = torch.tensor([num_frames]), torch.tensor([len(labels)])
    return rnnt_lattice(logits, torch.tensor([labels]), *sizes)


def planted_nodes(steps, num_frames):
    """The nodes (t, u) of that path, worked out by hand."""
    nodes, u = [], 0
    for t in range(num_frames):
        nodes.append((t, u))
        while u < len(steps) and steps[u] == t:
            u += 1
            nodes.append((t, u))
    return nodes


def small_fsa():
    """Two ways from 0 to 2, one with a loop; state 2 is final with a weight."""
    log_prob = [-0.1, -0.5, -1.5, -2.0]
    return Fsa(3, [0, 1, 1, 0], [1, 1, 2, 2], [0, 1, 2, 3], log_prob, [-np.inf, -np.inf, -0.7])


def large_fsa(num_arcs, num_states=5000, seed=3):
    """A random graph that is connected along its states."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_states, (2, num_arcs))
    src[: num_states - 1], dst[: num_states - 1] = np.arange(num_states - 1), np.arange(1, num_states)
    pdf, log_prob = rng.integers(0, 50, num_arcs), np.log(rng.uniform(0.01, 1, num_arcs))
    return Fsa(
        num_states, src, dst, pdf, log_prob, np.where(np.arange(num_states) == num_states - 1, 0.0, -np.inf)
    )


def epoch(number, **values):
    """One epoch's line of train.jsonl."""
    figures = {
        "objf": -1.0 / number,
        "num": 2.0,
        "den": 2.5 + number,
        "excluded": number,
        "skipped_batches": 0,
    }
    event = {"event": "epoch", "epoch": number, "learning_rate": 0.01 * number, "train": figures, "dev": None}
    return {**event, **values}


def entries(*labels, start=0.1, duration=0.2):
    """Segments that touch."""
    return [CtmEntry("u1", start + k * duration, duration, label) for k, label in enumerate(labels)]


def every_figure():
    """One figure of each kind, with hostile names."""
    counts = {"substitutions": 1, "deletions": 0, "insertions": 0, "words": 3, "utterances": 1}
    cells = np.full((3, 2), 0.5)
    return {
        "occupancy": plot_occupancy(OccupancyPanel(cells, [HOSTILE], [(0, 0)], HOSTILE)),
        "trellis": plot_trellis(TrellisPair(cells, cells, (HOSTILE, "b")), title=HOSTILE),
        "alignment": plot_alignment(cells, {HOSTILE: entries(HOSTILE)}, frame_shift=0.1, title=HOSTILE),
        "training": plot_training([epoch(1)], wer={HOSTILE: {1: 2.0}}, title=HOSTILE),
        "wer": plot_wer({"speakers": {HOSTILE: counts}, "total": counts}, title=HOSTILE),
    }
