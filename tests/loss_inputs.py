"""Networks' outputs and graphs for the tests of the losses, and ways to spoil them."""

import math
from dataclasses import replace

import tolerances
import torch
from random_graphs import connected_graph, left_to_right_graph

from fsachain import DenominatorGraph, LFMMILoss
from fsachain.loss.mbr import MBRLoss

WIDTH = 9
LENGTHS = [20, 12, 30, 7]
SIZE, FRAMES = len(LENGTHS), 30
LOSSES = {"LF-MMI": (LFMMILoss, {}), "boosted": (LFMMILoss, {"boost": 0.4}), "MBR": (MBRLoss, {})}


def make_denominator(seed=0):
    return DenominatorGraph(connected_graph(seed), WIDTH)


def make_loss(kind="LF-MMI", denominator=None, **options):
    """A loss of LOSSES with a leak of 0.1, over one denominator or those given."""
    make, own = LOSSES[kind]
    graphs = make_denominator() if denominator is None else denominator
    return make(graphs, **({"leaky_hmm_coefficient": 0.1} | own | options))


def make_graphs(size=SIZE, seed=0):
    return [left_to_right_graph(10 * seed + n, 5, WIDTH) for n in range(size)]


def make_output(seed=0, scale=1.0, dtype=torch.float64, size=SIZE):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(size, FRAMES, WIDTH, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_()


def close(left, right, limit=tolerances.LOSS_TERM):
    left, right = (torch.as_tensor(one, dtype=torch.float64) for one in (left, right))
    torch.testing.assert_close(left, right, rtol=0.0, atol=limit)


def real_frames():
    return (torch.arange(FRAMES) < torch.tensor(LENGTHS).view(-1, 1)).unsqueeze(2)


@torch.no_grad()
def spoil(kind, output, lengths, graphs):
    """After this sequence 1 cannot be used."""
    if kind == "too short":
        lengths[1] = 1
    elif kind == "no frames":
        lengths[1] = 0
    elif kind == "no finals":
        graphs[1] = replace(graphs[1], final_log_prob=[-math.inf] * graphs[1].num_states)
    else:
        output[1, 3] = float(kind)


KINDS = ["too short", "no frames", "no finals", "NaN", "+inf", "-inf"]
