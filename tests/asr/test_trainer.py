"""The training loop, on a toy corpus and with a stand-in for the loss where the loss is not the point."""

import io
import math
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from toy_training import NUM_FEATURES, ToyModel, corpus, lfmmi_trainer, new_trainer, one_pdf_table

from fsachain import progress
from fsachain.asr.data.dataset import Example, collate
from fsachain.asr.train.checkpoint import list_checkpoints, load_tensors, save_tensors
from fsachain.asr.train.config import OptimizerConfig, TrainConfig
from fsachain.asr.train.log import JsonLinesLog, read_log
from fsachain.asr.train.reporting import DivergedError, ShownProgress, diagnose, find_causes
from fsachain.asr.train.schedule import Schedule, ScheduleConfig
from fsachain.asr.train.source import BatchSource, SupervisedBatch, supervise
from fsachain.asr.train.step import EpochSums, StepOutcome, Stepper, subnormals_flushed
from fsachain.asr.train.trainer import prefetch
from fsachain.asr.train.world import World
from fsachain.errors import ConfigError, DataError


def test_the_objective_rises_on_training_and_unseen_utterances(tmp_path):
    examples, numerators = corpus()
    dev, dev_numerators = corpus(6, seed=9)
    dev = [Example(f"dev-{e.id}", e.speaker, e.words, e.features) for e in dev]
    numerators |= {f"dev-{key}": table for key, table in dev_numerators.items()}
    trainer = new_trainer(tmp_path, numerators)
    result = trainer.fit(examples, dev)
    first, last = result.epochs[0], result.epochs[-1]
    assert last["train"]["objf"] > first["train"]["objf"] + 0.2
    assert last["dev"]["objf"] > first["dev"]["objf"]
    assert last["train"]["num"] - last["train"]["den"] == pytest.approx(
        last["train"]["objf"], abs=tolerances.FEW_FLOAT32_TERMS
    )
    assert 0.0 < last["train"]["loss_share"] < 1.0
    assert trainer.model.constrained == 4 * 5 // 4


@pytest.mark.parametrize(("peak", "told"), [(0.05, 0), (300.0, 1)])
def test_steps_that_make_a_network_worse_than_none_are_told_once(tmp_path, peak, told):
    examples, numerators = corpus()
    stream = io.StringIO()
    trainer = new_trainer(tmp_path, numerators, schedule=ScheduleConfig(peak=peak, warmup=0.0))
    trainer.progress = ShownProgress(stream)
    trainer.fit(examples)
    warnings = [event["text"] for event in read_log(tmp_path / "train.jsonl") if event["event"] == "warning"]
    assert len(warnings) == told
    # One pdf of six is right in all frames of an utterance.
    which = f"epoch 2: objf -\\d.*, where a network that knows nothing has -1.7918: .* well below {peak:g}$"
    assert all(re.match(which, text) for text in warnings)
    assert stream.getvalue().count("WARNING: epoch 2") == told


UNCLIPPED = TrainConfig(optimizer=OptimizerConfig(max_grad_norm=float("inf")))


def test_the_loss_taken_apart_gives_the_gradient_of_one_backward_call(tmp_path):
    examples, numerators = corpus(6)
    trainer = lfmmi_trainer(tmp_path, numerators)
    model, loss = trainer.model.eval(), trainer.loss  # no dropout, so that both passes see the same network
    item = supervise(examples, numerators)
    output = model(item.batch.features, item.batch.lengths)
    loss(output.nnet_output, output.lengths, item.numerators).backward()
    expected = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    outcome = Stepper(model, loss, optimizer, UNCLIPPED).step([item], EpochSums())
    assert outcome.usable
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert (parameter.grad is None) == (grad is None)
        if grad is not None:
            torch.testing.assert_close(
                parameter.grad, grad, atol=tolerances.FLOAT32_ROUNDING, rtol=tolerances.FEW_FLOAT32_TERMS
            )


def test_another_training_in_the_same_folder_is_refused_with_what_differs(tmp_path):
    """Options, utterances and development set are named, old and new; a finished training is compared too."""
    examples, numerators = corpus(12)
    train, dev = examples[:10], examples[10:]
    new_trainer(tmp_path, numerators, num_epochs=1, batch_size=5).fit(train, dev)
    for options, sets, told in (
        ({"batch_size": 4}, (train, dev), r"train.batch_size was 5, is 4"),
        ({"optimizer": OptimizerConfig("sgd")}, (train, dev), r"train.optimizer.name was 'adam', is 'sgd'"),
        ({}, (train[1:], dev), r"training set was '10 utterances, \w+', is '9 utterances, \w+'"),
        ({}, (train, dev[1:]), r"development set was '2 utterances, \w+', is '1 utterances, \w+'"),
        ({}, (train,), r"development set was '2 utterances, \w+', is 'none'"),
    ):
        with pytest.raises(ConfigError, match=f"other options or data: {told}; delete"):
            new_trainer(tmp_path, numerators, **{"num_epochs": 1, "batch_size": 5, **options}).fit(*sets)
    new_trainer(tmp_path, numerators, num_epochs=1, batch_size=5).fit(train, dev)


CONSTANT = ScheduleConfig(decay="constant", warmup=0.0, peak=1e-3)


def test_a_finished_training_goes_on_for_more_epochs_where_nothing_scheduled_changes(tmp_path):
    """Bit for bit the training that had as many from the start, the factor of float16's gradients among it."""
    examples, numerators = corpus(10)
    options = {"schedule": CONSTANT, "precision": "float16"}
    at_once = new_trainer(tmp_path / "at once", numerators, num_epochs=5, **options)
    at_once.fit(examples)
    new_trainer(tmp_path / "more", numerators, num_epochs=2, **options).fit(examples)
    more = new_trainer(tmp_path / "more", numerators, num_epochs=5, **options)
    assert [epoch["epoch"] for epoch in more.fit(examples).epochs] == [1, 2, 3, 4, 5]
    torch.testing.assert_close(more.model.state_dict(), at_once.model.state_dict(), rtol=0, atol=0)
    newest = [list_checkpoints(tmp_path / name / "checkpoints")[-1] for name in ("at once", "more")]
    one, other = (load_tensors(path)[1]["state"]["precision"] for path in newest)
    assert one == other and one[1] > 0
    events = [event["event"] for event in read_log(tmp_path / "more" / "train.jsonl")]
    assert events.count("epoch") == 5 and events.count("end") == 1 and events[-1] == "end"
    with pytest.raises(ConfigError, match=r"train.num_epochs was 5, is 3, but 5 epochs are done"):
        new_trainer(tmp_path / "more", numerators, num_epochs=3, **options).fit(examples)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, "learning_rate"),
        ({"schedule": ScheduleConfig(decay="constant", warmup=0.8)}, "learning_rate"),
        ({"schedule": CONSTANT, "dropout_schedule": Schedule([(0.1, 0.0), (0.0, 1.0)])}, "dropout"),
    ],
)
def test_more_epochs_are_refused_where_a_schedule_would_jump(tmp_path, options, value):
    examples, numerators = corpus(10)
    new_trainer(tmp_path, numerators, num_epochs=2, **options).fit(examples)
    expected = rf"train.num_epochs was 2, is 4, but of the next step {value} was [-.e\d]+, is [-.e\d]+; expected constant"
    with pytest.raises(ConfigError, match=expected):
        new_trainer(tmp_path, numerators, num_epochs=4, **options).fit(examples)


def test_a_training_of_an_earlier_version_is_refused(tmp_path):
    examples, numerators = corpus(10)
    new_trainer(tmp_path, numerators, num_epochs=1).fit(examples)
    for path in list_checkpoints(tmp_path / "checkpoints"):
        tensors, header = load_tensors(path)
        del header["state"]["identity"]
        save_tensors(path, tensors, header)
    with pytest.raises(ConfigError, match="an earlier version wrote it; delete it or choose another folder"):
        new_trainer(tmp_path, numerators, num_epochs=1).fit(examples)


def test_utterances_that_cannot_be_trained_on_are_named_with_their_reason(tmp_path):
    examples, numerators = corpus(10)
    numerators["utt01"] = one_pdf_table(0, least_frames=50)
    del numerators["utt02"], numerators["utt03"]
    examples[4] = Example("utt04", "anna", (), np.zeros((0, NUM_FEATURES), np.float32))
    examples[7].features[3, 1], examples[8].features[0, 0] = np.nan, np.inf
    stream = io.StringIO()
    trainer = new_trainer(tmp_path, numerators, num_epochs=1)
    trainer.progress = ShownProgress(stream)
    result = trainer.fit(examples, reasons={"utt03": "word 'xyz' is not in the lexicon"})
    reasons = {entry.id: entry.reason for entry in result.excluded}
    assert set(reasons) == {"utt01", "utt02", "utt03", "utt04", "utt07", "utt08"}
    kinds = {entry.id: entry.kind for entry in result.excluded}
    assert kinds["utt07"] == kinds["utt08"] == "features not finite" and "frame 3" in reasons["utt07"]
    assert "50 output frames" in reasons["utt01"]
    assert reasons["utt02"] == "has no numerator"
    assert "xyz" in reasons["utt03"]
    assert "has 0" in reasons["utt04"]
    assert "6 utterances are left out" in stream.getvalue()
    start = next(read_log(tmp_path / "train.jsonl"))
    assert {entry["id"] for entry in start["excluded"]} == set(reasons)
    assert start["utterances"] == 4 and result.epochs[0]["train"]["skipped_batches"] == 0


def test_epochs_and_the_final_model_are_shown_as_work_of_their_own(tmp_path, monkeypatch):
    shown, done, stream = [], [], io.StringIO()

    @contextmanager
    def counter(what, stream):
        shown.append(f"{what} begins")
        yield lambda *state: done.append(state[:2])
        shown.append(f"{what} ends")

    monkeypatch.setattr(progress, "counter", counter)
    examples, numerators = corpus(10)
    trainer = new_trainer(tmp_path, numerators, num_epochs=1)
    trainer.progress = ShownProgress(stream)
    trainer.fit(examples)
    assert done[0] == (0, done[-1][1]) and done[-1][0] == done[-1][1] > 0
    assert stream.getvalue().startswith("epoch   1/1  ")
    assert shown == ["epoch 1/1 begins", "epoch 1/1 ends", "final model begins", "final model ends"]


def test_a_batch_that_is_not_finite_is_skipped_named_and_leaves_no_trace(tmp_path):
    """Statistics of batch normalisation included: one infinity would stay in them."""
    examples, numerators = corpus(10)
    examples[7].features[3] = 3e38  # finite, but the first layer overflows
    trainer = new_trainer(tmp_path, numerators, num_epochs=1, batch_size=1)
    trainer.progress = ShownProgress(stream := io.StringIO())
    result = trainer.fit(examples)
    assert result.epochs[0]["train"]["skipped_batches"] == 1
    skipped = [event for event in read_log(tmp_path / "train.jsonl") if event["event"] == "skipped"]
    assert [event["utterances"] for event in skipped] == [["utt07"]]
    told = skipped[0]["diagnosis"]
    assert "outputs that are not finite: utt07" in told and "parameters" not in told
    assert f"epoch 1: batch skipped (utt07): {told}\n" in stream.getvalue()
    for name, value in trainer.model.state_dict().items():
        assert torch.isfinite(value).all(), name


def test_a_diagnosis_names_what_was_not_finite():
    examples, _ = corpus(2)
    examples[1].features[3] = math.nan
    model = ToyModel()
    with torch.no_grad():
        model.output.bias[0] = math.inf
    outcome = StepOutcome(math.nan, math.inf, usable=False)
    assert find_causes(model, [SupervisedBatch(collate(examples), None)], outcome) == [
        "features that are not finite in utt01", "parameters that are not finite: output.bias"
    ]  # fmt: skip
    for changes, told in (
        ({}, "loss nan, gradient norm inf; a network output that is not finite; features and parameters"),
        ({"loss": 1.0}, "a gradient that is not finite; features and parameters are finite: try a lower"),
        ({"overflow": True}, "inf; a number too large for float16, the gradients of the next batches"),
    ):
        assert told in diagnose(replace(outcome, **changes), [])


def test_training_stops_with_a_diagnosis_after_bad_batches_in_a_row(tmp_path):
    examples, numerators = corpus(10)
    for example in examples:
        example.features[:] = 3e38
    with pytest.raises(DivergedError, match=r"3 batches in a row .*max_bad_batches.*utt0\d, utt0\d: loss"):
        new_trainer(tmp_path, numerators, max_bad_batches=3, batch_size=2).fit(examples)


def test_threads_are_those_that_are_asked_for():
    before = torch.get_num_threads()
    try:
        for asked, expected in ((before + 1, before + 1), (0, before + 1)):
            World.alone().take_threads(asked)
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_each_epoch_draws_one_version_of_each_utterance():
    examples, numerators = corpus(12)
    slow = [Example(f"slow-{e.id}", e.speaker, e.words, e.features.repeat(2, axis=0)) for e in examples]
    numerators |= {example.id: numerators[example.id[5:]] for example in slow}
    source = BatchSource([examples, slow], numerators, lambda n: n // 3, batch_size=5, seed=1)
    epochs = [[name for (item,) in source.batches(epoch) for name in item.batch.ids] for epoch in range(3)]
    for names in epochs:
        assert sorted(name.removeprefix("slow-") for name in names) == [example.id for example in examples]
    assert {name.startswith("slow-") for name in epochs[0]} == {True, False}
    assert set(epochs[0]) != set(epochs[1])
    again = [name for (item,) in source.batches(2) for name in item.batch.ids]
    assert again == epochs[2]
    assert [name for (item,) in source.batches(2, start=1) for name in item.batch.ids] == epochs[2][5:]


def test_prefetching_keeps_order_raises_errors_and_ends_its_thread():
    assert [item for _, item in prefetch(range(50))] == list(range(50))

    def broken():
        yield 1
        raise DataError("utterance 'u2' is broken")

    items = prefetch(broken())
    assert next(items)[1] == 1
    with pytest.raises(DataError, match="u2"):
        next(items)
    endless = prefetch(iter(int, 1))
    next(endless)
    endless.close()
    deadline = time.monotonic() + 5.0
    while any(thread.name.startswith("fsachain-prefetch") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_log_is_json_without_nan_and_survives_a_torn_last_line(tmp_path):
    log = JsonLinesLog(tmp_path / "logs" / "train.jsonl")
    log.write("epoch", objf=float("nan"), parts=[1.0, float("inf")])
    with log.path.open("a") as file:
        file.write('{"event": "ep')
    events = list(read_log(log.path))
    assert [(event["event"], event["objf"], event["parts"]) for event in events] == [
        ("epoch", None, [1.0, None])
    ]


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="torch cannot flush on this processor")
def test_training_flushes_torchs_arithmetic_and_restores_it():
    small = torch.tensor([1e-40])
    with subnormals_flushed():
        assert (small * 1.0).item() == 0.0
        with subnormals_flushed():
            pass
        assert (small * 1.0).item() == 0.0
    assert (small * 1.0).item() != 0.0
