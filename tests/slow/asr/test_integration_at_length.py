"""Losses in what users put around them, at length: torch's default compiler, forks of a busy process, DataLoader workers."""

import multiprocessing
import os
import shutil
import subprocess
import sys

import pytest
import torch
from loss_inputs import LENGTHS, SIZE, WIDTH, make_denominator, make_graphs, make_loss, make_output
from test_integration import needs_fork, run_program, step
from tolerances import FEW_FLOAT32_TERMS
from torch.utils.data import DataLoader, Dataset

from fsachain import TableBatch, forward_backward
from tools import ROOT


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's default compiler needs g++")
def test_the_default_compiler_of_torch_takes_network_and_loss_as_one_graph():
    """`torch.compile` with nothing but fullgraph=True: generated code instead of torch's own calls around the operator."""
    torch._dynamo.reset()
    loss, numerators = make_loss(l2_regularize=0.01), TableBatch.pack(make_graphs())
    net = torch.nn.Linear(WIDTH, WIDTH)

    def train(x):
        return loss(net(x), torch.tensor(LENGTHS), numerators)

    results = []
    for call in (train, torch.compile(train, fullgraph=True)):
        net.zero_grad()
        value = call(make_output(dtype=torch.float32))
        value.backward()
        results.append((value.detach(), net.weight.grad.clone()))
    torch.testing.assert_close(results[1], results[0], rtol=0.0, atol=FEW_FLOAT32_TERMS)


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
    run_program(FORK_WHILE_BUSY)


class Items(Dataset):
    """Item n: occupancies of a recursion and the bits of a loss, both computed by whoever asks."""

    def __len__(self):
        return 4

    def __getitem__(self, n):
        batch, scores = make_denominator(n).batch(SIZE), make_output(n).detach()
        result = forward_backward(batch, scores, LENGTHS, leaky_hmm_coefficient=0.1)
        return result.occupancy, torch.frombuffer(bytearray(step(n)), dtype=torch.uint8), os.getpid()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_dataloader_workers_compute_what_the_main_process_does(method, use_threads):
    """Forked workers start when the main process has a pool of threads already."""
    use_threads(2)
    expected = [Items()[n] for n in range(4)]
    loader = DataLoader(Items(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
    for (occupancy, bits, pid), (own_occupancy, own_bits, own_pid) in zip(loader, expected, strict=True):
        assert pid != own_pid
        assert (occupancy == own_occupancy).all() and torch.equal(bits, own_bits)


# The memory of a long alignment does not grow with its length.


LONG_ALIGNMENT = """
import sys
sys.path[:0] = ["tests", "tests/asr"]
import numpy as np
from test_long_alignment import numerator_of, spoken, tree_of
from fsachain.asr.decode.align import LongAligner

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def align(repeats):
    tree = tree_of("monophone")
    words = ["yes", "no", "oh", "no"] * 25
    part = numerator_of(words, tree)
    block = np.full((1200, 500), -1.0, np.float32)
    block[:, : tree.num_pdfs] = spoken(part, tree.num_pdfs, 1200, 0)
    aligner = LongAligner(numerator_of(words * repeats, tree), tree.num_pdfs, window=300, lookahead=100)
    for _ in range(repeats):
        aligner.accept(block)
    arcs, _ = aligner.finish()
    assert len(arcs) == 1200 * repeats
    return peak()

print(align(2), align(20))
"""


def test_memory_of_an_alignment_does_not_grow_with_the_recording():
    """Ten times the recording, 24,000 frames of 500 outputs: 48 MB of scores, and a trellis of 260 million steps."""
    command = [sys.executable, "-c", LONG_ALIGNMENT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    short, long = map(float, done.stdout.split())
    assert long - short < 24.0  # MB; half of the scores alone
