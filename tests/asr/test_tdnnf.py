"""The network: shapes, independence of the batch, derivatives, the semi-orthogonal constraint."""

import pytest
import torch
from own_networks import as_trained, batch
from tolerances import FEW_ROUNDINGS, ORTHONORMAL

from fsachain.asr.nn import Tdnnf, TdnnfConfig
from fsachain.asr.nn.layers import MaskedBatchNorm, TimeConstantDropout, semi_orthogonal_step

SMALL = {"num_features": 5, "num_pdfs": 7, "channels": 12, "bottleneck": 4, "prefinal": 8}
VARIANTS = {
    "factorised": {},
    "plain, no prefinal": {"bottleneck": 0, "prefinal": 0, "bypass": 0.0},
    "subsampling in layer 2": {"subsampling_layer": 2, "input_kernel": 1, "dropout_kind": "frame"},
    "no subsampling": {"subsampling": 1, "time_strides": (1, 0, 3)},
}


def network(**options):
    torch.manual_seed(1)
    return as_trained(Tdnnf(TdnnfConfig(**{**SMALL, "time_strides": (1, 2, 3), **options})))


def test_batch_norm_derivative_is_that_of_its_formula():
    norm = MaskedBatchNorm(3).double().train()
    x = torch.randn(
        4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True
    )
    lengths = torch.tensor([6, 2, 5, 1])
    mask = (torch.arange(6) < lengths[:, None])[:, None].double()
    assert torch.autograd.gradcheck(lambda x: norm(x, mask), x)
    assert torch.autograd.gradcheck(lambda x: norm(x, None), x)
    frames = norm(x, mask).transpose(1, 2)[mask[:, 0].bool()]
    reference = torch.relu(x).transpose(1, 2)[mask[:, 0].bool()]
    reference = (reference - reference.mean(0)) / (reference.var(0, correction=0) + norm.epsilon).sqrt()
    torch.testing.assert_close(frames, reference)


def test_statistics_of_a_large_batch_are_exact_to_a_few_roundings():
    """An error of 1e-5 here turns rectifiers of the next layer on and off."""
    x = torch.randn(16, 8, 150, generator=torch.Generator().manual_seed(5))
    norm = MaskedBatchNorm(8).train()
    norm(x, None)
    exact = torch.relu(x.double())
    expected = exact.mean(dim=(0, 2)), exact.var(dim=(0, 2), correction=0)
    for found, value in zip((norm.running_mean, norm.running_var), expected, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=FEW_ROUNDINGS, atol=0.0)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (8, 8)])
def test_constraint_converges_to_orthogonal_rows_of_equal_norm(shape):
    torch.manual_seed(4)
    matrix = torch.randn(shape) / 3
    for _ in range(60):
        matrix = semi_orthogonal_step(matrix)
    gram = matrix @ matrix.t() if shape[0] <= shape[1] else matrix.t() @ matrix
    torch.testing.assert_close(
        gram / gram.trace() * len(gram), torch.eye(len(gram)), atol=ORTHONORMAL, rtol=0
    )


@pytest.mark.parametrize("frozen", [None, 1])
def test_constrain_orthonormal_changes_first_factors_that_are_not_frozen(frozen):
    model = network()
    if frozen is not None:
        model.layers[frozen].requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model.constrain_orthonormal()
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {f"layers.{i}.linear.weight" for i in range(3) if i != frozen}


def test_dropout_by_utterance_scales_each_channel_of_an_utterance_by_one_factor_about_one():
    torch.manual_seed(5)
    dropout, x = TimeConstantDropout(0.2), torch.ones(40, 50, 3)
    factors = dropout(x)
    assert torch.equal(factors, factors[:, :, :1].expand_as(x))
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4 and len(factors.unique()) > 1900
    assert abs(factors[:, :, 0].mean() - 1.0) < 0.02
    assert torch.equal(dropout.eval()(x), x)


def test_xent_branch_exists_in_training_only_and_is_normalised():
    model = network(xent="branch")
    assert model(*batch([9])).xent_log_probs is None
    output = model.train()(*batch([9, 6]))
    torch.testing.assert_close(output.xent_log_probs.exp().sum(-1), torch.ones(2, 3))
    assert network().train()(*batch([9])).xent_log_probs is None
