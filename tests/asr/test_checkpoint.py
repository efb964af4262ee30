"""Checkpoints: what goes in comes out, nothing half-written counts, averages are means."""

import os
import stat

import pytest
import torch
from refusals import refuses
from toy_training import corpus, new_trainer

from fsachain.asr.data.dataset import Batch
from fsachain.asr.nn.network import NetworkOutput
from fsachain.asr.train.checkpoint import (
    MAX_HEADER_BYTES,
    Checkpoint,
    list_checkpoints,
    load_tensors,
    prune_checkpoints,
    save_tensors,
)
from fsachain.asr.train.ending import best_average
from fsachain.asr.train.log import JsonLinesLog, read_log
from fsachain.asr.train.source import SupervisedBatch
from fsachain.asr.train.step import Passes, Precision
from fsachain.asr.train.world import World
from fsachain.errors import ConfigError, DataError
from fsachain.files import locked, replacing


def small_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def trained(kind, **options):
    model = small_model()
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.Adam, {}), (torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.SGD, {})],
)  # fmt: skip
def test_model_optimizer_and_random_state_come_back_bit_for_bit(kind, options, tmp_path):
    model, optimizer = trained(kind, **options)
    rng = {"cpu": torch.get_rng_state()}
    written = Checkpoint(2, 7, 39, model.state_dict(), optimizer.state_dict(), rng, {"objf": [-0.5]})
    read = Checkpoint.load(written.save(tmp_path))
    assert (read.epoch, read.batch, read.step, read.state) == (2, 7, 39, {"objf": [-0.5]})
    assert torch.equal(read.rng["cpu"], rng["cpu"])
    assert all(torch.equal(read.model[name], value) for name, value in model.state_dict().items())
    fresh_model = small_model()
    fresh = kind(fresh_model.parameters(), lr=0.9, **options)
    fresh_model.load_state_dict(read.model)
    fresh.load_state_dict(read.optimizer)
    batch = torch.randn(5, 3)
    for some_model, some_optimizer in ((model, optimizer), (fresh_model, fresh)):
        some_optimizer.zero_grad()
        some_model(batch).square().sum().backward()
        some_optimizer.step()
    pairs = zip(model.state_dict().values(), fresh_model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_tensors_of_another_kind_are_no_checkpoint(tmp_path):
    save_tensors(tmp_path / "final.safetensors", {"weight": torch.ones(2)}, {"note": 1})
    assert load_tensors(tmp_path / "final.safetensors")[1] == {"note": 1}
    refuses(DataError, r"final\.safetensors", Checkpoint.load, tmp_path / "final.safetensors")
    refuses(DataError, "absent", load_tensors, tmp_path / "absent.safetensors")


def test_views_and_shared_tensors_are_stored_whole(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"columns": base.t(), "same": base, "scalar": torch.tensor(3), "empty": torch.zeros(0, 2)}
    save_tensors(tmp_path / "t.safetensors", tensors, {})
    read, _ = load_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(read[name], value) for name, value in tensors.items())


def test_a_tensor_under_another_name_is_noticed(tmp_path):
    Checkpoint(1, 0, 0, {"a": torch.zeros(2), "b": torch.ones(2)}).save(tmp_path)
    (path,) = list_checkpoints(tmp_path)
    content = path.read_bytes()
    assert content.count(b"model.b") == 1
    path.write_bytes(content.replace(b"model.b", b"model.c"))
    refuses(DataError, "checksum is wrong", Checkpoint.load, path)


def test_pruning_keeps_the_last_epochs_and_the_newest_position(tmp_path):
    for epoch, batch in ((1, 0), (1, 5), (2, 0), (3, 0), (3, 4), (3, 8)):
        Checkpoint(epoch, batch, 0, {"weight": torch.ones(1)}).save(tmp_path)
    (tmp_path / "epoch-0009-batch-000000.safetensors.old").write_text("not ours")
    prune_checkpoints(tmp_path, 2)
    kept = [f"epoch-{epoch:04}-batch-{batch:06}" for epoch, batch in ((2, 0), (3, 0), (3, 8))]
    assert [path.stem for path in list_checkpoints(tmp_path)] == kept
    assert list_checkpoints(tmp_path / "absent") == []


def test_models_of_different_shape_are_not_averaged():
    with pytest.raises(DataError, match="'weight'"):
        best_average([{"weight": torch.ones(2)}, {"weight": torch.ones(3)}], lambda _: 0.0)
    refuses(DataError, "nothing", best_average, [], lambda _: 0.0)


class Normalised(torch.nn.Sequential):
    def forward(self, features, lengths):
        return NetworkOutput(super().forward(features.flatten(0, 1)), lengths, None)


def test_refreshed_statistics_are_those_of_the_batches_and_weights_stay():
    model = Normalised(torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    model.eval()
    weights = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(2)
    batches = [torch.randn(50, 3) * 2 + 5 for _ in range(4)]
    made = [Batch(("a",), ("a",), ((),), batch[None], torch.tensor([50])) for batch in batches]
    Passes(model, World.alone(), Precision()).refresh([SupervisedBatch(one, None)] for one in made)
    norm = model[1]
    mean = torch.stack([batch.mean(dim=0) for batch in batches]).mean(dim=0)
    var = torch.stack([batch.var(dim=0) for batch in batches]).mean(dim=0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, var)
    assert norm.momentum == 0.1 and not norm.training
    assert all(torch.equal(before, after) for before, after in zip(weights, model.parameters(), strict=True))


def test_statistics_without_a_momentum_are_left_alone_in_a_world_of_two_as_in_one():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=None))
    for world in (World.alone(), World(0, 2)):
        Passes(model, world, Precision()).refresh([])
        assert torch.equal(model[0].running_var, torch.ones(3))


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path):
    epochs = [{f"figure {n}": n / 7 for n in range(60)} for _ in range(1000)]
    save_tensors(tmp_path / "a.safetensors", {"weight": torch.ones(3)}, {"epochs": epochs})
    assert load_tensors(tmp_path / "a.safetensors")[1] == {"epochs": epochs}
    save_tensors(tmp_path / "b.safetensors", {}, {"text": "a" * MAX_HEADER_BYTES})
    refuses(DataError, r"a header of \d+ bytes; expected at most", load_tensors, tmp_path / "b.safetensors")


def test_a_checkpoint_with_padding_as_older_versions_wrote_it_is_read(tmp_path):
    save_tensors(tmp_path / "a.safetensors", {"weight": torch.ones(3), "padding": torch.zeros(1000)}, {})
    assert load_tensors(tmp_path / "a.safetensors")[0].keys() == {"weight"}


def test_a_write_that_fails_anywhere_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def disk_full(descriptor):
        raise OSError("no space left on device")

    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("os.fsync", disk_full)
        save_tensors(path, {"weight": torch.ones(2)}, {})
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"


def test_what_reaches_the_disk_before_a_file_gets_its_name_is_all_of_it_and_then_the_name(
    tmp_path, monkeypatch
):
    path, synced = tmp_path / "file", []

    def fsync(descriptor):
        facts = os.fstat(descriptor)
        synced.append(("folder" if stat.S_ISDIR(facts.st_mode) else facts.st_size, path.exists()))

    monkeypatch.setattr("os.fsync", fsync)
    with replacing(path) as file:
        file.write(b"new")
    assert synced == [(3, False), ("folder", True)]


def test_any_changed_bit_of_a_checkpoint_is_noticed_or_harmless_and_every_cut_refused(tmp_path):
    weights, rng = {"weight": torch.arange(300.0)}, {"cpu": torch.get_rng_state()[:900]}
    written = Checkpoint(1, 0, 3, weights, {}, rng, {"a": 1})
    path = written.save(tmp_path)
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 211):
        for changed_bit in (0, 3, 7):
            changed = bytearray(content)
            changed[place] ^= 1 << changed_bit
            path.write_bytes(changed)
            try:
                read = Checkpoint.load(path)
            except DataError as error:
                assert path.name in str(error)
            else:
                assert torch.equal(read.model["weight"], written.model["weight"])
                assert (read.step, read.state) == (3, {"a": 1})
    for length in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        refuses(DataError, path.name, Checkpoint.load, path)


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    examples, numerators = corpus(6)
    trainer = new_trainer(tmp_path, numerators, num_epochs=1)
    with locked(tmp_path, "a training"):
        refuses(ConfigError, "a training is running in this folder", trainer.fit, examples)
    trainer.fit(examples)


def test_the_best_epoch_is_kept_beside_the_last(tmp_path):
    examples, numerators = corpus(12)
    trainer = new_trainer(tmp_path, numerators, num_epochs=5, average_last=1)
    figures = iter([-3.0, -1.0, -2.0, -4.0, -5.0, 0.0])
    trainer._evaluate = lambda _: {"objf": next(figures)}
    trainer.fit(examples, examples[:3])
    kept = [f"epoch-{epoch:04}-batch-000000" for epoch in (2, 4, 5)]
    assert [path.stem for path in list_checkpoints(tmp_path / "checkpoints")] == kept
    assert list(read_log(tmp_path / "train.jsonl"))[-1]["best_epoch"] == 2


def test_half_a_line_of_the_log_and_hostile_ones_are_cut_and_the_rest_stays(tmp_path):
    log = JsonLinesLog(tmp_path / "train.jsonl")
    log.write("start")
    log.write("epoch", epoch=1)
    whole = log.path.read_text()
    for more, count in (
        (b'{"event": "epo{"event": "epoch", "epoch": 2}\n{"ev', 2),
        (b"[" * 100_000 + b"\n\xff\xfe\n" + b"9" * 10_000 + b"\n[1]\n", 4),
    ):
        log.path.write_bytes(whole.encode() + more)
        assert log.rewind(lambda event: True) == count
        assert log.path.read_text() == whole
    assert log.rewind(lambda event: event["event"] != "epoch") == 0
    assert [event["event"] for event in read_log(log.path)] == ["start"]


def test_a_full_disk_under_the_log_is_an_error_with_its_name(tmp_path):
    log = JsonLinesLog(tmp_path / "train.jsonl")
    log.path.symlink_to("/dev/full")
    refuses(OSError, r"No space left on device: '.*train\.jsonl'", log.write, "epoch", epoch=1)
