"""Models as ONNX files: what onnxruntime computes from raw features is what the package computes."""

import json
import logging

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tdnnf import SMALL, network
from test_use_commands import model as spoken_model  # noqa: F401
from tolerances import NETWORK_FLOAT32

from fsachain.asr.data.cmvn import Cmvn, CmvnConfig
from fsachain.asr.data.loudness import Loudness
from fsachain.asr.nn import export
from fsachain.asr.nn.export import ExportedModel, export_onnx

MODELS = {
    "global, subsampling in the input layer": ("global", "mean-variance", {}),
    "by utterance, subsampling in layer 2": ("utterance", "mean-variance", {"subsampling_layer": 2, "input_kernel": 3}),
}  # fmt: skip
EAGER = MODELS | {
    "no CMVN, no subsampling": ("none", "mean", {"subsampling": 1}),
    "means by speaker, plain layers": ("speaker", "mean", {"bottleneck": 0}),
}


def features_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    matrices = [
        (8.0 + 3.0 * rng.normal(size=(length, SMALL["num_features"]))).astype(np.float32)
        for length in lengths
    ]
    for matrix in matrices:
        matrix[20:26] = np.log(np.finfo(np.float32).eps)  # digital silence
        matrix[28:30] -= 8.0
    return matrices


def model_of(scope, moments, options):
    config = CmvnConfig(scope, moments)
    training = [("all", matrix) for matrix in features_of([50, 60], seed=7)]
    loudness = Loudness(SMALL["num_features"])
    if scope == "speaker":
        return network(**options), Cmvn(config, loudness=loudness)
    return network(**options), Cmvn.estimate(config, training, loudness)


def expected_of(model, cmvn, matrix):
    """One utterance by the package's own CMVN and network."""
    own = cmvn
    if cmvn.config.scope == "speaker":
        own = Cmvn.estimate(cmvn.config, [("self", matrix)], cmvn.loudness)
    with torch.inference_mode():
        normal = torch.from_numpy(own.apply(matrix, "self"))
        return model(normal[None], torch.tensor([len(matrix)])).nnet_output[0].numpy()


def padded(matrices, extra=0):
    """A batch whose padding would poison every sum that it came into."""
    lengths = np.array([len(matrix) for matrix in matrices], dtype=np.int64)
    batch = np.full((len(matrices), int(lengths.max()) + extra, SMALL["num_features"]), np.nan, np.float32)
    for row, matrix in zip(batch, matrices, strict=True):
        row[: len(matrix)] = matrix
    return batch, lengths


def check(run, model, cmvn, matrices, extra=0):
    outputs, counts = run(*padded(matrices, extra))
    for row, count, matrix in zip(outputs, counts, matrices, strict=True):
        expected = expected_of(model, cmvn, matrix)
        assert count == len(expected)
        bound = 10 * NETWORK_FLOAT32 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(row[:count], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("options", EAGER.values(), ids=EAGER.keys())
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), extra=st.integers(0, 5))
def test_the_module_that_is_exported_is_cmvn_and_network(options, lengths, extra):
    model, cmvn = model_of(*options)
    module = ExportedModel(model, cmvn)

    def run(features, counts):
        with torch.inference_mode():
            return (part.numpy() for part in module(torch.from_numpy(features), torch.from_numpy(counts)))

    check(run, model, cmvn, features_of(lengths), extra)


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_onnxruntime_computes_the_same_from_raw_features_at_every_length(options, tmp_path):
    model, cmvn = model_of(*options)
    path = tmp_path / "model.onnx"
    difference = export_onnx(path, model, cmvn, {"subsampling": model.subsampling, "names": ["a", "ß"]})
    assert difference <= export.PARITY
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["features", "lengths"]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["subsampling"]) == model.subsampling
    assert json.loads(metadata["names"]) == ["a", "ß"]

    def run(features, counts):
        return session.run(["nnet_output", "nnet_lengths"], {"features": features, "lengths": counts})

    for lengths in ([1], [2], [3], [100], [31, 7, 32, 1], [33, 33]):
        check(run, model, cmvn, features_of(lengths), extra=len(lengths) - 1)


class Listed(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_export_writes_a_file_that_says_how_its_features_are_made(fsachain, spoken_model, tmp_path):  # noqa: F811
    path, logged = tmp_path / "exported" / "model.onnx", Listed()
    torch_log = logging.getLogger(
        "torch.onnx._internal.exporter._registration"
    )  # beside what the fixture sees
    torch_log.addHandler(logged)
    status, output, errors = fsachain("export", spoken_model, path)
    torch_log.removeHandler(logged)
    assert (status, errors, logged.messages) == (0, "", [])
    assert "onnxruntime and PyTorch differ by" in output
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    metadata = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert metadata["features"]["num_mel_bins"] == 8
    assert metadata["cmvn"]["scope"] == "utterance"
    assert (metadata["subsampling"], metadata["frame_shift_ms"]) == (3, 10.0)
