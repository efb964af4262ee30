"""Section `network` of a configuration: kinds, import paths, what a class lacks, weights to begin with."""

import own_networks
import pytest
import torch

from fsachain.cli.config import Experiment
from fsachain.cli.model import AcousticModel, begin_network, permitted_imports, read_weights
from fsachain.data.cmvn import Cmvn
from fsachain.errors import ConfigError, DataError
from fsachain.nn import Conformer
from fsachain.train.checkpoint import Checkpoint

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
    assert (spec.subsampling, spec.time_offset, spec.context) == (4, 2, network.context)
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
        (
            {"kind": "transformer"},
            r"'transformer' is no network; expected tdnnf, conformer or package\.module",
        ),
        ({"kind": 3}, "network.kind: 3 is no network"),
        ({"kind": "os.system"}, "'os.system' is no network"),
        ({"kind": "a b:C"}, "'a b:C' is no network"),
        ({"num_pdfs": 5}, "network.num_pdfs: is not an option"),
        ({"init_from": 5}, "network.init_from: expected the path of a file, got 5"),
    ],
)
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
        (
            {"kind": "own_networks:Configured", "widht": 3},
            "network.widht: unknown option; did you mean 'width'",
        ),
        ({"kind": "own_networks:Silent"}, r"has no 'output_lengths'; expected output_lengths\(lengths"),
    ],
)
def test_what_a_class_lacks_is_said_by_name(section, message):
    spec = experiment_of(**section).network_spec(7)
    with pytest.raises(ConfigError, match=message):
        spec.build()


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
    begun = begin_network(experiment, experiment.network_spec(6))
    network, told = begun.network, begun.lines
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
