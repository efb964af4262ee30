"""The losses among what users put around them: threads and forks."""

import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from loss_inputs import LENGTHS, make_denominator, make_graphs, make_loss, make_output
from refusals import refuses

from fsachain import ConfigError, get_num_threads, set_num_threads
from fsachain.backends.cpu import threads

CAN_FORK = "fork" in multiprocessing.get_all_start_methods()
needs_fork = pytest.mark.skipif(not CAN_FORK, reason="this system cannot fork")


def step(seed):
    """Value and gradient, as bytes, of a loss and scores that depend on the seed."""
    scores = make_output(seed, dtype=torch.float32)
    loss = make_loss(denominator=make_denominator(seed), l2_regularize=0.01)
    value = loss(scores, LENGTHS, make_graphs(seed=seed))
    value.backward()
    return value.detach().numpy().tobytes() + scores.grad.numpy().tobytes()


def test_two_threads_with_two_losses_give_the_bits_of_each_alone():
    expected = [step(seed) for seed in (0, 1)]
    assert expected[0] != expected[1]
    found = {0: [], 1: []}
    callers = [
        threading.Thread(target=lambda s=seed: found[s].extend(step(s) for _ in range(4))) for seed in found
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert found == {0: [expected[0]] * 4, 1: [expected[1]] * 4}


FORK_WHILE_LOCKED = """
import os, signal, sys
sys.path[:0] = {paths}
import test_integration as t
from fsachain import set_num_threads
from fsachain.backends.cpu import {module}
set_num_threads(2)
expected = t.step(0)
with {module}._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if t.step(0) == expected else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("done")
"""


def run_program(text, **names):
    """In a process of its own; it says that it is done."""
    here = Path(__file__).resolve().parent
    code = text.format(paths=[str(here), str(here.parent)], **names)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@needs_fork
@pytest.mark.parametrize("module", ["memory", "threads"])
def test_a_lock_that_is_held_during_a_fork_is_free_in_the_child(module):
    """Nobody in the child would ever give it back; a child that waits for it is ended by its alarm."""
    run_program(FORK_WHILE_LOCKED, module=module)


def test_an_error_in_a_job_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(threads, "_num_threads", 2)

    def fail():
        raise ZeroDivisionError("job")

    for jobs in ([fail], [lambda: None, fail], [fail, lambda: None], [fail] * 9):
        refuses(ZeroDivisionError, "job", threads.run_all, jobs)


def test_a_thread_that_has_not_begun_is_not_waited_for(monkeypatch):
    """Where the machine is busy, the caller has done all jobs before a thread of the pool gets a core."""
    monkeypatch.setattr(threads, "_num_threads", 2)
    monkeypatch.setattr(threads, "_pool", ThreadPoolExecutor(1))
    ready, done = threading.Event(), []
    threads._pool.submit(ready.wait, 60)
    threads.run_all([lambda: done.append(1)] * 3)
    assert done == [1, 1, 1] and not ready.is_set()
    ready.set()


@pytest.mark.skipif(sys.platform != "linux", reason="only there torch is known to come with GNU's OpenMP")
def test_threads_of_torch_that_wait_for_work_leave_the_cores_to_ours(use_threads):
    """They would spin for some milliseconds after each parallel operation."""
    use_threads(2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1000, 1000).mul(2.0)
        threads.run_all([lambda: None] * 2)
        spent = time.process_time()
        time.sleep(0.02)
        assert time.process_time() - spent < 0.002
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_a_number_of_threads_is_checked_and_the_variable_named(text, monkeypatch):
    refuses(ConfigError, "count = 0; expected at least 1", set_num_threads, 0)
    refuses(ConfigError, "count = 1.5; expected an integer", set_num_threads, 1.5)
    monkeypatch.setattr(threads, "_num_threads", None)
    monkeypatch.setenv("FSACHAIN_NUM_THREADS", text)
    refuses(ConfigError, f"FSACHAIN_NUM_THREADS = '{text}'; expected an integer >= 1", get_num_threads)
    monkeypatch.setenv("FSACHAIN_NUM_THREADS", "3")
    assert get_num_threads() == 3
