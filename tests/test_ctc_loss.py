"""The CTC loss: equal to torch's, to sums over paths, and to itself in any batch."""

import itertools
import math

import numpy as np
import pytest
import torch
from conftest import SHARED
from ctc_inputs import CtcBatch, batches, losses_and_gradient, random_batch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import (
    FLOAT64,
    LOG_PROB_FLOOR,
    LOG_PROB_RELATIVE,
    OCCUPANCY,
    PEER_COST_RELATIVE,
    PEER_CTC_GRADIENT,
    ROUNDING,
)

from fsachain import CTCLoss, TableBatch, compile_table, ctc_graph, ctc_loss, total_log_prob

TOPOLOGIES = ["standard", "compact", "selfless", "minimal"]
BACKENDS = ["cpu", "reference"]
GOLDEN = ["torch_ctc_B32", "torch_ctc_edge_zi1", "k2_ctc"]


def torch_losses_and_gradient(batch):
    leaf = batch.leaf()
    losses = torch.nn.functional.ctc_loss(
        leaf.log_softmax(-1), *batch.arguments(), "none", zero_infinity=True
    )
    losses.sum().backward()
    return losses.detach().numpy(), leaf.grad.numpy()


def relative(losses):
    return np.maximum(LOG_PROB_FLOOR, np.abs(losses))


@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
@given(batch=batches(), backend=st.sampled_from(BACKENDS))
def test_losses_and_gradients_of_logits_are_those_of_torch(inputs, batch, backend):
    """Also through torch's log_softmax."""
    expected, expected_gradient = torch_losses_and_gradient(batch)
    leaf = batch.leaf()
    scores = leaf if inputs == "logits" else leaf.log_softmax(-1)
    options = {"inputs": inputs, "unnormalized": "error", "backend": backend}
    losses = ctc_loss(scores, *batch.arguments(), "none", zero_infinity=True, **options)
    losses.sum().backward()
    np.testing.assert_allclose(
        losses.detach() / relative(expected), expected / relative(expected), atol=FLOAT64
    )
    np.testing.assert_allclose(leaf.grad, expected_gradient, atol=FLOAT64)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_torch_and_k2_are_met(name, inputs, backend):
    path = SHARED / "golden" / "peers" / f"{name}.npz"
    if not path.is_file():
        pytest.skip("no ../shared")
    values = dict(np.load(path))
    logits = torch.from_numpy(values["logits"]).requires_grad_()
    scores = logits.transpose(0, 1)
    lengths = values.get("input_lengths", values.get("lengths")), values["target_lengths"]
    losses = ctc_loss(
        scores if inputs == "logits" else scores.log_softmax(-1),
        torch.from_numpy(values["targets"]),
        *map(torch.from_numpy, lengths),
        int(values["blank"]),
        "none",
        zero_infinity=True,
        inputs=inputs,
        backend=backend,
    )
    losses.sum().backward()
    np.testing.assert_allclose(
        losses.detach(), values["loss"], rtol=PEER_COST_RELATIVE, atol=PEER_COST_RELATIVE
    )
    np.testing.assert_allclose(logits.grad, values["grad_logits"], atol=PEER_CTC_GRADIENT)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_is_minus_log_z_of_the_graph_that_the_topology_names(topology, backend):
    batch = random_batch(1)
    tables = [
        compile_table(ctc_graph(target[:length], batch.blank, topology), batch.scores.shape[2])
        for target, length in zip(batch.targets, batch.target_lengths, strict=True)
    ]
    scores = torch.from_numpy(batch.scores).transpose(0, 1).requires_grad_()
    log_z = total_log_prob(TableBatch.pack(tables), scores, batch.input_lengths, backend="reference")
    (-log_z.sum()).backward()
    losses, gradient = losses_and_gradient(
        batch, inputs="log_probs", unnormalized="ignore", topology=topology, backend=backend
    )
    np.testing.assert_allclose(losses, -log_z.detach(), rtol=FLOAT64)
    np.testing.assert_allclose(gradient, scores.grad.transpose(0, 1), atol=FLOAT64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("topology", "delay"), [("standard", 0.3), ("standard", -1.0), ("selfless", 0.3)])
def test_a_delay_penalty_is_paid_at_the_first_frame_of_each_label(topology, delay, backend):
    frames, classes, target = 5, 3, (1, 1)
    scores = np.random.default_rng(0).standard_normal((frames, 1, classes))
    total = 0.0
    for path in itertools.product(range(classes), repeat=frames):
        runs = [list(run) for _, run in itertools.groupby(enumerate(path), key=lambda pair: pair[1])]
        labels = [run for run in runs if run[0][1] != 0]
        lasts = any(len(run) > 1 for run in labels)
        if tuple(run[0][1] for run in labels) == target and not (topology == "selfless" and lasts):
            gain = sum(delay * ((frames - 1) / 2 - run[0][0]) for run in labels)
            total += math.exp(scores[np.arange(frames), 0, path].sum() + gain)
    batch = CtcBatch(scores, np.array([target]), [frames], [2], 0)
    losses, _ = losses_and_gradient(
        batch,
        inputs="log_probs",
        unnormalized="ignore",
        delay_penalty=delay,
        topology=topology,
        backend=backend,
    )
    assert losses[0] == pytest.approx(-math.log(total), abs=FLOAT64)


def test_log_priors_are_taken_off_the_log_probabilities():
    batch = random_batch(2)
    log_priors = np.random.default_rng(1).standard_normal(batch.scores.shape[2])
    shifted = batch.with_scores(batch.scores - log_priors)
    options = {"inputs": "log_probs", "unnormalized": "ignore"}
    losses, gradient = losses_and_gradient(batch, log_priors=torch.from_numpy(log_priors), **options)
    expected, expected_gradient = losses_and_gradient(shifted, **options)
    np.testing.assert_allclose(losses, expected, rtol=ROUNDING)
    np.testing.assert_allclose(gradient, expected_gradient, atol=FLOAT64)


@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
@pytest.mark.parametrize(
    "options", [{}, {"topology": "compact", "delay_penalty": 0.2, "log_priors": torch.arange(5.0)}]
)
def test_gradients_are_derivatives_also_where_rows_are_not_normalized(inputs, options):
    batch = random_batch(3, size=2, frames=8, classes=5, labels=3)

    def losses(scores):
        return ctc_loss(scores, *batch.arguments(), "none", inputs=inputs, unnormalized="ignore", **options)

    assert torch.autograd.gradcheck(losses, batch.leaf())


def test_one_hot_scores_rows_of_minus_infinity_and_huge_ones_give_what_the_reference_gives():
    batch = random_batch(6, frames=40)
    rng = np.random.default_rng(0)
    one_hot = np.where(rng.random(batch.scores.shape) < 0.2, 30.0, -30.0)
    holes = np.where(rng.random(batch.scores.shape) < 0.2, -np.inf, batch.scores)
    holes[3, 1] = -np.inf
    for scores in (one_hot, holes, 1e30 * batch.scores):
        for inputs in ("logits", "log_probs"):
            options = {"inputs": inputs, "unnormalized": "ignore"}
            case = batch.with_scores(scores)
            losses, gradient = losses_and_gradient(case, torch.float32, **options)
            expected, expected_gradient = losses_and_gradient(
                case, torch.float32, backend="reference", **options
            )
            np.testing.assert_allclose(losses, expected, rtol=LOG_PROB_RELATIVE)
            np.testing.assert_allclose(gradient, expected_gradient, atol=OCCUPANCY)


@given(batches(), st.sampled_from([torch.float32, torch.float64]))
def test_a_loss_of_normalized_scores_is_never_negative(batch, dtype):
    sharp = batch.with_scores(20.0 * batch.scores)
    losses, _ = losses_and_gradient(sharp, dtype)
    assert (losses >= 0.0).all()
    normalized = sharp.leaf(dtype).detach().log_softmax(-1)
    assert (ctc_loss(normalized, *sharp.arguments(), "none", unnormalized="error") >= 0.0).all()


@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
def test_a_certain_target_costs_exactly_nothing(inputs):
    frames, labels = 400, 150
    path = np.zeros(frames, np.int64)
    path[np.arange(labels) * 2] = np.arange(labels) % 7 + 1
    scores = torch.full((frames, 1, 9), -40.0)
    scores[torch.arange(frames), 0, torch.from_numpy(path)] = 0.0
    if inputs == "log_probs":
        scores = scores.log_softmax(-1)
    target = torch.arange(labels)[None] % 7 + 1
    assert ctc_loss(scores, target, [frames], [labels], reduction="sum", inputs=inputs) == 0.0


def test_any_order_of_the_scores_in_memory_gives_the_same_bits():
    batch = random_batch(10)
    leaf = batch.leaf(torch.float32).detach()
    arranged = [
        leaf,
        leaf.transpose(0, 1).contiguous().transpose(0, 1),
        torch.empty(24, 5, 14)[..., ::2].copy_(leaf),
    ]
    results = []
    for scores in arranged:
        scores.requires_grad_()
        loss = ctc_loss(scores, *batch.arguments(), inputs="logits")
        loss.backward()
        results.append((loss.item(), scores.grad.numpy()))
    for loss, gradient in results[1:]:
        assert loss == results[0][0]
        np.testing.assert_array_equal(gradient, results[0][1])


@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
def test_too_short_and_illegal_sequences_have_no_gradient_and_leave_the_others_alone(inputs):
    batch = random_batch(11)
    options = {"inputs": inputs, "unnormalized": "ignore"}
    expected, expected_gradient = losses_and_gradient(batch, **options)
    scores = batch.scores.copy()
    scores[2, 1, batch.targets[1, 0]] = np.nan
    lengths = [*batch.input_lengths[:2], batch.target_lengths[2] - 1, *batch.input_lengths[3:]]
    broken = CtcBatch(scores, batch.targets, lengths, batch.target_lengths, batch.blank)
    losses, gradient = losses_and_gradient(broken, **options)
    assert np.isnan(losses[1])
    assert losses[2] == np.inf
    assert not gradient[:, 1:3].any()
    for n in (0, 3, 4):
        assert losses[n] == expected[n]
        np.testing.assert_array_equal(gradient[:, n], expected_gradient[:, n])
    assert losses_and_gradient(broken, zero_infinity=True, **options)[0][2] == 0.0


def test_no_frames_spell_the_empty_target_and_nothing_else():
    scores = torch.zeros(4, 2, 3)
    losses = ctc_loss(scores, [[1], [1]], [0, 0], [0, 1], reduction="none", inputs="logits")
    assert losses.tolist() == [0.0, math.inf]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_reductions_and_forms_of_targets_are_those_of_torch(reduction):
    batch = random_batch(12)
    log_probs = batch.leaf(torch.float32).detach().log_softmax(-1)
    targets, *rest = batch.arguments()
    joined = torch.cat([row[:n] for row, n in zip(targets, batch.target_lengths, strict=True)])
    expected = torch.nn.functional.ctc_loss(log_probs, joined, *rest, reduction)
    forms = [(targets, *rest), (joined, *rest), (targets.tolist(), *map(torch.tensor, rest[:2]), rest[2])]
    for form in (*forms, (targets.int(), *rest)):
        torch.testing.assert_close(ctc_loss(log_probs, *form, reduction), expected)
    torch.testing.assert_close(CTCLoss(batch.blank, reduction)(log_probs, *forms[0][:3]), expected)
    single = (
        log_probs[:, 0],
        joined[: batch.target_lengths[0]],
        batch.input_lengths[0],
        batch.target_lengths[0],
    )
    single = *map(torch.as_tensor, single), batch.blank, reduction
    torch.testing.assert_close(ctc_loss(*single), torch.nn.functional.ctc_loss(*single))
