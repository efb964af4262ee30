"""The Conformer: shapes, independence of batch and padding, chunks, streams, ONNX, derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_networks import as_trained, batch
from tolerances import NETWORK_BFLOAT16, NETWORK_FLOAT64

from fsachain.asr.nn import Conformer, ConformerConfig
from fsachain.asr.nn.conformer import ConvSubsampling, RotaryAttention, frames_below, rotation, visible

SMALL = {"num_features": 5, "num_pdfs": 7, "channels": 16, "num_heads": 2, "num_layers": 2}
SMALL |= {"feed_forward": 24, "kernel": 5, "filters": 4}
VARIANTS = {
    "whole utterances": {},
    "batch normalisation, subsampling by 4": {"norm": "batch", "subsampling": 4},
    "no subsampling": {"subsampling": 1},
    "chunks of 4": {"chunk": 4, "left_chunks": 1},
    "chunks of 3, by 2, kernel 1": {"chunk": 3, "left_chunks": 0, "subsampling": 2, "kernel": 1},
    "chunks of 1, batch normalisation": {"chunk": 1, "left_chunks": 5, "norm": "batch"},
}


def network(**options):
    torch.manual_seed(1)
    return as_trained(Conformer(ConformerConfig(**{**SMALL, **options})))


@pytest.mark.parametrize("subsampling", [1, 2, 3, 4, 6])
def test_subsampling_sees_as_far_as_its_context_says_to_both_sides_of_its_centre(subsampling):
    torch.manual_seed(2)
    layer = ConvSubsampling(8, 4, filters=3, subsampling=subsampling)
    for convolution in layer.convolutions:  # so that no ReLU hides a dependence
        torch.nn.init.uniform_(convolution.weight, 0.1, 1.0)
    features = torch.rand(1, 12 * subsampling, 8, requires_grad=True)
    layer(features, torch.tensor([12 * subsampling]))[0][0, 6].square().sum().backward()
    touched = features.grad[0].abs().sum(dim=1).nonzero().flatten()
    first, last = int(touched[0]), int(touched[-1])
    before, after = layer.context
    assert (first, last) == (6 * subsampling - before, 7 * subsampling - 1 + after)
    assert (first + last) / 2 == 6 * subsampling + subsampling // 2


@given(
    chunk=st.integers(1, 5),
    left_chunks=st.integers(0, 3),
    length=st.integers(1, 17),
    padding=st.integers(0, 4),
)
@settings(max_examples=20)
def test_attention_in_chunks_is_attention_to_the_chunk_and_those_before_it(
    chunk, left_chunks, length, padding
):
    """Masked attention to everything against one attention for each chunk, with the keys cut out."""
    torch.manual_seed(3)
    attention = RotaryAttention(8, 2).double()
    total = length + padding
    x = torch.randn(1, total, 8, dtype=torch.float64)
    angles = rotation(total, 4, x.device)
    real = frames_below(torch.tensor([length]), total)
    found = attention(x, visible(real, chunk, left_chunks), angles)[0]
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        first = max(0, start - left_chunks * chunk)
        own = visible(torch.ones(1, end - first, dtype=torch.bool), 0, 0)
        part = attention(x[:, first:end], own, tuple(a[: end - first] for a in angles))[0][start - first :]
        torch.testing.assert_close(found[start:end], part, rtol=NETWORK_FLOAT64, atol=NETWORK_FLOAT64)


@pytest.mark.parametrize(("norm", "dtype"), [("layer", torch.float16), ("batch", torch.bfloat16)])
def test_half_precision_is_near_and_its_gradients_are_finite(norm, dtype):
    torch.manual_seed(4)
    model = Conformer(ConformerConfig(**{**SMALL, "norm": norm, "dropout": 0.0})).train()
    features, lengths = batch([40, 23])
    full = model(features, lengths).nnet_output.detach()
    with torch.autocast("cpu", dtype=dtype):
        output = model(features, lengths).nnet_output
    assert output.dtype == dtype
    assert (output.float() - full).abs().max() < NETWORK_BFLOAT16 * full.abs().max()
    grads = torch.autograd.grad(output.float().square().sum(), list(model.parameters()))
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_new_network_starts_from_small_scores_and_can_learn():
    torch.manual_seed(7)
    model = Conformer(ConformerConfig(**SMALL)).train()
    features, lengths = batch([30, 24])
    assert model(features, lengths).nnet_output.abs().max() < 3
    target = features[:, 1::3, :1].repeat(1, 1, 7)[:, :8]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = (model(features, lengths).nnet_output[:, :8] - target).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2 * target.square().mean().item()


def test_order_of_frames_matters_to_attention():
    """Without positions, attention gives the same for frames in any order."""
    torch.manual_seed(9)
    attention = RotaryAttention(8, 2).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    mask = visible(torch.ones(1, 6, dtype=torch.bool), 0, 0)
    angles = rotation(7, 4, x.device)
    first = attention(x, mask, tuple(part[:6] for part in angles))
    mixed = x[:, [0, 2, 1, 3, 4, 5]]
    assert (attention(mixed, mask, tuple(part[:6] for part in angles))[0, 0] - first[0, 0]).abs().max() > 1e-3
    later = attention(x, mask, tuple(part[1:] for part in angles))
    torch.testing.assert_close(later, first)  # only distances count
