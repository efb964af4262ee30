"""A model file that names code: nothing is imported, nothing is called."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from fsachain.cli.model import AcousticModel, permitted_imports, read_weights
from fsachain.errors import DataError
from fsachain.train.checkpoint import load_tensors, save_tensors
from tools.fuzz.readers import READERS

MODEL = next(reader for reader in READERS if reader.name == "model")
LOUD = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Network: pass\n"


def claim(path, **network):
    """A sound model whose header says that its network is another."""
    MODEL.write(path)
    tensors, header = load_tensors(path)
    header["experiment"]["network"] = network
    save_tensors(path, tensors, header)
    return path


@pytest.mark.parametrize(
    "kind", ["os:system", "subprocess:Popen", "builtins:eval", "loud:Network", "torch.nn:Linear"]
)
def test_a_class_or_function_in_a_header_is_not_imported(kind, tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    path = claim(tmp_path / "model.safetensors", kind=kind, command=f"touch {tmp_path / 'ran'}")
    with pytest.raises(DataError, match=rf"model\.safetensors: .*{kind}, which is not imported"):
        AcousticModel.load(path)
    assert "loud" not in sys.modules
    assert not (tmp_path / "ran").exists()


def test_what_is_no_network_is_refused_even_on_the_users_word(tmp_path):
    ran = tmp_path / "ran"
    path = claim(tmp_path / "model.safetensors", kind="os:system", command=f"touch {ran}")
    with (
        permitted_imports(["os:system"]),
        pytest.raises(DataError, match=r"expected a class of torch\.nn\.Module"),
    ):
        AcousticModel.load(path)
    assert not ran.exists()


@pytest.mark.parametrize(
    "kind", ["../../evil:Network", "a;b:C", "os:system()", "", None, ["os:system"], "x" * 10**6]
)
def test_a_kind_that_is_no_import_path_is_refused(kind, tmp_path):
    path = claim(tmp_path / "model.safetensors", kind=kind)
    with pytest.raises(DataError, match=r"model\.safetensors: .*network\.kind"):
        AcousticModel.load(path)


def test_weights_to_begin_with_are_not_read_when_a_model_is_loaded(tmp_path):
    path = tmp_path / "model.safetensors"
    MODEL.write(path)
    tensors, header = load_tensors(path)
    header["experiment"]["network"]["init_from"] = "/proc/self/mem"
    save_tensors(path, tensors, header)
    AcousticModel.load(path)


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_weights_to_begin_with_that_are_cut_short_or_no_such_file_are_refused(length, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.ones(30)}, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"weights\.safetensors: cannot read the weights"):
        read_weights(path)
    torch.save({"w": torch.ones(30)}, path)  # a pickle
    with pytest.raises(DataError, match=r"weights\.safetensors: cannot read the weights"):
        read_weights(path)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("channels", 8 * 10**9),
        ("num_layers", 10**9),
        ("filters", 10**12),
        ("kernel", 10**9 + 1),
        ("chunk", 10**12),
    ],
)
def test_a_conformer_that_claims_other_sizes_than_its_weights_takes_neither_memory_nor_time(
    option, value, tmp_path
):
    """10**9 layers would be built for hours."""
    path = claim(tmp_path / "model.safetensors", kind="conformer", **{option: value})
    with pytest.raises(DataError, match=r"model\.safetensors: the acoustic model is not complete"):
        AcousticModel.load(path)
