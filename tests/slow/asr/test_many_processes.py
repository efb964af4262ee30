"""One training by several processes: the same numbers as by one, no hang, one set of files. By gloo, on this machine."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from process_group import Group
from shared_work import BY_ID, IMPOSSIBLE, Ended, Trained, gradient, plans, train

from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints
from fsachain.asr.train.config import OptimizerConfig
from fsachain.asr.train.log import read_log
from fsachain.asr.train.world import World, WorldError
from fsachain.errors import DataError

NAMES = sorted(BY_ID)


@pytest.fixture(scope="module")
def pair():
    with closing(Group(2)) as group:
        yield group


@pytest.fixture
def doomed():
    """Two processes that one test may break; they wait for each other for a few seconds only."""
    with closing(Group(2, timeout=5.0)) as group:
        yield group


def assert_same_step(shared, alone):
    for found in shared:
        assert found.usable == alone.usable
        assert found.loss == pytest.approx(alone.loss, rel=tolerances.SHARED_GRADIENT)
        assert found.norm == pytest.approx(alone.norm, rel=tolerances.SHARED_GRADIENT)
        assert sorted(found.excluded) == sorted(alone.excluded)
        assert found.sums.output_frames == alone.sums.output_frames
        assert found.sums.l2_term == pytest.approx(alone.sums.l2_term, rel=tolerances.SHARED_GRADIENT)
        assert found.sums.xent_objf == pytest.approx(alone.sums.xent_objf, rel=tolerances.SHARED_GRADIENT)
        largest = max(np.abs(grad).max() for grad in alone.grads if grad is not None)
        for grad, expected in zip(found.grads, alone.grads, strict=True):
            np.testing.assert_allclose(grad, expected, rtol=0, atol=tolerances.SHARED_GRADIENT * largest)
        for buffer, expected in zip(found.buffers, alone.buffers, strict=True):
            np.testing.assert_allclose(buffer, expected, rtol=0, atol=tolerances.SHARED_GRADIENT)
    for grads in zip(*(found.grads for found in shared), strict=True):
        assert all(np.array_equal(grad, grads[0]) for grad in grads)


@st.composite
def assignments(draw):
    """Utterances, each with a process and one of three micro-batches in it."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
    return [(name, draw(st.integers(0, 1)), draw(st.integers(0, 2))) for name in names]


def parts_of(assignment, rank):
    parts = [[name for name, r, k in assignment if (r, k) == (rank, part)] for part in range(3)]
    return [part for part in parts if part]


@given(assignment=assignments())
@example(assignment=[("utt00", 0, 0), ("utt01", 1, 0)])  # the second process has an impossible one only
@example(assignment=[(name, 1, 0) for name in IMPOSSIBLE])  # nothing is left
@settings(max_examples=25)
def test_any_split_of_any_batch_gives_the_loss_and_gradient_of_one_process(pair, assignment):
    """Over processes and, in each, over micro-batches: gradients are sums over frames, divided by the frames of all."""
    alone = gradient(World.alone(), ("linear", [[name for name, _, _ in assignment]], "float32"))
    assert alone.usable == any(name not in IMPOSSIBLE for name, _, _ in assignment)
    shared = pair.ask(gradient, [("linear", parts_of(assignment, rank), "float32") for rank in range(2)])
    assert_same_step(shared, alone)


@given(assignment=assignments())
@example(assignment=[(name, 0, 0) for name in NAMES[:3]])  # the second process has none at all
@settings(max_examples=15)
def test_batch_normalisation_is_over_the_utterances_of_all_processes(pair, assignment):
    alone = gradient(World.alone(), ("tdnnf", [[name for name, _, _ in assignment]], "float32"))
    parts = [[name for name, r, _ in assignment if r == rank] for rank in range(2)]
    shared = pair.ask(gradient, [("tdnnf", [part] if part else [], "float32") for part in parts])
    assert_same_step(shared, alone)


def test_a_process_with_fewer_micro_batches_makes_the_passes_of_the_other(pair):
    """Their k-th micro-batches are normalised together: here the first two together, then the third alone."""
    shared = pair.ask(
        gradient, [("tdnnf", [["utt00"], ["utt02"]], "float32"), ("tdnnf", [["utt03"]], "float32")]
    )
    alone = gradient(World.alone(), ("tdnnf", [["utt00", "utt03"], ["utt02"]], "float32"))
    assert_same_step(shared, alone)


def test_four_processes_give_what_one_gives(tmp_path):
    with closing(Group(4)) as group:
        parts = [[["utt00", "utt05"]], [["utt01"]], [], [["utt02"], ["utt03", "utt04"]]]
        shared = group.ask(gradient, [("linear", part, "float32") for part in parts])
        every = [name for part in parts for names in part for name in names]
        assert_same_step(shared, gradient(World.alone(), ("linear", [every], "float32")))
        results = group.ask(train, plans(tmp_path, 4, options={"batch_size": 3, "num_epochs": 1}))
        assert all(isinstance(result, Trained) for result in results), results


@pytest.mark.parametrize(("kind", "batch_size"), [("tdnnf", 5), ("linear", 5), ("tdnnf", 1)])
def test_a_training_by_two_processes_is_that_by_one(pair, kind, batch_size, tmp_path):
    """Uneven last batches (12 = 5 + 5 + 2), and with batches of one a process that never has an utterance."""
    options = {"batch_size": batch_size, "num_epochs": 1 if batch_size == 1 else 3, "average_last": 1}
    (alone_plan,) = plans(tmp_path / "alone", 1, kind=kind, options=options)
    alone = train(World.alone(), alone_plan)
    first, second = pair.ask(train, plans(tmp_path / "shared", 2, kind=kind, options=options))
    torch.testing.assert_close(first.state, second.state, rtol=0, atol=0)
    torch.testing.assert_close(first.state, alone.state, rtol=0, atol=tolerances.SHARED_TRAINING)
    assert first.epochs[-1]["train"]["objf"] == pytest.approx(
        alone.epochs[-1]["train"]["objf"], abs=tolerances.SHARED_TRAINING
    )
    assert first.dev["objf"] == pytest.approx(alone.dev["objf"], abs=tolerances.SHARED_TRAINING)
    assert first.dev["output_frames"] == alone.dev["output_frames"]
    assert sorted(first.seen + second.seen) == sorted(alone.seen)


def test_sigterm_to_one_process_stops_all_after_the_same_step_and_they_go_on_bit_for_bit(pair, tmp_path):
    """With dropout: each process takes up its own random numbers."""
    common = {"options": {"batch_size": 2}, "dropout": 0.3}
    whole = pair.ask(train, plans(tmp_path / "whole", 2, **common))
    first, second = plans(tmp_path / "broken", 2, **common)
    stopped = pair.ask(train, [first, replace(second, stop_at=2)])
    assert all(isinstance(result, Ended) and "SIGTERM" in result.message for result in stopped)
    (path,) = list_checkpoints(tmp_path / "broken" / "0" / "checkpoints")
    assert Checkpoint.load(path).batch < 6
    results = pair.ask(train, plans(tmp_path / "broken", 2, **common))
    for result, ended, expected in zip(results, stopped, whole, strict=True):
        assert ended.seen + result.seen == expected.seen
        torch.testing.assert_close(result.state, expected.state, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_a_training_goes_on_with_another_number_of_processes_and_no_utterance_comes_twice(
    pair, sizes, tmp_path
):
    common = {"options": {"batch_size": 2, "num_epochs": 1, "average_last": 1}}

    def run(size, **fault):
        jobs = plans(tmp_path, size, **common, **fault)
        return pair.ask(train, jobs) if size == 2 else [train(World.alone(), jobs[0])]

    stopped, finished = run(sizes[0], stop_at=2), run(sizes[1])
    assert all(isinstance(result, Ended) for result in stopped)
    assert all(isinstance(result, Trained) for result in finished)
    before, after = ([name for result in results for name in result.seen] for results in (stopped, finished))
    assert before
    assert after
    assert sorted(before + after) == NAMES


def test_a_process_with_bad_data_ends_the_others_with_a_message(doomed, tmp_path):
    one, other = plans(tmp_path, 2, options={"batch_size": 2})
    first, second = doomed.ask(train, [one, replace(other, raise_at=3)])
    assert isinstance(second, DataError)
    assert "u7.wav" in str(second)
    assert isinstance(first, WorldError)
    assert "process 0 of 2 waits for " in str(first)
    assert "another process has ended" in str(first)


def test_a_killed_process_ends_the_others_with_a_message(doomed, tmp_path):
    one, other = plans(tmp_path, 2, options={"batch_size": 2})
    first, second = doomed.ask(train, [replace(one, kill_at=2), other])
    assert first is None
    assert isinstance(second, WorldError)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_give_the_loss_to_their_accuracy(precision):
    parts = [[name for name in NAMES if name not in IMPOSSIBLE]]
    exact = gradient(World.alone(), ("tdnnf", parts, "float32"))
    rough = gradient(World.alone(), ("tdnnf", parts, precision))
    assert rough.usable
    assert rough.loss != exact.loss
    assert rough.loss == pytest.approx(exact.loss, rel=tolerances.BFLOAT16_LOSS)
    assert rough.norm == pytest.approx(exact.norm, rel=tolerances.BFLOAT16_LOSS)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_a_training_in_micro_batches_is_that_in_batches(micro_batch, tmp_path):
    """For a network without statistics of the batch."""
    common = {"batch_size": 5, "average_last": 1}
    (plan,) = plans(tmp_path / "whole", 1, kind="linear", options=common)
    (cut,) = plans(tmp_path / "cut", 1, kind="linear", options={**common, "micro_batch": micro_batch})
    whole, parts = train(World.alone(), plan), train(World.alone(), cut)
    torch.testing.assert_close(parts.state, whole.state, rtol=0, atol=tolerances.SHARED_TRAINING)
    assert sorted(parts.seen) == sorted(whole.seen)
    assert [entry["train"]["output_frames"] for entry in parts.epochs] == [
        entry["train"]["output_frames"] for entry in whole.epochs
    ]


def test_two_processes_end_with_the_model_that_one_ends_with(pair, tmp_path):
    """The second has no checkpoint to read, and all the same makes every average and evaluation with the first."""
    options = {
        "optimizer": OptimizerConfig(
            name="sgd", max_change=0.05, max_change_per_component=0.04, freeze_epochs={"input_layer": 1}
        ),
        "num_epochs": 3,
        "average_last": 3,
        "combine": "best-average",
    }
    (alone_plan,) = plans(tmp_path / "alone", 1, options=options)
    train(World.alone(), alone_plan)
    first, second = pair.ask(train, plans(tmp_path / "shared", 2, options=options))
    torch.testing.assert_close(first.state, second.state, rtol=0, atol=0)
    assert first.dev["objf"] == second.dev["objf"]
    candidates, expected = (
        list(read_log(tmp_path / name / "0" / "train.jsonl"))[-1]["candidates"]
        for name in ("shared", "alone")
    )
    assert candidates == pytest.approx(expected, abs=tolerances.SHARED_TRAINING)
    assert not (tmp_path / "shared" / "1").exists()
