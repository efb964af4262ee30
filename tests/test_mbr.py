"""Expected accuracy and its derivatives: against every path, against differences, at any magnitude; and `MBRLoss`."""

import math

import numpy as np
import pytest
import tolerances
import torch
from enumeration import all_paths, log_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_inputs import LENGTHS, SIZE, WIDTH, close, make_denominator, make_graphs, make_loss, make_output
from random_graphs import graphs, leaking_tables, score_matrices

from fsachain import Fsa, TableBatch, compile_table, forward_backward
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError
from fsachain.loss.mbr import expected_accuracy

NUM_PDFS = 3
BACKENDS = ["reference", "cpu"]


def differentiated(batch, scores, accuracy, lengths=None, leaky=0.0, backend="auto"):
    """E[A], d E[A] / d scores and d E[A] / d accuracy."""
    y, a = (torch.as_tensor(array).clone().requires_grad_() for array in (scores, accuracy))
    values = expected_accuracy(batch, y, a, lengths, leaky_hmm_coefficient=leaky, backend=backend)
    values.sum().backward()
    return values.detach(), y.grad, a.grad


def enumerated(fsa, scores, accuracy, **options):
    """The same three and log Z, each path by itself."""
    paths = all_paths(fsa, scores, **options)
    log_prob = log_sum([score for score, _ in paths])
    pdfs = [[int(fsa.pdf[arc]) for arc in arcs] for _, arcs in paths]
    shares = [math.exp(score - log_prob) for score, _ in paths]
    right = [sum(accuracy[t, pdf] for t, pdf in enumerate(path)) for path in pdfs]
    mean = math.fsum(share * value for share, value in zip(shares, right, strict=True))
    gradient, occupancy = np.zeros_like(scores), np.zeros_like(scores)
    for path, share, value in zip(pdfs, shares, right, strict=True):
        for t, pdf in enumerate(path):
            gradient[t, pdf] += share * (value - mean)
            occupancy[t, pdf] += share
    return (mean if paths else -math.inf), gradient, occupancy


def check_against_paths(table, fsa, scores, accuracy, leaky):
    ends = {"initial": table.initial_log_prob, "final": table.final_log_prob}
    mean, gradient, occupancy = enumerated(
        fsa, scores, accuracy, init=table.leaky_log_prob, leaky=leaky, **ends
    )
    for backend in BACKENDS:
        batch = TableBatch.pack([table])
        values, by_score, by_accuracy = differentiated(
            batch, scores[None], accuracy[None], leaky=leaky, backend=backend
        )
        assert float(values[0]) == pytest.approx(mean, abs=tolerances.ENUMERATION)
        close(by_score[0], gradient, tolerances.ENUMERATION)
        close(by_accuracy[0], occupancy, tolerances.ENUMERATION)


def accuracies(num_frames):
    size = num_frames * NUM_PDFS
    return st.lists(st.floats(-1.0, 2.0), min_size=size, max_size=size).map(
        lambda values: np.array(values).reshape(num_frames, NUM_PDFS)
    )


@settings(max_examples=30)
@given(st.data(), graphs(), st.integers(0, 4))
def test_expected_accuracy_and_its_derivatives_equal_path_enumeration(data, fsa, num_frames):
    scores, accuracy = data.draw(score_matrices(num_frames)), data.draw(accuracies(num_frames))
    check_against_paths(compile_table(fsa, NUM_PDFS), fsa, scores, accuracy, 0.0)


@settings(max_examples=30)
@given(st.data(), graphs(max_states=3, max_arcs=5), st.integers(0, 3), st.sampled_from([1e-5, 0.5, 1.0]))
def test_leaks_add_nothing_to_the_accuracy_of_a_path(data, fsa, num_frames, leaky):
    scores, accuracy = data.draw(score_matrices(num_frames)), data.draw(accuracies(num_frames))
    check_against_paths(data.draw(leaking_tables(fsa)), fsa, scores, accuracy, leaky)


def case(scale=1.0):
    scores = scale * make_output(seed=3).detach()
    return scores, torch.rand(scores.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.mark.parametrize(
    ("leaky", "scale"), [(0.5, 1.0), (1e-5, 80.0), (0.0, 1000.0), (0.0, "one-hot"), (1e-5, "one-hot")]
)
def test_the_oracle_is_met_at_every_scale(leaky, scale):
    """One-hot: +-30, one pdf at a time; a frame in which all pdfs but one cannot be; a pdf that never can."""
    scores, accuracy = case(1.0 if scale == "one-hot" else scale)
    if scale == "one-hot":
        scores = torch.where(scores == scores.max(dim=2, keepdim=True).values, 30.0, -30.0).double()
        scores[:, 4, 1:] = -torch.inf
        scores[:, :, 5] = -torch.inf
    tables = [make_denominator(n).table for n in range(SIZE)]
    for batch in (make_denominator().batch(SIZE), TableBatch.pack(tables)):
        got = differentiated(batch, scores, accuracy, LENGTHS, leaky)
        want = differentiated(batch, scores, accuracy, LENGTHS, leaky, "reference")
        assert want[0].isfinite().any()
        torch.testing.assert_close(got, want, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("wanted", [0, 1], ids=["scores", "accuracy"])
def test_a_gradient_by_one_of_both_is_that_beside_the_others(wanted):
    batch, given = make_denominator().batch(SIZE), [x.clone() for x in case()]
    expected = differentiated(batch, *given, LENGTHS)
    given[wanted].requires_grad_()
    values = expected_accuracy(batch, *given, LENGTHS)
    assert torch.equal(values, expected[0])
    assert torch.equal(*torch.autograd.grad(values.sum(), given[wanted]), expected[1 + wanted])


def two_lobes():
    """Two parts that never meet: one has pdf 0 alone, the other pdf 1 or 2 in each frame."""
    arcs = [(0, 1, 0), (1, 1, 0), (0, 2, 1), (2, 2, 1), (2, 2, 2)]
    src, dst, pdf = zip(*arcs, strict=True)
    return Fsa(3, src, dst, pdf, [-0.5] * len(arcs), [-math.inf, 0.0, 0.0])


@pytest.mark.parametrize("swing", [3.0, 1000.0])
def test_a_part_that_wins_after_falling_far_behind_is_not_lost(swing):
    """It is 4 x swing behind after four frames: within the range of floats, or far below the smallest."""
    scores, accuracy = torch.rand(
        2, 1, 9, NUM_PDFS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    scores[0, :4, 1:] -= swing
    scores[0, 5:, 0] -= 2 * swing
    batch = TableBatch.pack([compile_table(two_lobes(), NUM_PDFS)])
    got, want = (differentiated(batch, scores, accuracy, backend=backend) for backend in ("cpu", "reference"))
    assert want[1][0, 2, 1:].abs().min() > 0.01
    torch.testing.assert_close(got, want, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_accuracy_that_is_no_number_harms_its_sequence_alone(value):
    """What is wrong with scores, lengths and graphs: test_every_loss.py, test_loss.py."""
    batch, (scores, accuracy) = make_denominator().batch(SIZE), case()
    clean = differentiated(batch, scores, accuracy, LENGTHS)
    accuracy[1, 3] = value
    spoilt = differentiated(batch, scores, accuracy, LENGTHS)
    assert spoilt[0][1].isnan() and not spoilt[1][1].any() and not spoilt[2][1].any()
    others = [0, 2, 3]
    assert all(torch.equal(ours[others], theirs[others]) for ours, theirs in zip(spoilt, clean, strict=True))


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"scores": np.zeros((1, 4, 3))}, ShapeError, "scores is a ndarray; expected a torch tensor"),
        ({"accuracy": torch.zeros(1, 4, 2)}, ShapeError, r"accuracy has shape \[1, 4, 2\] .* shape \[1, 4, 3\]"),
        ({"leaky_hmm_coefficient": 2.0}, ConfigError, "leaky_hmm_coefficient = 2.0"),
        ({"backend": "cuda"}, BackendUnavailable, "cuda"),
    ],
)  # fmt: skip
def test_malformed_arguments_are_refused(changed, error, match):
    batch = TableBatch.pack([compile_table(two_lobes(), NUM_PDFS)])
    arguments = {"scores": torch.zeros(1, 4, 3), "accuracy": torch.zeros(1, 4, 3)} | changed
    with pytest.raises(error, match=match):
        expected_accuracy(batch, **arguments)


def reference_loss(output, weights, leaky):
    """From the oracle: E[A] [N], its gradient times weights, the numerators, log Z [N] of the denominator."""
    numerators = TableBatch.pack([compile_table(fsa, WIDTH) for fsa in make_graphs()])
    num = forward_backward(numerators, output, LENGTHS, backend="reference")
    den = make_denominator().batch(SIZE)
    values, gradient, _ = differentiated(den, output, num.occupancy, LENGTHS, leaky, "reference")
    den_log_prob = forward_backward(
        den, output, LENGTHS, leaky_hmm_coefficient=leaky, backend="reference"
    ).log_prob
    return values, weights.view(-1, 1, 1) * gradient, num, den_log_prob


def test_the_objective_is_the_weighted_expected_accuracy():
    """The other fields of the record are those of every loss (test_loss.py)."""
    loss, output = make_loss("MBR", l2_regularize=0.01, xent_regularize=0.3), make_output(scale=20.0)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
    xent = make_output(seed=1).detach().log_softmax(dim=2)
    value = loss(output, LENGTHS, make_graphs(), weights=weights, xent_log_probs=xent)
    expected, _, num, den = reference_loss(output.detach(), weights, 0.1)
    record = loss.last_record
    close(record.expected_accuracy, expected)
    assert ((record.expected_accuracy > 0) & (record.expected_accuracy < torch.tensor(LENGTHS))).all()
    close(record.num_log_prob, num.log_prob)
    close(record.den_log_prob, den)
    close(record.objf_ok, (weights * expected).sum())
    total = record.objf_ok + record.l2_term + record.out_of_range_term + 0.3 * record.xent_objf
    close(value.detach(), -total / record.weight_ok, tolerances.ROUNDING)


@pytest.mark.parametrize("leaky", [0.0, 0.5])
def test_the_gradient_of_the_loss_is_that_of_the_expected_accuracy(leaky):
    loss = make_loss("MBR", leaky_hmm_coefficient=leaky, out_of_range_regularize=0.0)
    output, weights = make_output(), torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
    (-8.0 * loss(output, LENGTHS, make_graphs(), weights=weights)).backward()
    _, gradient, _, _ = reference_loss(output.detach(), weights, leaky)
    close(output.grad, 8.0 * gradient / loss.last_record.weight_ok, tolerances.LOSS_TERM)
