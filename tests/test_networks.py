"""What holds of every network: an utterance alone, padded, in a batch or chunk by chunk gives the same outputs."""

import pytest
import test_conformer
import test_tdnnf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import NETWORK_FLOAT64

from fsachain.errors import ConfigError, ShapeError
from fsachain.nn import StreamingModel

NETWORKS = {
    f"{module.__name__}, {name}": (module.network, options)
    for module in (test_tdnnf, test_conformer)
    for name, options in module.VARIANTS.items()
}
STREAMED = [name for name in NETWORKS if "tdnnf" in name or "chunk" in name]


def made(name, **more):
    make, options = NETWORKS[name]
    return make(**{**options, **more}).double()


def batch(lengths, padding=0.0):
    generator = torch.Generator().manual_seed(len(lengths))
    features = torch.randn(len(lengths), max(lengths), 5, generator=generator, dtype=torch.float64)
    for row, length in zip(features, lengths, strict=True):
        row[length:] = padding
    return features, torch.tensor(lengths)


@pytest.mark.parametrize("name", NETWORKS)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), extra=st.integers(0, 7))
@settings(max_examples=5)
def test_result_for_an_utterance_does_not_depend_on_its_batch_or_what_padding_holds(name, lengths, extra):
    """Rows of no frames among them; float64, so that only true influence shows."""
    model = made(name)
    features, counts = batch([*lengths, max(lengths) + 1 + extra], torch.nan)
    features, counts = features[:-1], counts[:-1]
    together = model(features, counts)
    assert together.nnet_output.shape == (len(lengths), -(-features.shape[1] // model.subsampling), 7)
    assert torch.equal(together.lengths, model.output_lengths(counts))
    for n, length in enumerate(lengths):
        assert together.lengths[n] == -(-length // model.subsampling)
        if length:
            alone = model(features[n : n + 1, :length], counts[n : n + 1]).nnet_output[0]
            found = together.nnet_output[n, : len(alone)]
            torch.testing.assert_close(found, alone, rtol=NETWORK_FLOAT64, atol=NETWORK_FLOAT64)


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_no_gradient_and_every_weight_has_one(name):
    model = made(name, dropout=0.0, xent="branch").train()

    def gradients(padding):
        model.zero_grad()
        output = model(*batch([30, 12, 21, 0], padding))
        loss = sum(
            output.nnet_output[n, :t].square().sum() - output.xent_log_probs[n, :t, 0].sum()
            for n, t in enumerate(output.lengths.tolist())
        )
        loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    plain, other = gradients(0.0), gradients(1e6)
    for name, gradient in plain.items():
        assert torch.equal(gradient, other[name]), name
        assert gradient.abs().max() > 0, name


@pytest.mark.parametrize("name", STREAMED)
@given(chunks=st.lists(st.integers(0, 40), min_size=1, max_size=8))
@settings(max_examples=15)
def test_a_stream_gives_the_outputs_of_the_whole(name, chunks):
    model = made(name)
    stream = StreamingModel(model)
    features, lengths = batch([sum(chunks)])
    parts = [stream.accept(part) for part in features[0].split(chunks)]
    found = torch.cat([*parts, stream.finish()])
    if not sum(chunks):
        assert len(found) == 0
        return
    expected = model(features, lengths).nnet_output[0]
    torch.testing.assert_close(found, expected, rtol=NETWORK_FLOAT64, atol=NETWORK_FLOAT64)


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_works_on_a_chunk_and_its_context_however_long_the_utterance(name):
    model, seen = made(name), []
    model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].shape[1]))
    stream, count, period = StreamingModel(model), 0, getattr(model, "period", 1)
    for t, frame in enumerate(batch([600])[0][0]):
        count += len(stream.accept(frame[None]))
        assert count % period == 0 and count >= (t - stream.delay) // model.subsampling
    assert max(seen) <= sum(model.context) + 3 * period * model.subsampling


@pytest.mark.parametrize("network", [test_tdnnf.network, test_conformer.network])
def test_inputs_that_do_not_fit_are_refused(network):
    model = network()
    with pytest.raises(ShapeError, match=r"features have shape \[2, 9, 4\], expected \[N, T, 5\]"):
        model(torch.zeros(2, 9, 4), torch.tensor([9, 9]))
    with pytest.raises(ShapeError, match=r"lengths have shape \[1\], expected \[2\]"):
        model(torch.zeros(2, 9, 5), torch.tensor([9]))
    with pytest.raises(ShapeError, match=r"lengths\[1\] = 10 is not within the 9 frames"):
        model(torch.zeros(2, 9, 5), torch.tensor([9, 10]))


def test_a_network_whose_outputs_see_the_whole_utterance_has_no_stream():
    with pytest.raises(ConfigError, match="each output of Conformer sees the whole utterance"):
        StreamingModel(test_conformer.network())
