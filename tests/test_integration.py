"""The losses among what users put around them: torch's operator rules and compiler, threads, forks, DataLoader workers."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from random_graphs import connected_graph, left_to_right_graph
from tolerances import FEW_FLOAT32_TERMS
from torch.utils.data import DataLoader, Dataset

from fsachain import (
    DenominatorGraph,
    LFMMILoss,
    TableBatch,
    compile_table,
    forward_backward,
    get_num_threads,
    set_num_threads,
)

WIDTH, FRAMES, SIZE = 9, 24, 3
LENGTHS = [24, 11, 17]
CAN_FORK = "fork" in multiprocessing.get_all_start_methods()
needs_fork = pytest.mark.skipif(not CAN_FORK, reason="this system cannot fork")
TYPES = [torch.float16, torch.float32, torch.float64]


def make_scores(seed=0, dtype=torch.float32, size=SIZE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, FRAMES, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def make_numerators(seed=0):
    graphs = [left_to_right_graph(10 * seed + n, 5, WIDTH) for n in range(SIZE)]
    return TableBatch.pack([compile_table(graph, WIDTH) for graph in graphs])


def make_loss(seed=0, **options):
    return LFMMILoss(DenominatorGraph(connected_graph(seed), WIDTH), leaky_hmm_coefficient=0.1, **options)


def step(seed):
    """Value and gradient, as bytes, of a loss and scores that depend on the seed."""
    scores = make_scores(seed).requires_grad_()
    value = make_loss(seed, l2_regularize=0.01)(scores, LENGTHS, make_numerators(seed))
    value.backward()
    return value.detach().numpy().tobytes() + scores.grad.numpy().tobytes()


# torch.library.opcheck of every operator: schema, fake kernel, autograd registration, ahead-of-time graphs.


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's default compiler needs g++")
def test_the_default_compiler_of_torch_takes_network_and_loss_as_one_graph():
    """`torch.compile` with nothing but fullgraph=True: generated code instead of torch's own calls around the operator."""
    torch._dynamo.reset()
    loss, numerators = make_loss(l2_regularize=0.01), make_numerators()
    net = torch.nn.Linear(WIDTH, WIDTH)

    def train(x):
        return loss(net(x), torch.tensor(LENGTHS), numerators)

    results = []
    for call in (train, torch.compile(train, fullgraph=True)):
        net.zero_grad()
        value = call(make_scores())
        value.backward()
        results.append((value.detach(), net.weight.grad.clone()))
    torch.testing.assert_close(results[1], results[0], rtol=0.0, atol=FEW_FLOAT32_TERMS)


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


FORK_WHILE_BUSY = """
import os, signal, sys, threading
sys.path[:0] = {paths}
import test_integration as t
from fsachain import set_num_threads
set_num_threads(2)
expected, stop = t.step(0), threading.Event()
def work():
    while not stop.is_set():
        t.step(1)
caller = threading.Thread(target=work)
caller.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if t.step(0) == expected else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
caller.join()
assert t.step(0) == expected
print("done")
"""


@needs_fork
def test_a_fork_while_another_thread_computes_gives_a_child_that_computes():
    """The child has one thread, whatever the parent's pool was doing, and its loss has the parent's bits."""
    here = Path(__file__).resolve().parent
    code = FORK_WHILE_BUSY.format(paths=[str(here), str(here.parent)])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


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


@needs_fork
@pytest.mark.parametrize("module", ["memory", "threads"])
def test_a_lock_that_is_held_during_a_fork_is_free_in_the_child(module):
    """Nobody in the child would ever give it back; a child that waits for it is ended by its alarm."""
    here = Path(__file__).resolve().parent
    code = FORK_WHILE_LOCKED.format(paths=[str(here), str(here.parent)], module=module)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


class Items(Dataset):
    """Item n: occupancies of a recursion and the bits of a loss, both computed by whoever asks."""

    def __len__(self):
        return 4

    def __getitem__(self, n):
        batch = DenominatorGraph(connected_graph(n), WIDTH).batch(SIZE)
        result = forward_backward(batch, make_scores(n), LENGTHS, leaky_hmm_coefficient=0.1)
        return result.occupancy, torch.frombuffer(bytearray(step(n)), dtype=torch.uint8), os.getpid()


@pytest.fixture
def two_threads():
    before = get_num_threads()
    set_num_threads(2)
    yield
    set_num_threads(before)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_dataloader_workers_compute_what_the_main_process_does(method, two_threads):
    """Forked workers start when the main process has a pool of threads already."""
    expected = [Items()[n] for n in range(4)]
    loader = DataLoader(Items(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
    for (occupancy, bits, pid), (own_occupancy, own_bits, own_pid) in zip(loader, expected, strict=True):
        assert pid != own_pid
        assert (occupancy == own_occupancy).all() and torch.equal(bits, own_bits)
