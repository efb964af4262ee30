"""Every public loss as a function of scores [2, 4, 5] alone, for claims that hold of all of them."""

import numpy as np
import torch

from fsachain import (
    DenominatorGraph,
    Forgiveness,
    Fsa,
    LFMMILoss,
    TableBatch,
    compile_table,
    ctc_loss,
    do_rnnt_pruning,
    expected_accuracy,
    get_rnnt_prune_ranges,
    hat_loss,
    multi_blank_loss,
    mutual_information_recursion,
    rnnt_lattice,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    tdt_loss,
    total_log_prob,
    transducer_loss,
)
from fsachain.loss.mbr import MBRLoss
from fsachain.loss.rnnt import TransducerLattice

TARGETS = torch.tensor([[1, 2], [2, 3]])
FRAMES, COUNTS = torch.tensor([4, 4]), torch.tensor([2, 2])
LOOP = Fsa(1, [0, 0, 0], [0, 0, 0], [0, 1, 2], np.log([0.4, 0.3, 0.3]), [0.0])
NUMERATOR = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-0.5, -0.5, -0.5], [-np.inf, 0.0])
BATCH = TableBatch.pack([compile_table(NUMERATOR, 5)] * 2)
WEIGHTS = torch.full((6,), -0.5, requires_grad=True)
LFMMI = LFMMILoss(DenominatorGraph(LOOP, num_pdfs=5), l2_regularize=0.01, xent_regularize=0.1)
BOOSTED = LFMMILoss(DenominatorGraph(LOOP, num_pdfs=5), boost=0.5)
VIEWS = LFMMILoss(DenominatorGraph(LOOP, num_pdfs=5), consistency=0.5)
OF_FRAMES = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 5], [-0.5, -0.5, -3.0], [-np.inf, 0.0])
STARS = TableBatch.pack([compile_table(OF_FRAMES, 6)] * 2)
STARRED = LFMMILoss(DenominatorGraph(LOOP, num_pdfs=5).with_star(), l2_regularize=0.01, xent_regularize=0.1)
MBR = MBRLoss(DenominatorGraph(LOOP, num_pdfs=5), l2_regularize=0.01)
SCORES = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(7))
ARCS = rnnt_lattice(torch.zeros(2, 4, 3, 5), TARGETS, FRAMES, COUNTS).arcs


def logits(scores):
    return scores[:, :, None, :] + 0.1 * torch.arange(3.0)[:, None]


def pruned(scores):
    lm = scores[:, :3]
    _, grads = rnnt_loss_simple(lm.detach(), scores.detach(), TARGETS, 0, return_grad=True)
    ranges = get_rnnt_prune_ranges(*grads, None, 2)
    return rnnt_loss_pruned(sum(do_rnnt_pruning(scores, lm, ranges)), TARGETS, ranges, 0)


def joiner(encoder, predictor):
    return encoder + predictor


FORGIVING = Forgiveness(1.0, 0.5, 0.7)
GIVEN = TARGETS, FRAMES, COUNTS
LOSSES = {
    "total": lambda y: total_log_prob(BATCH, y, FRAMES).sum(),
    "weighted": lambda y: total_log_prob(BATCH, y, FRAMES, arc_log_probs=WEIGHTS).sum(),
    "accuracy": lambda y: expected_accuracy(BATCH, y, y.sigmoid(), FRAMES).sum(),
    "lfmmi": lambda y: LFMMI(y, FRAMES, BATCH, xent_log_probs=y.log_softmax(2)),
    "boosted": lambda y: BOOSTED(y, FRAMES, BATCH, frame_weights=torch.ones(2, 4)),
    "star of frames": lambda y: STARRED(y, FRAMES, STARS, xent_log_probs=y.log_softmax(2)),
    "two views": lambda y: VIEWS(y, FRAMES, BATCH, views=2),
    "mbr": lambda y: MBR(y, FRAMES, BATCH),
    "ctc": lambda y: ctc_loss(y.log_softmax(2).transpose(0, 1), *GIVEN),
    "ctc of logits": lambda y: ctc_loss(y.transpose(0, 1), *GIVEN, inputs="logits"),
    "ctc, forgiving": lambda y: ctc_loss(y.log_softmax(2).transpose(0, 1), *GIVEN, forgive=FORGIVING),
    "rnnt, forgiving": lambda y: rnnt_loss(logits(y), *GIVEN, blank=0, forgive=FORGIVING),
    "rnnt": lambda y: rnnt_loss(logits(y), *GIVEN, blank=0),
    "rnnt of log-probs": lambda y: rnnt_loss(logits(y).log_softmax(3), *GIVEN, 0, fused_log_softmax=False),
    "rnnt in place": lambda y: rnnt_loss(logits(y), *GIVEN, blank=0, inplace=True),
    "hat": lambda y: hat_loss(logits(y), *GIVEN, blank=0),
    "tdt": lambda y: tdt_loss(logits(y), TARGETS % 3, FRAMES, COUNTS, durations=[1], blank=3),
    "multi-blank": lambda y: multi_blank_loss(logits(y), *GIVEN, {4: 2}, blank=0),
    "simple": lambda y: rnnt_loss_simple(y[:, :3], y, TARGETS, termination_symbol=0),
    "smoothed": lambda y: rnnt_loss_smoothed(y[:, :3], y, TARGETS, termination_symbol=0),
    "pruned": pruned,
    "mutual information": lambda y: mutual_information_recursion(y[:, :2], y[:, :3, :4]).sum(),
    "lattice": lambda y: (
        TransducerLattice(y.view(2, 2, 2, 5)[..., :3], ARCS, torch.tensor([[0, 0, 2, 2]] * 2))
        .log_prob()
        .sum()
    ),
    "chunks": lambda y: transducer_loss(y, y[:, :3], joiner, *GIVEN, blank=0, chunk_frames=2),
}
