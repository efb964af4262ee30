"""Checkpoints and models: no code in them is run or imported, no size in them is believed."""

import json
import os
import pickle
import struct
import sys

import pytest
import torch
from safetensors.torch import save_file

from fsachain.asr.cli.model import AcousticModel, permitted_imports, read_weights
from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints, load_tensors, save_tensors
from fsachain.errors import DataError
from tools.fuzz.readers import READERS

MODEL = next(reader for reader in READERS if reader.name == "model")


class Trap:
    """What runs a command when it is unpickled."""

    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return os.system, (f"touch {self.ran}",)


@pytest.mark.parametrize("form", ["pickle", "torch", "torch, as torch 1.5 wrote it"])
def test_a_pickle_under_the_name_of_a_checkpoint_is_refused_and_never_run(form, tmp_path):
    path, ran = tmp_path / "epoch-0001-batch-000000.safetensors", tmp_path / "ran"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Trap(ran)))
    else:
        torch.save({"model": Trap(ran)}, path, _use_new_zipfile_serialization="1.5" not in form)
    for read in (Checkpoint.load, AcousticModel.load, load_tensors, read_weights):
        with pytest.raises(DataError, match=path.name):
            read(path)
    assert not ran.exists()


def packed(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


HEADERS = {
    "header longer than the file": packed({}, length=2**62),
    "header of two gigabytes": packed({}, length=2**31),
    "tensor beyond the file": packed({"model.w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}, bytes(40)),
    "tensor of negative place": packed({"model.w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, bytes(4)),
    "two tensors in one place": packed(
        {f"model.{n}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, bytes(4)
    ),
    "shape whose product overflows": packed(
        {"model.w": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "type that does not exist": packed({"model.w": {"dtype": "CODE", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "header nested without end": packed(b'{"a":' * 100_000),
    "header that is a list": packed([1]),
    "header that is not UTF-8": packed(b'{"\xff": 1}'),
}  # fmt: skip


@pytest.mark.parametrize("attack", HEADERS)
def test_a_header_that_lies_is_refused(attack, tmp_path):
    path = tmp_path / "lie.safetensors"
    path.write_bytes(HEADERS[attack])
    with pytest.raises(DataError, match=r"lie\.safetensors"):
        Checkpoint.load(path)


STATES = {
    "nested without end": "[" * 100_000,
    "a step without end": '{"epoch": 1, "batch": 0, "step": 1e999, "optimizer": {"param_groups": [], "state": {}}}',
    "a number of many digits": '{"epoch": ' + "9" * 10_000 + "}",
    "a list": "[1, 2]",
    "nothing": "{}",
    "counts that are text": json.dumps({"epoch": "x", "batch": 0, "step": 0, "optimizer": {}, "state": {}}),
    "an optimizer that is text": json.dumps(
        {"epoch": 1, "batch": 0, "step": 0, "optimizer": "sgd", "state": {}}
    ),
}


@pytest.mark.parametrize("attack", STATES)
def test_a_state_that_is_none_is_refused(attack, tmp_path):
    meta = {"format": "fsachain checkpoint 1", "header": STATES[attack]}  # which has no checksum
    save_file({"model.w": torch.ones(2)}, tmp_path / "state.safetensors", metadata=meta)
    with pytest.raises(DataError, match=r"state\.safetensors"):
        Checkpoint.load(tmp_path / "state.safetensors")


def test_a_checkpoint_that_lost_its_checksum_is_refused(tmp_path):
    meta = {"format": "fsachain checkpoint 2", "header": "{}"}
    save_file({"model.w": torch.ones(2)}, tmp_path / "sum.safetensors", metadata=meta)
    with pytest.raises(DataError, match="checksum is wrong"):
        load_tensors(tmp_path / "sum.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors", metadata={"format": "pt", "header": "{}"})
    with pytest.raises(DataError, match=r"other\.safetensors: expected format 'fsachain .*, got 'pt'"):
        load_tensors(tmp_path / "other.safetensors")


def test_names_that_point_elsewhere_are_no_checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (folder / "epoch-0001-batch-000000.safetensors.partial").write_text("x")
    (folder / ".epoch-0001-batch-000000.safetensors").write_text("x")
    (folder / "epoch-0002-batch-000000.safetensors").symlink_to(outside)
    assert [path.name for path in list_checkpoints(folder)] == ["epoch-0002-batch-000000.safetensors"]
    Checkpoint(2, 0, 1, {"w": torch.ones(1)}).save(folder)  # over the link
    assert outside.read_text() == "precious"
    assert not (folder / "epoch-0002-batch-000000.safetensors").is_symlink()


# A model file that names code: nothing is imported, nothing is called.


LOUD = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Network: pass\n"


def claim(path, network, own=False):
    """A sound model whose header says that its network is another; with its own options beside, or without."""
    MODEL.write(path)
    tensors, header = load_tensors(path)
    header["experiment"]["network"] = (header["experiment"]["network"] if own else {}) | network
    save_tensors(path, tensors, header)
    return path


@pytest.mark.parametrize(
    "kind", ["os:system", "subprocess:Popen", "builtins:eval", "loud:Network", "torch.nn:Linear"]
)
def test_a_class_or_function_in_a_header_is_not_imported(kind, tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    network = {"kind": kind, "command": f"touch {tmp_path / 'ran'}"}
    path = claim(tmp_path / "model.safetensors", network)
    with pytest.raises(DataError, match=rf"model\.safetensors: .*{kind}, which is not imported"):
        AcousticModel.load(path)
    assert "loud" not in sys.modules
    assert not (tmp_path / "ran").exists()


def test_what_is_no_network_is_refused_even_on_the_users_word(tmp_path):
    ran = tmp_path / "ran"
    path = claim(tmp_path / "model.safetensors", {"kind": "os:system", "command": f"touch {ran}"})
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
    path = claim(tmp_path / "model.safetensors", {"kind": kind})
    with pytest.raises(DataError, match=r"model\.safetensors: .*network\.kind"):
        AcousticModel.load(path)


def test_weights_to_begin_with_are_not_read_when_a_model_is_loaded(tmp_path):
    AcousticModel.load(claim(tmp_path / "model.safetensors", {"init_from": "/proc/self/mem"}, own=True))


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("tdnnf", "channels", 10**9),
        ("tdnnf", "prefinal", 10**9),
        ("tdnnf", "time_strides", [1] * 50),
        ("tdnnf", "channels", -1),
        ("tdnnf", "channels", "many"),
        ("conformer", "channels", 8 * 10**9),
        ("conformer", "num_layers", 10**9),  # which would be built for hours
        ("conformer", "filters", 10**12),
        ("conformer", "kernel", 10**9 + 1),
        ("conformer", "chunk", 10**12),
    ],
)
def test_a_model_that_claims_other_sizes_than_its_weights_takes_neither_memory_nor_time(
    kind, option, value, tmp_path
):
    path = claim(tmp_path / "model.safetensors", {"kind": kind, option: value}, own=kind == "tdnnf")
    with pytest.raises(DataError, match=r"model\.safetensors: the acoustic model is not complete"):
        AcousticModel.load(path)
