"""Two views of each utterance: what draws their outputs to each other, and where the views come from."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from enumeration import all_paths, log_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_inputs import LENGTHS, SIZE, WIDTH, close, make_graphs, make_loss, make_output, real_frames
from random_graphs import connected_graph
from refusals import refuses
from torch.nn.functional import ctc_loss, kl_div
from toy_training import any_pdf, config, corpus, tdnnf

from fsachain import DenominatorGraph, Fsa, LFMMILoss, TableBatch, ctc_graph, total_log_prob
from fsachain.asr.data.augment import AugmentConfig, augment, shift_frames
from fsachain.asr.data.dataset import Example
from fsachain.asr.train.trainer import Trainer
from fsachain.errors import ConfigError, ShapeError

FACTOR = 0.3
ANY_PDF = Fsa(1, [0] * WIDTH, [0] * WIDTH, range(WIDTH), [0.0] * WIDTH, [0.0])
HALF = SIZE // 2
TWICE = LENGTHS[:HALF] * 2  # frames of the views


def divergence(fsa, scores, others):
    """KL(paths under `others` || paths under `scores`), with all paths written out."""
    own, other = ({arcs: score for score, arcs in all_paths(fsa, one)} for one in (scores, others))
    own_total, other_total = log_sum(list(own.values())), log_sum(list(other.values()))
    return math.fsum(
        math.exp(score - other_total) * ((score - other_total) - (own[arcs] - own_total))
        for arcs, score in other.items()
    )


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 4), st.sampled_from([0.0, 0.4]))
def test_the_term_is_the_divergence_of_paths_of_the_denominator(seed, frames, boost):
    graph = connected_graph(seed % 7)
    denominator = DenominatorGraph(graph, WIDTH, initial="start", final="fsa")
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, consistency=FACTOR, boost=boost)
    output = make_output(seed, scale=2.0, size=2)[:, :frames]
    loss(output, [frames] * 2, [ANY_PDF] * 2, weights=[2.0, 1.0], views=2)
    y = output.detach()
    y = (y - boost * y.softmax(2)).numpy()  # what a path of the numerators has right
    expected = divergence(graph, y[0], y[1]) + divergence(graph, y[1], y[0])
    close(loss.last_record.consistency_term, -FACTOR * 1.5 * expected)


@pytest.mark.parametrize("boost", [0.0, 0.4])
def test_differences_give_the_gradient_where_the_other_view_is_a_constant(boost):
    """By (C1), -KL(others || own) is <occupancy of the others, y> - log Z(y) and what does not depend on y."""
    options = {"boost": boost, "out_of_range_regularize": 0.0}
    plain, loss = make_loss(**options), make_loss(consistency=FACTOR, **options)
    graphs, frames = make_graphs(HALF) * 2, [5, 4, 5, 4]
    output = make_output()[:, :5].detach().requires_grad_()
    loss(output, frames, graphs, views=2).backward()
    numerators, denominator = TableBatch.pack(graphs), plain.denominators["denominator"].batch(SIZE)

    def boosted(y):
        right = torch.autograd.grad(total_log_prob(numerators, y, frames).sum(), y)[0]
        return (y.detach() - boost * right).requires_grad_()

    constant = boosted(output)
    total = total_log_prob(denominator, constant, frames, leaky_hmm_coefficient=0.1).sum()
    other = torch.autograd.grad(total, constant)[0].roll(HALF, 0)
    shift = (constant - output).detach()

    def expected(y):
        moved = y + shift  # the boost is a constant too
        log_z = total_log_prob(denominator, moved, frames, leaky_hmm_coefficient=0.1).sum()
        objf = total_log_prob(numerators, y, frames).sum() - log_z
        return -(objf + FACTOR * ((other * moved).sum() - log_z)) / sum(frames)

    step = 1e-5
    found = torch.zeros_like(output)
    for place in np.ndindex(*output.shape):
        ends = []
        for sign in (1, -1):
            y = output.detach().clone()
            y[place] += sign * step
            ends.append(float(expected(y)))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    close(output.grad, found, tolerances.DIFFERENCE)


def test_with_the_denominator_of_ctc_it_is_the_divergence_of_softmaxes():
    """What CR-CTC adds (Yao et al., ICLR 2025), by torch's own functions and derivatives."""
    targets = torch.tensor([[1, 2, 3], [4, 4, 5]])
    graphs = [ctc_graph(target) for target in targets.tolist()] * 2
    options = {"out_of_range_regularize": 0.0, "leaky_hmm_coefficient": 0.0}
    loss = LFMMILoss(DenominatorGraph(ANY_PDF, WIDTH), consistency=FACTOR, **options)
    output, same = make_output(), make_output()
    value = loss(output, TWICE, graphs, views=2)
    rows = same.log_softmax(2)
    given = targets.repeat(2, 1), torch.tensor(TWICE), torch.tensor([3] * SIZE)
    losses = ctc_loss(rows.transpose(0, 1), *given, reduction="sum")
    apart = kl_div(rows, rows.detach().roll(HALF, 0), reduction="none", log_target=True)
    apart = (apart * real_frames()[:HALF].repeat(2, 1, 1)).sum()
    expected = (losses + FACTOR * apart) / sum(TWICE)
    close(value.detach(), expected.detach())
    value.backward()
    expected.backward()
    close(output.grad, same.grad)


def test_without_a_factor_or_views_nothing_changes_to_the_bit():
    results = []
    for factor, views in ((0.0, 1), (FACTOR, 1), (0.0, 2)):
        output, loss = make_output(), make_loss(consistency=factor)
        loss(output, TWICE, make_graphs(HALF) * 2, views=views).backward()
        assert loss.last_record.consistency_term == 0
        results.append(output.grad)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("spoilt", [0, HALF])
def test_a_pair_with_a_view_that_is_left_out_does_not_count(spoilt):
    """Nor does what stands beyond the lengths."""
    graphs, frames = make_graphs(HALF) * 2, torch.tensor(TWICE)
    clean, output = make_output(), make_output()
    with torch.no_grad():
        output.masked_fill_((torch.arange(output.shape[1]) >= frames.view(-1, 1)).unsqueeze(2), math.nan)
        output[spoilt, 2] = math.nan
    loss, plain = make_loss(consistency=FACTOR), make_loss()
    loss(output, TWICE, graphs, views=2).backward()
    record = loss.last_record
    assert record.excluded == (record.names[spoilt],)
    frames_ok = record.weight_ok
    loss(clean, TWICE, graphs, weights=[0.0, 1.0] * 2, views=2)
    close(record.consistency_term, loss.last_record.consistency_term)
    alone = make_output()
    plain(alone, TWICE, graphs).backward()
    kept = HALF - spoilt  # the other view of the same utterance
    close(output.grad[kept] * frames_ok, alone.grad[kept] * sum(TWICE))
    assert not output.grad[spoilt].any()


@pytest.mark.parametrize(
    ("size", "lengths", "views", "error", "match"),
    [
        (SIZE, TWICE, 3, ConfigError, "views is 3; expected 1 or 2"),
        (3, TWICE, 2, ShapeError, "views is 2 and the batch has 3 sequences; expected an even number"),
        (
            *(SIZE, LENGTHS, 2, ShapeError),
            r"lengths has 20 for one view of 'sequence 0' and 30 for the other \(rows 0 and 2\); expected the same",
        ),
    ],
)
def test_views_that_do_not_belong_together_are_refused(size, lengths, views, error, match):
    given = make_output(size=size), lengths[:size], make_graphs(size)
    refuses(error, match, make_loss(consistency=FACTOR), *given, views=views)


def test_views_share_the_shift_of_frames_and_nothing_else():
    rng = np.random.default_rng(0)
    original = Example("u", "s", (), rng.normal(size=(60, 12)).astype(np.float32))
    shifts = AugmentConfig(frame_shift=2)
    masks = replace(shifts, time_masks=1, time_mask_frames=10, frequency_masks=1, frequency_mask_bins=3)
    differ = 0
    for epoch in range(20):
        first, second = (augment(original, shifts, epoch, view).features for view in range(2))
        np.testing.assert_array_equal(first, second)
        assert any(np.array_equal(shift_frames(original.features, n), first) for n in range(-2, 3))
        one, two = (augment(original, masks, epoch, view).features for view in range(2))
        np.testing.assert_array_equal(one, augment(original, masks, epoch).features)
        assert np.isin(two, np.append(first, first.mean(axis=0))).all()  # blanked or as shifted
        differ += not np.array_equal(one, two)
    assert differ >= 15  # a mask may be empty


def test_training_sees_two_views_and_logs_how_far_they_are_apart(tmp_path):
    """As far as dropout and masks draw them; in evaluation there is one."""
    examples, numerators = corpus()
    masks = AugmentConfig(time_masks=1, time_mask_frames=9, time_mask_fraction=0.5)
    found = {}
    for factor in (0.0, FACTOR):
        loss = LFMMILoss(any_pdf(), consistency=factor)
        torch.manual_seed(5)
        trainer = Trainer(tdnnf(), loss, config(num_epochs=2), tmp_path / str(factor), numerators=numerators)
        found[factor] = trainer.fit(examples, examples, augmentation=masks).epochs
    for one, two in zip(found[0.0], found[FACTOR], strict=True):
        assert one["train"]["consistency"] == one["dev"]["consistency"] == two["dev"]["consistency"] == 0
        assert two["train"]["consistency"] < 0
        assert two["train"]["output_frames"] == 2 * one["train"]["output_frames"]
        assert two["dev"]["output_frames"] == one["dev"]["output_frames"]
