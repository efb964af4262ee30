"""`LFMMILoss(boost=b)`: the denominator sees y - b a(t, p), a the numerator's occupancy, which counts as a constant."""

import pytest
import tolerances
import torch
from loss_inputs import (
    LENGTHS,
    SIZE,
    WIDTH,
    close,
    make_denominator,
    make_graphs,
    make_loss,
    make_output,
    real_frames,
)

from fsachain import TableBatch, compile_table, forward_backward
from fsachain.errors import ConfigError

BOOST = 0.4


def make_numerators():
    return TableBatch.pack([compile_table(fsa, WIDTH) for fsa in make_graphs()])


def oracle(output, boost, leaky=0.1):
    """Numerator, and denominator of the boosted scores, both by the oracle in float64."""
    y = output.detach().double()
    num = forward_backward(make_numerators(), y, LENGTHS, backend="reference")
    den = forward_backward(
        make_denominator().batch(SIZE),
        y - boost * num.occupancy,
        LENGTHS,
        leaky_hmm_coefficient=leaky,
        backend="reference",
    )
    return num, den


@pytest.mark.parametrize("leaky", [0.0, 1e-5, 0.5])
def test_value_and_gradient_are_those_of_the_boosted_scores(leaky):
    """A weight of zero leaves log Z as it is and takes the gradient away."""
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
    options = {"denominator_scale": 0.7, "l2_regularize": 0.05, "leaky_hmm_coefficient": leaky}
    loss, output = make_loss("boosted", **options), make_output(scale=5.0)
    loss(output, LENGTHS, make_graphs(), weights=weights).backward()
    num, den = oracle(output, BOOST, leaky)
    record = loss.last_record
    close(record.num_log_prob, num.log_prob)
    close(record.den_log_prob, den.log_prob)
    close(record.objf_ok, (weights * (num.log_prob - 0.7 * den.log_prob)).sum())
    expected = num.occupancy - 0.7 * den.occupancy - 0.05 * output.detach() * real_frames()
    close(-output.grad * record.weight_ok, weights.view(-1, 1, 1) * expected)


def test_without_boost_not_a_bit_differs_from_the_plain_loss():
    results = []
    for options in ({}, {"boost": 0.0}):
        output = make_output(dtype=torch.float32)
        value = make_loss(l2_regularize=0.01, **options)(output, LENGTHS, make_graphs())
        value.backward()
        results.append((value.detach(), output.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 30.0, 80.0, 1000.0])
def test_num_minus_den_is_met_per_frame_at_every_scale(scale, dtype):
    loss, output = make_loss("boosted", out_of_range_regularize=0.0), make_output(scale=scale, dtype=dtype)
    loss(output, LENGTHS, make_graphs()).backward()
    num, den = oracle(output, BOOST)
    record = loss.last_record
    difference = (record.num_log_prob - record.den_log_prob) - (num.log_prob - den.log_prob)
    assert (difference.abs() / torch.tensor(LENGTHS)).max() <= tolerances.OBJF_PER_FRAME
    limit = 2 * tolerances.OCCUPANCY / sum(LENGTHS) + torch.finfo(dtype).eps
    close(-output.grad.double(), (num.occupancy - den.occupancy) / sum(LENGTHS), limit)


def test_the_branch_gets_the_numerators_occupancy_whatever_the_boost():
    grads = []
    for kind in ("LF-MMI", "boosted"):
        branch = make_output(seed=1)
        loss = make_loss(kind, xent_regularize=0.3)
        weights = [1.0, 0.5, 2.0, 0.0]
        loss(make_output(), LENGTHS, make_graphs(), weights=weights, xent_log_probs=branch).backward()
        grads.append((branch.grad, loss.last_record.xent_objf))
    for plain, boosted in zip(*grads, strict=True):
        close(plain, boosted, tolerances.FLOAT64)


def test_a_boost_must_not_be_negative():
    with pytest.raises(ConfigError, match=r"boost = -0.1; expected a finite number >= 0"):
        make_loss("boosted", boost=-0.1)
