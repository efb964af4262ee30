"""The thread pool: forks, several callers, any number of threads."""

import multiprocessing
import threading

import numpy as np
import pytest
from random_graphs import connected_graph

from fsachain import ConfigError, DenominatorGraph, forward_backward, get_num_threads, set_num_threads
from fsachain.backends.cpu import threads

WIDTH = 9
SCORES = np.random.default_rng(0).normal(size=(40, 30, WIDTH)).astype(np.float32)


def compute():
    batch = DenominatorGraph(connected_graph(0), WIDTH).batch(len(SCORES))
    result = forward_backward(batch, SCORES, leaky_hmm_coefficient=0.1)
    return result.log_prob.tobytes() + result.occupancy.tobytes()


@pytest.fixture(autouse=True)
def two_threads():
    before = get_num_threads()
    set_num_threads(2)
    yield
    set_num_threads(before)


def put_result(queue):
    queue.put(compute())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_fork_after_use_computes_in_the_child():
    expected = compute()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=put_result, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)
    assert child.exitcode == 0
    assert compute() == expected


def test_callers_in_several_threads_do_not_disturb_each_other():
    expected, found = compute(), []
    callers = [threading.Thread(target=lambda: found.extend(compute() for _ in range(3))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert found == [expected] * 9


def test_an_error_in_a_job_reaches_the_caller():
    def fail():
        raise ZeroDivisionError("job")

    for jobs in ([fail], [lambda: None, fail], [fail, lambda: None], [fail] * 9):
        with pytest.raises(ZeroDivisionError, match="job"):
            threads.run_all(jobs)


def test_fewer_threads_than_one_are_refused():
    with pytest.raises(ConfigError, match="count = 0; expected at least 1"):
        set_num_threads(0)


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_the_environment_variable_is_checked_by_name(text, monkeypatch):
    monkeypatch.setattr(threads, "_num_threads", None)
    monkeypatch.setenv("FSACHAIN_NUM_THREADS", text)
    with pytest.raises(ConfigError, match=f"FSACHAIN_NUM_THREADS = '{text}'; expected an integer >= 1"):
        get_num_threads()
    monkeypatch.setenv("FSACHAIN_NUM_THREADS", "3")
    assert get_num_threads() == 3
