"""The CTC loss: equal to torch's, to sums over paths, and to itself in any batch."""

import itertools
import math
import warnings

import numpy as np
import pytest
import tolerances
import torch
from ctc_inputs import CtcBatch, batches, losses_and_gradient, random_batch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fsachain import (
    BackendUnavailable,
    ConfigError,
    CTCLoss,
    DataError,
    ShapeError,
    TableBatch,
    compile_table,
    ctc_graph,
    ctc_loss,
    total_log_prob,
)
from fsachain.loss.arguments import NormalizationWarning
from tools import SHARED

TOPOLOGIES = ["standard", "compact", "selfless", "minimal"]
BACKENDS = ["cpu", "reference"]
GOLDEN = ["torch_ctc_B32", "torch_ctc_edge_zi1", "k2_ctc"]
ANY_SCORES = {"inputs": "log_probs", "unnormalized": "ignore"}


def torch_losses_and_gradient(batch):
    leaf = batch.leaf()
    options = {"reduction": "none", "zero_infinity": True}
    losses = torch.nn.functional.ctc_loss(leaf.log_softmax(-1), *batch.arguments(), **options)
    losses.sum().backward()
    return losses.detach().numpy(), leaf.grad.numpy()


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
    size = np.maximum(tolerances.LOG_PROB_FLOOR, np.abs(expected))
    np.testing.assert_allclose(losses.detach() / size, expected / size, atol=tolerances.FLOAT64)
    np.testing.assert_allclose(leaf.grad, expected_gradient, atol=tolerances.FLOAT64)


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
    given = *map(torch.from_numpy, (values["targets"], *lengths)), int(values["blank"])
    options = {"reduction": "none", "zero_infinity": True, "inputs": inputs, "backend": backend}
    losses = ctc_loss(scores if inputs == "logits" else scores.log_softmax(-1), *given, **options)
    losses.sum().backward()
    near = {"rtol": tolerances.PEER_COST_RELATIVE, "atol": tolerances.PEER_COST_RELATIVE}
    np.testing.assert_allclose(losses.detach(), values["loss"], **near)
    np.testing.assert_allclose(logits.grad, values["grad_logits"], atol=tolerances.PEER_CTC_GRADIENT)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_loss_is_minus_log_z_of_the_graph_that_the_topology_names(topology, backend):
    batch = random_batch(1)
    tables = [
        compile_table(ctc_graph(target[:length], batch.blank, topology), batch.scores.shape[2])
        for target, length in zip(batch.targets, batch.target_lengths, strict=True)
    ]
    scores = torch.from_numpy(batch.scores).transpose(0, 1).requires_grad_()
    log_z = total_log_prob(TableBatch.pack(tables), scores, batch.input_lengths, backend="reference")
    (-log_z.sum()).backward()
    losses, gradient = losses_and_gradient(batch, **ANY_SCORES, topology=topology, backend=backend)
    np.testing.assert_allclose(losses, -log_z.detach(), rtol=tolerances.FLOAT64)
    np.testing.assert_allclose(gradient, scores.grad.transpose(0, 1), atol=tolerances.FLOAT64)


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
    options = {"delay_penalty": delay, "topology": topology, "backend": backend}
    losses, _ = losses_and_gradient(batch, **ANY_SCORES, **options)
    assert losses[0] == pytest.approx(-math.log(total), abs=tolerances.FLOAT64)


def test_log_priors_are_taken_off_the_log_probabilities():
    batch = random_batch(2)
    log_priors = np.random.default_rng(1).standard_normal(batch.scores.shape[2])
    shifted = batch.with_scores(batch.scores - log_priors)
    losses, gradient = losses_and_gradient(batch, log_priors=torch.from_numpy(log_priors), **ANY_SCORES)
    expected, expected_gradient = losses_and_gradient(shifted, **ANY_SCORES)
    np.testing.assert_allclose(losses, expected, rtol=tolerances.ROUNDING)
    np.testing.assert_allclose(gradient, expected_gradient, atol=tolerances.FLOAT64)


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
            np.testing.assert_allclose(losses, expected, rtol=tolerances.LOG_PROB_RELATIVE)
            np.testing.assert_allclose(gradient, expected_gradient, atol=tolerances.OCCUPANCY)


@given(batches(), st.sampled_from([torch.float32, torch.float64]))
def test_a_loss_of_normalized_scores_is_never_negative(batch, dtype):
    sharp = batch.with_scores(20.0 * batch.scores)
    losses, _ = losses_and_gradient(sharp, dtype)
    assert (losses >= 0.0).all()
    normalized = sharp.leaf(dtype).detach().log_softmax(-1)
    assert (ctc_loss(normalized, *sharp.arguments(), "none", unnormalized="error") >= 0.0).all()


def test_a_certain_target_whose_times_are_not_costs_nothing_or_what_rounding_makes():
    """One label of three frames, the second for certain, the others with chances that sum to one but for rounding."""
    scores = torch.full((3, 300, 3), -40.0)
    scores[[0, 2], :, :2] = 3.0 * torch.randn(2, 300, 2, generator=torch.Generator().manual_seed(0))
    scores[1, :, 1] = 0.0
    losses = ctc_loss(
        scores.log_softmax(2), torch.ones(300, 1, dtype=int), [3] * 300, [1] * 300, reduction="none"
    )
    assert losses.min() == 0.0 and 0.0 < losses.max() < tolerances.FEW_FLOAT32_TERMS


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
    frames, labels = batch.input_lengths[0], batch.target_lengths[0]
    single = log_probs[:, 0], joined[:labels], frames, labels
    single = *map(torch.as_tensor, single), batch.blank, reduction
    torch.testing.assert_close(ctc_loss(*single), torch.nn.functional.ctc_loss(*single))


# What the CTC loss says about wrong input, and what torch's rules ask of its operators.


SCORES = torch.zeros(6, 2, 5).log_softmax(-1)
GOOD = {"targets": [[1, 2], [3, 0]], "input_lengths": [6, 5], "target_lengths": [2, 1]}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"targets": [[1, 5], [3, 0]]}, DataError, r"anna: targets\[0\]\[1\] = 5; expected a class in \[0, 5\)"),
        ({"targets": [[1, 2], [-1, 0]]}, DataError, r"bert: targets\[1\]\[0\] = -1"),
        ({"targets": [[1, 0], [3, 0]]}, DataError, r"anna: targets\[0\]\[1\] = 0; .* other than the blank, 0"),
        ({"targets": [[1.0, 2.0], [3.0, 0.0]]}, ShapeError, "targets has dtype float32; expected integers"),
        ({"targets": [1, 2, 3, 4]}, ShapeError, "target_lengths add up to 3; expected 4"),
        ({"targets": [[[1]]]}, ShapeError, r"targets has shape \[1, 1, 1\]; expected \[2, S\]"),
        ({"targets": "ab"}, ShapeError, "targets is no tensor of numbers"),
        ({"input_lengths": None}, ShapeError, "input_lengths is no tensor of numbers"),
        ({"log_probs": SCORES.transpose(0, 1)}, ShapeError, r"6 integers, .* log_probs \[T, N, C\]"),
        ({"input_lengths": [6, 7]}, ShapeError, r"bert: input_lengths\[1\] = 7; expected 0 to 6, .*log_probs \[T"),
        ({"input_lengths": [-1, 6]}, ShapeError, r"anna: input_lengths\[0\] = -1"),
        ({"input_lengths": [6.0, 6.0]}, ShapeError, "input_lengths has shape .2. and dtype float32"),
        ({"input_lengths": [6]}, ShapeError, r"input_lengths has shape \[1\]"),
        ({"target_lengths": [3, 1]}, ShapeError, r"anna: target_lengths\[0\] = 3; expected 0 to 2"),
        ({"target_lengths": [2, -1]}, ShapeError, r"bert: target_lengths\[1\] = -1"),
        ({"blank": 5}, ConfigError, "blank = 5; expected a class of log_probs, 0 to 4"),
        ({"blank": -1}, ConfigError, "blank = -1"),
        ({"blank": 0.0}, ConfigError, "blank = 0.0; expected a class of log_probs"),
        ({"log_priors": torch.zeros(5, requires_grad=True)}, ConfigError, "log_priors wants a gradient"),
        ({"reduction": "max"}, ConfigError, "reduction = 'max'; expected one of"),
        ({"inputs": "scores"}, ConfigError, "inputs = 'scores'"),
        ({"unnormalized": True}, ConfigError, "unnormalized = True"),
        ({"topology": "left"}, ConfigError, "topology = 'left'"),
        ({"log_priors": torch.zeros(4)}, ShapeError, r"log_priors has shape \[4\]; expected 5 finite"),
        ({"log_priors": torch.full((5,), torch.inf)}, ShapeError, "expected 5 finite numbers"),
        ({"delay_penalty": "1e-3"}, ConfigError, "delay_penalty = '1e-3'; expected"),
        ({"delay_penalty": float("nan")}, ConfigError, "delay_penalty = nan"),
        ({"memory_budget": -1.0}, ConfigError, "memory_budget = -1.0"),
        ({"names": ["anna"]}, ShapeError, "names has 1 entry; expected 2"),
        ({"backend": "tpu"}, BackendUnavailable, "backend 'tpu': no backend has this name"),
        ({"backend": "cuda"}, BackendUnavailable, "backend 'cuda' has no CTC .*; available: cpu, reference"),
        ({"log_probs": SCORES[:, :0]}, ShapeError, "log_probs has no sequences"),
        ({"log_probs": SCORES[0, 0]}, ShapeError, r"log_probs has shape \[5\]; expected \[T, N, C\]"),
        ({"log_probs": SCORES.long()}, ShapeError, "log_probs has dtype torch.int64"),
        ({"log_probs": SCORES.numpy()}, ShapeError, "log_probs is a ndarray; expected a torch tensor"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_errors_that_name_them(wrong, error, message):
    arguments = {"log_probs": SCORES, "names": ["anna", "bert"], **GOOD, **wrong}
    if "log_probs" in wrong:
        del arguments["names"]
    refuses(error, message, ctc_loss, **arguments)


def unnormalized_scores():
    scores = SCORES.clone()
    scores[4, 1] += 0.5
    scores[1, 0] += 0.01
    return scores


MANY_CLASSES = torch.randn(6, 2, 999, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


def test_rows_that_do_not_sum_to_one_are_named_in_an_error():
    message = r"bert: the probabilities of frame 4 sum to 1.64872; expected 1: .*inputs='logits'"
    with pytest.raises(DataError, match=message):
        ctc_loss(unnormalized_scores(), names=["anna", "bert"], unnormalized="error", **GOOD)


def test_rows_that_do_not_sum_to_one_give_one_warning():
    """Both rows have their turn in the same call, and whichever is seen, the worse of them is named."""
    loss, told = CTCLoss(), "sequence 1: the probabilities of frame 4 sum to 1.64872"
    with pytest.warns(NormalizationWarning, match=told) as said:
        for _ in range(6):
            loss(unnormalized_scores(), **GOOD)
    assert len(said) == 1 and said[0].filename == __file__, "the caller's line, not the library's"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("frame", range(5))
def test_three_calls_look_at_every_frame_to_warn_and_one_to_raise(frame, backend):
    scores = SCORES.clone()
    scores[frame, 1] += 0.5
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        counts = []
        for _ in range(3):
            ctc_loss(scores, **GOOD, backend=backend)
            counts.append(len(said))
    assert counts[-1] == 1, "once, and then nothing is looked at any more"
    with pytest.raises(DataError, match=f"the probabilities of frame {frame} sum"):
        ctc_loss(scores, **GOOD, backend=backend, unnormalized="error")


@pytest.mark.parametrize(
    ("scores", "options"),
    [
        (unnormalized_scores(), {"unnormalized": "ignore"}),
        (unnormalized_scores(), {"inputs": "logits"}),
        (torch.where(torch.arange(6)[:, None, None] < torch.tensor([6, 5])[:, None], SCORES, 3.0), {}),
        *[(SCORES.to(dtype), {}) for dtype in (torch.float16, torch.bfloat16, torch.float64)],
        (torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0)).mul(90).log_softmax(-1), {}),
        *[(MANY_CLASSES.to(dtype), {}) for dtype in (torch.float32, torch.bfloat16)],
    ],
)
def test_nothing_is_said_where_nothing_is_wrong_or_nothing_is_asked(scores, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctc_loss(scores, **GOOD, **options)


@pytest.mark.parametrize(
    ("dtype", "classes"), [(torch.float32, 3), (torch.float64, 16), (torch.float32, 40), (torch.float64, 3)]
)
@pytest.mark.parametrize("value", [0.0, 0.002, 5.0, 89.0, 1e30, -0.002, -np.inf, np.nan])
def test_one_wrong_row_is_found_whatever_its_size(dtype, classes, value):
    scores = torch.zeros(6, 2, classes, dtype=dtype).log_softmax(-1)
    scores[4, 0] += value
    arguments = {**GOOD, "targets": [[1, 2], [1, 0]], "unnormalized": "error"}
    if value == 0.0:
        assert ctc_loss(scores, **arguments) > 0.0
    else:
        refuses(DataError, "sequence 0: the probabilities of frame 4", ctc_loss, scores, **arguments)


def test_what_the_caller_changes_before_backward():
    """Scores that changed are an error of torch; labels and lengths have done their part."""
    batch = random_batch(3)
    leaf = batch.leaf()
    targets, frames, labels = (torch.as_tensor(x).clone() for x in batch.arguments()[:3])
    (expected,) = torch.autograd.grad(ctc_loss(leaf, *batch.arguments(), inputs="logits"), leaf)
    loss = ctc_loss(leaf, targets, frames, labels, batch.blank, inputs="logits")
    targets.fill_(0), frames.fill_(1), labels.fill_(0)
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], expected)
    changed = 1.0 * leaf
    loss = ctc_loss(changed, *batch.arguments(), inputs="logits")
    with torch.no_grad():
        changed.mul_(2.0)
    refuses(RuntimeError, "modified by an inplace operation", loss.backward)


def test_a_module_keeps_its_priors_with_its_state():
    loss = CTCLoss(log_priors=torch.arange(5.0), topology="compact")
    assert loss.state_dict()["log_priors"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert "topology='compact'" in repr(loss)
