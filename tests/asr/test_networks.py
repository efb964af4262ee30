"""What holds of every network: an utterance alone, padded, in a batch or chunk by chunk gives the same outputs."""

import numpy as np
import own_networks
import pytest
import test_conformer
import test_tdnnf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from tolerances import NETWORK_FLOAT32, NETWORK_FLOAT64

from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.model import AcousticModel, begin_network, permitted_imports, read_weights
from fsachain.asr.data.cmvn import Cmvn
from fsachain.asr.data.dataset import Example
from fsachain.asr.nn import Conformer, StreamingModel
from fsachain.asr.nn.network import check_output
from fsachain.asr.train.checkpoint import Checkpoint
from fsachain.errors import ConfigError, DataError, ShapeError
from recipes.fine_tune.encoder import DilatedEncoder

NETWORKS = {
    f"{module.__name__}, {name}": (module.network, options)
    for module in (test_tdnnf, test_conformer)
    for name, options in module.VARIANTS.items()
}
WITH_BRANCH = list(NETWORKS)


def encoder():
    torch.manual_seed(1)
    return DilatedEncoder(5, 7, channels=8, dilations=(1, 2)).eval()


NETWORKS["the encoder of recipes/fine_tune"] = encoder, {}
STREAMED = [name for name in NETWORKS if "tdnnf" in name or "chunk" in name or "encoder" in name]


def made(name, **more):
    make, options = NETWORKS[name]
    return make(**{**options, **more}).double()


def batch(lengths, padding=0.0):
    return own_networks.batch(lengths, padding, torch.float64)


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


@pytest.mark.parametrize("name", WITH_BRANCH)
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
    for one in (features, features.flip(1)):  # the second is an utterance of its own
        parts = [stream.accept(part) for part in one[0].split(chunks)]
        found = torch.cat([*parts, stream.finish()])
        expected = model(one, lengths).nnet_output[0] if sum(chunks) else found[:0]
        torch.testing.assert_close(found, expected, rtol=NETWORK_FLOAT64, atol=NETWORK_FLOAT64)


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_gives_outputs_once_they_are_settled_and_works_on_a_chunk_and_its_context(name):
    model, seen = made(name), []
    model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].shape[1]))
    stream, count, period = StreamingModel(model), 0, getattr(model, "period", 1)
    for t, frame in enumerate(batch([600])[0][0]):
        count += len(stream.accept(frame[None]))
        settled = max(0, t + model.subsampling - stream.delay) // model.subsampling
        assert count == -(-settled // period) * period  # chunks whose first output is settled
    assert max(seen) <= sum(model.context) + 3 * period * model.subsampling


@pytest.mark.parametrize("name", STREAMED)
def test_an_output_sees_its_context_and_nothing_else(name):
    """Of a TDNN as far to both sides of the centre that its time offset names."""
    model = made(name)
    (before, after), step, period = model.context, model.subsampling, getattr(model, "period", 1)
    middle = -(-(before + 1) // step) // period + 1
    outputs = [middle * period + place for place in range(period)]
    num_frames = step * (outputs[-1] + 1) + after + 3
    reach = []
    for output in outputs:
        features = torch.randn(1, num_frames, 5, dtype=torch.float64, requires_grad=True)
        model(features, torch.tensor([num_frames])).nnet_output[0, output].square().sum().backward()
        touched = features.grad[0].abs().sum(dim=1).nonzero().flatten()
        reach.append((step * output - int(touched[0]), int(touched[-1]) - (step * (output + 1) - 1)))
    assert (max(one for one, _ in reach), max(other for _, other in reach)) == (before, after)
    assert "tdnnf" not in name or step - 1 + after - before == 2 * model.time_offset


@pytest.mark.parametrize("network", [test_tdnnf.network, test_conformer.network])
def test_inputs_that_do_not_fit_are_refused(network):
    model = network()
    with pytest.raises(ShapeError, match=r"features have shape \[2, 9, 4\], expected \[N, T, 5\]"):
        model(torch.zeros(2, 9, 4), torch.tensor([9, 9]))
    with pytest.raises(ShapeError, match=r"lengths have shape \[1\], expected \[2\]"):
        model(torch.zeros(2, 9, 5), torch.tensor([9]))
    with pytest.raises(ShapeError, match=r"lengths\[1\] = 10 is not within the 9 frames"):
        model(torch.zeros(2, 9, 5), torch.tensor([9, 10]))


def test_what_has_no_stream_or_does_not_fit_it_is_refused():
    whole, network = test_conformer.network(), test_tdnnf.network()
    refuses(ConfigError, "each output of Conformer sees the whole utterance", StreamingModel, whole)
    refuses(ConfigError, "is in training mode", StreamingModel, test_tdnnf.network().train())
    refuses(ConfigError, "context: Linear does not say", StreamingModel, torch.nn.Linear(2, 2).eval())
    for context in ((-1, 0), (0, -1)):
        refuses(ConfigError, rf"context is \({context[0]}, {context[1]}\)", StreamingModel, network, context)
    stream = StreamingModel(network)
    refuses(ShapeError, r"finish\(\) before accept\(\)", stream.finish)
    refuses(ShapeError, r"shape \[5\], expected \[T, 5\]", stream.accept, torch.zeros(5))
    stream.accept(torch.zeros(2, 5))
    refuses(ShapeError, r"shape \[2, 4\], expected \[T, 5\]", stream.accept, torch.zeros(2, 4))


@pytest.mark.parametrize("name", STREAMED)
def test_a_chunk_that_is_refused_leaves_the_stream_as_it_was(name):
    stream, (features, _) = StreamingModel(made(name)), batch([60])
    for wrong in (features[0, :, :4], features):
        with pytest.raises(ShapeError, match=r"features have shape .*, expected \[T, 5\]"):
            stream.accept(wrong)
    found = torch.cat([stream.accept(features[0]), stream.finish()])
    assert len(found) == -(-60 // stream.network.subsampling)


# Section `network` of a configuration: kinds, import paths, what a class lacks, weights to begin with.


PLAIN = "own_networks:Plain"


def experiment_of(**network):
    return Experiment.from_dict(
        {"features": {"num_mel_bins": 5}, "cmvn": {"scope": "none"}, "network": network}
    )


def model_of(folder, num_pdfs=4, **network):
    experiment = experiment_of(**network)
    torch.manual_seed(num_pdfs)
    model = AcousticModel(experiment, experiment.network_spec(num_pdfs).build(), Cmvn(experiment.cmvn))
    model.save(folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_conformer_is_named_by_its_kind():
    spec = experiment_of(kind="conformer", channels=16, subsampling=4, chunk=5).network_spec(7)
    network = spec.build()
    assert isinstance(network, Conformer)
    sketch = spec.sketch
    assert (sketch.subsampling, sketch.time_offset, sketch.context) == (4, 2, network.context)
    with pytest.raises(ConfigError, match=r"network\.chanels: unknown option; did you mean 'channels'"):
        experiment_of(kind="conformer", chanels=16)


@pytest.mark.parametrize("name", ["Plain", "Configured"])
def test_a_class_of_ones_own_gets_its_options_from_the_section(name):
    network = experiment_of(kind=f"own_networks:{name}", width=6).network_spec(7).build()
    assert type(network).__name__ == name
    assert network.encoder.weight.shape == (6, 5) and network.head.weight.shape == (7, 6)


def test_reading_a_configuration_imports_nothing():
    spec = experiment_of(kind="there.is.no:Such", depth=3).network_spec(7)
    with pytest.raises(ConfigError, match=r"cannot import there\.is\.no .*installed or on PYTHONPATH"):
        spec.build()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "transformer"}, r"'transformer' is no network; expected tdnnf, conformer or package\.module"),
        ({"kind": 3}, "network.kind: 3 is no network"),
        ({"kind": "os.system"}, "'os.system' is no network"),
        ({"kind": "a b:C"}, "'a b:C' is no network"),
        ({"num_pdfs": 5}, "network.num_pdfs: is not an option.*follows from features and tree"),
        ({"init_from": 5}, "network.init_from: expected the path of a file, got 5"),
    ],
)  # fmt: skip
def test_a_section_that_names_no_network_is_refused_at_once(section, message):
    with pytest.raises(ConfigError, match=message):
        experiment_of(**section)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "own_networks:Missing"}, "own_networks has no 'Missing'"),
        ({"kind": "own_networks:record"}, "is <function record.*expected a class of torch.nn.Module"),
        ({"kind": "own_networks:WithoutPdfs"}, "NarrowConfig has no field 'num_pdfs'; expected one"),
        ({"kind": "own_networks:WithoutFeatures"}, "takes no argument 'num_features'; expected one"),
        ({"kind": PLAIN, "widht": 3}, "network.widht: unknown option of .*Plain; did you mean 'width'"),
        ({"kind": "own_networks:Configured", "widht": 3}, "network.widht: unknown option; did you mean 'width'"),
        ({"kind": "own_networks:Unaware"}, "gives 3000 for 3000 frames; expected 1000, since subsampling is 3"),
        ({"kind": "own_networks:Silent"}, r"has no 'output_lengths'; expected output_lengths\(lengths"),
    ],
)  # fmt: skip
def test_what_a_class_lacks_is_said_by_name(section, message):
    spec = experiment_of(**section).network_spec(7)
    with pytest.raises(ConfigError, match=message):
        spec.build()


def test_an_output_that_is_not_what_the_class_says_is_refused():
    features, lengths = own_networks.batch([90, 40])
    for name, message in (
        (
            "Unthinned",
            r"nnet_output has shape \[2, 90, 7\], 90 frames for 90 of features; expected 30, as output_lengths",
        ),
        ("Bare", "the network gave a Tensor; expected a fsachain.asr.nn.NetworkOutput"),
    ):
        network = getattr(own_networks, name)(5, 7)
        with pytest.raises(ShapeError, match=message):
            check_output(network(features, lengths), network, features, lengths)
    network = own_networks.Plain(5, 7)
    output = network(features, lengths)
    assert check_output(output, network, features, lengths) is output


def test_a_model_of_a_class_of_ones_own_is_loaded_on_the_users_word_alone(tmp_path):
    path = model_of(tmp_path, kind=PLAIN, width=6)
    own_networks.CALLED.clear()
    with pytest.raises(
        DataError, match=r"own_networks:Plain, which is not imported .*--allow-import own_networks:Plain"
    ):
        AcousticModel.load(path)
    with pytest.raises(DataError, match="not imported"), permitted_imports(["own_networks:Configured"]):
        AcousticModel.load(path, ["own_networks"])
    assert own_networks.CALLED == []
    model = AcousticModel.load(path, [PLAIN])
    assert (model.kind, model.network.num_pdfs, model.timing.subsampling) == (PLAIN, 4, 3)
    with permitted_imports([PLAIN]):
        again = AcousticModel.load(path)
    features, lengths = torch.randn(1, 9, 5), torch.tensor([9])
    assert torch.equal(
        model.network(features, lengths).nnet_output, again.network(features, lengths).nnet_output
    )
    with pytest.raises(DataError, match="not imported"):
        AcousticModel.load(path)


def test_weights_that_fit_are_taken_and_the_head_of_another_tree_begins_anew(tmp_path):
    path = model_of(tmp_path, num_pdfs=4, kind=PLAIN)
    other, _ = read_weights(path)
    experiment = experiment_of(kind=PLAIN, init_from=str(path))
    torch.manual_seed(9)
    fresh = experiment.network_spec(6).build()
    torch.manual_seed(9)
    network, told, _ = begin_network(experiment, experiment.network_spec(6))
    assert torch.equal(network.encoder.weight, other["encoder.weight"])
    assert torch.equal(network.encoder.bias, other["encoder.bias"])
    assert torch.equal(network.head.weight, fresh.head.weight)
    assert torch.equal(network.head.bias, fresh.head.bias)
    assert told[0].startswith(f"network: {PLAIN}, ")
    assert told[1].endswith("2 weights taken; 2 of another shape (head.bias, head.weight)")


def test_weights_come_from_checkpoints_and_from_any_safetensors_file(tmp_path):
    from safetensors.torch import save_file

    network = experiment_of(kind=PLAIN).network_spec(4).build()
    state = network.state_dict()
    checkpoint = Checkpoint(1, 0, 4, state, {}, {"cpu": torch.zeros(9, dtype=torch.uint8)}, {})
    save_file(state, tmp_path / "foreign.safetensors")
    for path in (checkpoint.save(tmp_path), tmp_path / "foreign.safetensors"):
        found, _ = read_weights(path)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_file_of_which_nothing_fits_is_refused(tmp_path):
    path = model_of(tmp_path, channels=16)
    experiment = experiment_of(kind=PLAIN, init_from=str(path))
    with pytest.raises(DataError, match=r"model\.safetensors: no weight .* expected such as encoder\.bias"):
        begin_network(experiment, experiment.network_spec(4))
    missing = experiment_of(kind=PLAIN, init_from=str(tmp_path / "absent.safetensors"))
    with pytest.raises(DataError, match=r"absent\.safetensors: cannot read the weights"):
        begin_network(missing, missing.network_spec(4))


def test_outputs_of_shifted_features_are_averaged(tmp_path):
    """Five passes of the network, features two frames late to two early, their edges repeated; 9 and 4 frames."""
    model = AcousticModel.load(model_of(tmp_path))
    features = {n: np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32) for n in (9, 4)}
    examples = [Example(f"utt{n}", "speaker", (), found) for n, found in features.items()]
    found = model.outputs(examples, frame_shift=2)
    for example in examples:
        frames, last = np.arange(example.num_frames), example.num_frames - 1
        moved = [example.features[(frames + shift).clip(0, last)] for shift in range(-2, 3)]
        with torch.inference_mode():
            alone = [model.network(torch.tensor(one[None]), torch.tensor([last + 1])) for one in moved]
        mean = sum(one.nnet_output[0] for one in alone) / 5
        np.testing.assert_allclose(found[example.id], mean, atol=NETWORK_FLOAT32)


def test_outputs_are_the_mean_with_those_of_another_network(tmp_path):
    one, other = (AcousticModel.load(model_of(tmp_path, channels=width)) for width in (16, 24))
    features = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    models = one, other, one.mean_with(other, 0.25)
    own, its, mean = (
        model.outputs([Example("a", "s", (), features)], frame_shift=1)["a"] for model in models
    )
    np.testing.assert_allclose(mean, 0.75 * own + 0.25 * its, atol=NETWORK_FLOAT32)
    more_pdfs = AcousticModel.load(model_of(tmp_path, num_pdfs=5))
    with pytest.raises(
        ConfigError, match=r"first_pass_share: expected models of the same pdfs, .* has 4, .* has 5"
    ):
        one.mean_with(more_pdfs, 0.5)
