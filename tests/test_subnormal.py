"""Subnormal numbers, which cost Intel's processors a hundred cycles each: no kernel works on them, no gradient has one."""

import platform
import threading

import numpy as np
import pytest
import torch
from llvmlite import ir
from random_graphs import connected_graph

from fsachain import (
    DenominatorGraph,
    LFMMILoss,
    MBRLoss,
    TableBatch,
    compile_table,
    ctc_graph,
    ctc_loss,
    forward_backward,
    hat_loss,
    multi_blank_loss,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    tdt_loss,
    total_log_prob,
)
from fsachain.backends.cpu.flush import flush_in
from fsachain.backends.cpu.jit import jit

SIZE, FRAMES, LABELS, WIDTH = 3, 40, 8, 30
LENGTHS = [FRAMES] * SIZE, [LABELS] * SIZE
TARGETS = torch.randint(1, 20, (SIZE, LABELS), generator=torch.Generator().manual_seed(1))
DENOMINATOR = DenominatorGraph(connected_graph(3, num_pdfs=WIDTH), WIDTH)
NUMERATORS = TableBatch.pack([compile_table(ctc_graph(labels.tolist()), WIDTH) for labels in TARGETS])
flushing = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"),
    reason="this processor is not told to flush",
)


def num_subnormal(values):
    values = np.asarray(values)
    return int(((values != 0) & (np.abs(values) < np.finfo(values.dtype).tiny)).sum())


def random(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(7))


GRID, ROWS, PREDICTED = (SIZE, FRAMES, LABELS + 1, WIDTH), (SIZE, FRAMES, WIDTH), (SIZE, LABELS + 1, WIDTH)
BY_ROWS = torch.linspace(0.01, 0.9, SIZE).double()
LOSSES = {
    "rnnt": ([GRID], lambda z: rnnt_loss(z, TARGETS, *LENGTHS, 0)),
    "rnnt in place": ([GRID], lambda z: rnnt_loss(z * 1, TARGETS, *LENGTHS, 0, inplace=True)),
    "rnnt, each scaled": (
        [GRID],
        lambda z: rnnt_loss(z, TARGETS, *LENGTHS, 0, reduction="none") @ BY_ROWS,
    ),
    "hat": ([GRID], lambda z: hat_loss(z, TARGETS, *LENGTHS, 0)),
    "tdt": ([GRID], lambda z: tdt_loss(z, TARGETS, *LENGTHS, durations=[0, 1, 2], blank=25)),
    "multi-blank": ([GRID], lambda z: multi_blank_loss(z, TARGETS, *LENGTHS, {29: 2}, blank=0)),
    "simple": ([ROWS, PREDICTED], lambda am, lm: rnnt_loss_simple(lm, am, TARGETS, 0)),
    "smoothed": ([ROWS, PREDICTED], lambda am, lm: rnnt_loss_smoothed(lm, am, TARGETS, 0)),
    "mutual information": (
        [(SIZE, LABELS, FRAMES + 1), (SIZE, LABELS + 1, FRAMES)],
        lambda px, py: mutual_information_recursion(px, py).sum(),
    ),
    "ctc of logits": ([ROWS], lambda y: ctc_loss(y.transpose(0, 1), TARGETS, *LENGTHS, inputs="logits")),
    "total": ([ROWS], lambda y: total_log_prob(NUMERATORS, y, LENGTHS[0]) @ BY_ROWS),
    "lfmmi": ([ROWS], lambda y: LFMMILoss(DENOMINATOR, l2_regularize=1e-3)(y, LENGTHS[0], NUMERATORS)),
    "mbr": ([ROWS], lambda y: MBRLoss(DENOMINATOR)(y, LENGTHS[0], NUMERATORS)),
}


@flushing
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [5.0, 15.0, 30.0])
@pytest.mark.filterwarnings("ignore")
def test_gradients_hold_no_subnormal_number(name, scale):
    shapes, loss = LOSSES[name]
    inputs = [random(*shape, scale=scale).requires_grad_() for shape in shapes]
    (0.013 * loss(*inputs)).backward()  # a factor of AMP or of a mean, by which backward multiplies
    for one in inputs:
        assert torch.isfinite(one.grad).all()
        assert one.grad.abs().max() > 0
        assert num_subnormal(one.grad) == 0


@flushing
@pytest.mark.parametrize("leak", [0.0, 1e-5, 0.1])
def test_occupancies_hold_no_subnormal_number(leak):
    for scale in (10.0, 15.0, 20.0, 30.0, 80.0):
        scores = random(4, 60, WIDTH, scale=scale)
        result = forward_backward(DENOMINATOR.batch(4), scores, leaky_hmm_coefficient=leak)
        assert num_subnormal(result.occupancy) == 0
        exact = forward_backward(
            DENOMINATOR.batch(4), scores, leaky_hmm_coefficient=leak, backend="reference"
        )
        np.testing.assert_allclose(result.occupancy, exact.occupancy, atol=1e-4, rtol=0)


@jit
def _halve(values, out):
    for i in range(len(values)):
        out[i] = values[i] * np.float32(0.5)


@jit
def _refuse(values):
    if values[0] > 0:
        raise ValueError("refused")


SMALL = np.array([1.5e-38, 1e-40, 1.0], np.float32)  # half of the first is subnormal, the second is


@flushing
def test_kernels_flush_and_restore_what_their_caller_had():
    out, plain = np.empty(3, np.float32), SMALL * np.float32(0.5)
    _halve(SMALL, out)
    assert out.tolist() == [0.0, 0.0, 0.5]
    assert num_subnormal(plain) == 2
    assert (SMALL * np.float32(0.5)).tolist() == plain.tolist(), "the caller's arithmetic has changed"
    with pytest.raises(ValueError, match="refused"):
        _refuse(SMALL)
    assert (SMALL * np.float32(0.5)).tolist() == plain.tolist(), "an error left the processor flushing"


@flushing
def test_a_caller_that_flushes_goes_on_doing_so():
    out = np.empty(3, np.float32)
    assert torch.set_flush_denormal(True)
    try:
        _halve(SMALL, out)
        assert num_subnormal(torch.from_numpy(SMALL) * 0.5) == 0
    finally:
        torch.set_flush_denormal(False)
    assert num_subnormal(torch.from_numpy(SMALL) * 0.5) == 2


@flushing
def test_other_threads_flush_too():
    out = np.empty(3, np.float32)
    thread = threading.Thread(target=_halve, args=(SMALL, out))
    thread.start()
    thread.join()
    assert out.tolist() == [0.0, 0.0, 0.5]


def two_ends():
    """A function of LLVM's IR with a branch and two ends."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(1)]), "two_ends")
    builder = ir.IRBuilder(function.append_basic_block())
    with builder.if_then(function.args[0]):
        builder.ret_void()
    builder.ret_void()
    return module, function


@pytest.mark.parametrize(
    ("machine", "read", "write"),
    [
        ("x86_64", 'call void @"llvm.x86.sse.stmxcsr"', 'call void @"llvm.x86.sse.ldmxcsr"'),
        ("aarch64", "mrs $0, fpcr", "msr fpcr, $0"),
    ],
)
def test_every_end_of_a_kernel_restores(machine, read, write):
    module, function = two_ends()
    flush_in(function, machine)
    text = str(module)
    assert text.count(read) == 1
    assert text.count(write) == 3  # set once, restored at both ends


def test_unknown_processors_are_left_as_they_are():
    module, function = two_ends()
    before = str(module)
    flush_in(function, "riscv64")
    assert str(module) == before
