"""CTC of targets that may be wrong: the loss is that of the graphs, whose paths are counted in test_ctc_graph."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tolerances
import torch
from ctc_inputs import batches, losses_and_gradient, random_batch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from rnnt_inputs import BLANK, FRAMES, LABELS, close, make_logits, make_targets, pack

from fsachain import (
    ConfigError,
    ContextTree,
    Forgiveness,
    Lexicon,
    RNNTLoss,
    TableBatch,
    Topology,
    build_numerator,
    compile_table,
    ctc_graph,
    ctc_loss,
    forward_backward,
    rnnt_loss,
)
from fsachain.backends.cpu import ctc as cpu_ctc
from fsachain.backends.cpu.memory import borrow
from fsachain.backends.ctc import make_problem
from fsachain.loss.ctc import forgiving_ctc

TOPOLOGIES = ["standard", "selfless", "minimal"]
OPTIONS = Forgiveness(1.0, 0.5, 0.7, "sum", 2)
BATCH = random_batch(1, size=3, frames=9, classes=4, labels=3)


def loss_of(scores, forgive, **options):
    return ctc_loss(scores, *BATCH.arguments(), reduction="none", forgive=forgive, **options)


@pytest.mark.parametrize(
    "options", [Forgiveness(1.0, 0.5, 0.7, "mean"), Forgiveness(1.0, 0.5, 0.7, "sum"), Forgiveness()]
)
@pytest.mark.parametrize("topology", [*TOPOLOGIES, "compact"])
def test_a_loss_is_minus_log_z_of_a_graph_with_a_class_for_the_star(topology, options):
    """With infinite penalties too, where no path has the star."""
    log_probs = BATCH.leaf().log_softmax(dim=2).detach()
    units = torch.cat([log_probs[:, :, : BATCH.blank], log_probs[:, :, BATCH.blank + 1 :]], dim=2)
    column = units.exp().mean(2).log() if options.star == "mean" else units.exp().sum(2).log()
    scores = torch.cat([log_probs, column.unsqueeze(2)], dim=2).transpose(0, 1).numpy()
    graphs = [
        ctc_graph(target[:count], BATCH.blank, topology, forgive=options, star=scores.shape[2] - 1)
        for target, count in zip(BATCH.targets, BATCH.target_lengths, strict=True)
    ]
    batch = TableBatch.pack([compile_table(graph, scores.shape[2]) for graph in graphs])
    wanted = forward_backward(batch, scores, BATCH.input_lengths, backend="reference").log_prob
    for backend in ("cpu", "reference"):
        found = loss_of(log_probs, options, topology=topology, backend=backend)
        assert found.numpy() == pytest.approx(-wanted, abs=tolerances.FLOAT64)


@pytest.mark.parametrize(
    "options",
    [{}, {"inputs": "logits"}, {"log_priors": torch.tensor([0.1, -0.3, 0.2, 0.0]), "inputs": "logits"}],
)
def test_differences_give_the_gradient(options):
    leaf = BATCH.leaf() if options else BATCH.leaf().log_softmax(dim=2).detach().requires_grad_()
    loss = partial(loss_of, forgive=OPTIONS, **options)
    assert torch.autograd.gradcheck(loss, leaf, atol=tolerances.DIFFERENCE)


@given(
    seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 3.0, 30.0]), topology=st.sampled_from(TOPOLOGIES)
)
def test_a_loss_of_probabilities_is_never_negative_however_cheap_errors_are(seed, scale, topology):
    batch = random_batch(seed, size=3, frames=12, classes=3, labels=4, scale=scale)
    cheap = Forgiveness(0.0, 0.0, 0.05, "sum")
    losses, _ = losses_and_gradient(batch, topology=topology, forgive=cheap)
    assert losses.min() >= -tolerances.FLOAT64


PENALTY, STAR = st.sampled_from([0.0, 0.5, 3.0, 1000.0, math.inf]), st.sampled_from(["mean", "sum"])


@given(
    batch=batches(),
    wrong=st.builds(Forgiveness, PENALTY, PENALTY, PENALTY.filter(bool), STAR, st.integers(1, 3)),
    topology=st.sampled_from([*TOPOLOGIES, "compact"]),
    inputs=st.sampled_from(["logits", "log_probs"]),
    scale=st.sampled_from([1.0, 40.0]),
    impossible=st.booleans(),
)
def test_kernels_give_what_the_reference_and_the_graphs_of_a_device_give(
    batch, wrong, topology, inputs, scale, impossible
):
    scores = torch.from_numpy(scale * batch.scores)
    if impossible:
        scores[::3, :, ::2] = -math.inf
    if inputs == "log_probs":
        scores = scores.log_softmax(dim=2).nan_to_num(nan=-math.inf, neginf=-math.inf)
    batch = batch.with_scores(scores.numpy())
    options = {"inputs": inputs, "topology": topology, "forgive": wrong, "unnormalized": "ignore"}
    losses, gradient = losses_and_gradient(batch, **options)
    wanted, wanted_gradient = losses_and_gradient(batch, backend="reference", **options)
    close = {"rtol": tolerances.FLOAT64, "atol": tolerances.FLOAT64}
    assert np.allclose(losses, wanted, **close)
    assert np.allclose(gradient, wanted_gradient, rtol=0, atol=tolerances.FLOAT64)
    if inputs == "log_probs":
        targets, frames, labels, blank = batch.arguments()
        given = targets.numpy(), np.array(frames), np.array(labels), batch.scores.transpose(1, 0, 2).shape
        problem = make_problem(*given, blank, topology, np.empty(0), 0.0, forgive=wrong)
        log_prob, derivative = forgiving_ctc(scores, problem, "cpu", True, None)
        finite = np.isfinite(wanted)
        assert np.allclose(-log_prob[finite], wanted[finite], **close)
        assert np.allclose(derivative[:, finite], wanted_gradient[:, finite], rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("topology", ["selfless", "minimal"])
def test_a_target_without_labels_has_no_share_of_a_star_that_nothing_can_take(monkeypatch, topology):
    def poisoned(size):
        buffer = borrow(size)
        buffer.fill(255)  # NaN
        return buffer

    monkeypatch.setattr(cpu_ctc, "borrow", poisoned)
    none = replace(BATCH, targets=BATCH.targets[:, :0], target_lengths=[0] * BATCH.size)
    options = {"inputs": "logits", "topology": topology, "unnormalized": "ignore"}
    for batch, insertion in itertools.product((BATCH, none, none.only(0)), (0.5, math.inf)):
        wrong = Forgiveness(0.5, insertion, math.inf)
        found = losses_and_gradient(batch, forgive=wrong, **options)
        wanted = losses_and_gradient(batch, forgive=wrong, backend="reference", **options)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerances.FLOAT64)


def test_a_delay_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"delay_penalty = 0.1 with forgive; expected 0"):
        loss_of(BATCH.leaf(), OPTIONS, delay_penalty=0.1)


# Transducers of targets that may be wrong against every way through the grid, written down one by one.


EACH = [Forgiveness(substitution=1.0), Forgiveness(insertion=0.5), Forgiveness(deletion=0.7)]
EACH.append(Forgiveness(0.3, 0.5, 0.7, "sum"))


def transducer_loss_of(logits, forgive, **options):
    call = logits, make_targets(), FRAMES, LABELS, BLANK
    return rnnt_loss(*call, reduction="none", forgive=forgive, **options)


def probability(log_probs, target, options):
    """The sum over all paths of one sequence: at each step a blank, an extra label, a target kept, wrong or left out."""
    frames, width, labels = len(log_probs), log_probs.shape[2], len(target)
    unit = 1.0 / (width - 1) if options.star == "mean" else 1.0
    penalties = options.substitution, options.insertion, options.deletion
    wrong, left_out, extra = (math.exp(-penalty) for penalty in penalties)
    total = 0.0
    for at in itertools.combinations_with_replacement(range(frames), labels):  # the frame of each label
        steps = sorted([(t, 1, u) for u, t in enumerate(at)] + [(t, 2, 0) for t in range(frames)])
        weight, u = 1.0, 0
        for t, kind, _ in steps:
            p = log_probs[t, u].exp()
            star = unit * sum(p[v] for v in range(width) if v != BLANK)
            if kind == 2:
                weight = weight * (p[BLANK] + extra * star)
            else:
                weight = weight * (p[target[u]] + wrong * star + left_out)
                u += 1
        total = total + weight
    return total / (1 + wrong + left_out + extra) ** (frames + labels)


@pytest.mark.parametrize("options", EACH)
def test_a_loss_is_the_sum_over_all_paths_and_never_negative(options, backend):
    logits, targets = make_logits(), make_targets()
    found = transducer_loss_of(logits, options, backend=backend).detach()
    for n, (frames, labels) in enumerate(zip(FRAMES, LABELS, strict=True)):
        log_probs = logits[n, :frames, : labels + 1].detach().log_softmax(dim=2)
        target = targets[n, :labels].tolist()
        wanted = -math.log(probability(log_probs, target, options))
        assert float(found[n]) == pytest.approx(wanted, abs=tolerances.FLOAT64) and wanted >= 0


@pytest.mark.parametrize("options", EACH)
def test_differences_give_the_gradient_also_where_scores_are_large(options):
    for scale in (1.0, 8.0):
        logits = make_logits(scale)[1:3, :5, :4, :5].detach().requires_grad_()

        def loss(x):
            return rnnt_loss(x, [[0, 3, 0], [1, 0, 0]], [5, 3], [3, 1], 4, reduction="none", forgive=options)

        assert torch.autograd.gradcheck(loss, logits, atol=tolerances.DIFFERENCE)


def test_with_infinite_penalties_loss_and_gradient_are_the_plain_ones_packed_too():
    found = []
    for options in (None, Forgiveness()):
        logits = make_logits()
        packed = RNNTLoss(BLANK, forgive=options)(pack(logits), make_targets(), FRAMES, LABELS)
        transducer_loss_of(logits, options).sum().backward()
        found.append((packed.item(), logits.grad))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])


def test_impossible_scores_leave_no_trace_in_the_gradient():
    """Scores of minus infinity and a certain blank: 0 / 0 in a careless derivative."""
    logits = make_logits(dtype=torch.float32).detach()
    logits[0, 2:4, :, BLANK] = 1000.0
    logits[1, :, :, :3] = -math.inf
    logits.requires_grad_()
    loss = transducer_loss_of(logits, EACH[3])
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all()
    assert logits.grad.sum(dim=3).abs().max() < tolerances.GRADIENT_ROW_SUM


@pytest.mark.parametrize("options", EACH)
def test_a_frame_on_which_nothing_is_possible_is_not_forgiven(options, backend):
    """All logits of it are minus infinity: no star is a label there, so that no path gets past it, as without penalties."""
    logits = make_logits().detach()
    logits[1, 2] = -math.inf
    found = []
    for way in (None, options):
        leaf = logits.clone().requires_grad_()
        losses = transducer_loss_of(leaf, way, backend=backend)
        losses.sum().backward()
        found.append((losses.detach().isinf(), leaf.grad))
    assert found[0][0].tolist() == found[1][0].tolist() == [n == 1 for n in range(len(logits))]
    assert found[1][1].isfinite().all() and not found[1][1][1].any()


@pytest.mark.parametrize(
    "options", [{"rnnt_type": "modified"}, {"fused_log_softmax": False}, {"fastemit_lambda": 0.1}, {"delay_penalty": 0.1}]
)  # fmt: skip
def test_options_that_do_not_go_together_are_named(options):
    refuses(ConfigError, next(iter(options)), transducer_loss_of, make_logits(), EACH[0], **options)


def test_what_are_no_penalties_is_refused_by_name():
    lexicon = Lexicon.characters(["ab"])
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    for call in (
        lambda: ctc_loss(BATCH.leaf(), *BATCH.arguments(), forgive={"deletion": 1.0}),
        lambda: rnnt_loss(torch.zeros(1, 4, 3, 5), [[1, 2]], [4], [2], blank=0, forgive={}),
        lambda: ctc_graph([1, 2], forgive={}),
        lambda: build_numerator(["ab"], lexicon, tree, forgive={}),
    ):
        refuses(ConfigError, "forgive is a dict; expected a Forgiveness, or None", call)
