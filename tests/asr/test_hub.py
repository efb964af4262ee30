"""Models on the Hugging Face Hub, from a cache in its layout and by a client in its place; nothing is downloaded."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.pipeline import hub
from fsachain.asr.train.checkpoint import FORMAT, checksum_of, load_tensors, save_tensors
from fsachain.errors import DataError, MissingExtraError


@pytest.fixture
def client(monkeypatch, tmp_path):
    """A client that has one repository with a file that is no model."""
    calls = []

    def hf_hub_download(repository, file, revision=None):
        calls.append((repository, file, revision))
        if repository != "owner/name":
            raise OSError(f"404: no repository {repository}\nmore lines")
        path = tmp_path / "model.safetensors"
        save_tensors(path, {"w": torch.ones(2)}, {"kind": "other"})
        return str(path)

    module = ModuleType("huggingface_hub")
    module.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_an_address_names_repository_revision_and_file(client):
    hub.download("hf://owner/name", "model.safetensors")
    hub.download(Path("hf://owner/name@v1.0"), "model.safetensors")
    hub.download("hf://owner/name@v1.0/small/model.safetensors", "model.safetensors")
    assert client == [
        ("owner/name", "model.safetensors", None),
        ("owner/name", "model.safetensors", "v1.0"),
        ("owner/name", "small/model.safetensors", "v1.0"),
    ]


def test_a_model_is_read_from_what_was_downloaded(client):
    with pytest.raises(DataError, match="holds no acoustic model"):
        AcousticModel.load("hf://owner/name")
    assert client == [("owner/name", "model.safetensors", None)]


def test_what_cannot_be_had_is_named_with_the_remedy(client, monkeypatch):
    with pytest.raises(
        DataError, match=r"hf://owner/other: cannot get model.safetensors \(OSError: 404.*hf auth login"
    ):
        AcousticModel.load("hf://owner/other")
    with pytest.raises(DataError, match="hf://owner: expected hf://OWNER/NAME"):
        AcousticModel.load("hf://owner")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fsachain\[hub\]'"):
        AcousticModel.load("hf://owner/name")


def test_files_say_pt_to_others_and_files_of_earlier_versions_are_read(tmp_path):
    tensors = {"w": torch.arange(3.0)}
    save_tensors(tmp_path / "new", tensors, {"a": 1})
    with safe_open(str(tmp_path / "new"), framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    metadata = {"format": FORMAT, "header": '{"a": 1}', "checksum": checksum_of(tensors, '{"a": 1}')}
    save_file(tensors, tmp_path / "old", metadata=metadata)
    for name in ("new", "old"):
        read, header = load_tensors(tmp_path / name)
        assert torch.equal(read["w"], tensors["w"])
        assert header == {"a": 1}


def test_no_client_is_imported_before_it_is_needed():
    program = "import sys, fsachain.asr.cli.model; assert 'huggingface_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
