"""What the tests on a GPU share: they need neither numba nor hypothesis, and are compared with the reference."""

from __future__ import annotations

import os
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from fsachain import DenominatorGraph, Fsa, LFMMILoss, available_backends
from fsachain.backends import dispatch
from tools.bench import workloads

REASON = available_backends()["cuda"]
if REASON == "available" and not torch.cuda.is_available():
    REASON = "torch has no CUDA here"
# Where a GPU must be there (tools/gpu_report.py), tests fail without one.
is_there = REASON == "available" or "FSACHAIN_GPU_REPORT" in os.environ
needs_gpu = pytest.mark.skipif(not is_there, reason=REASON)
WIDTH = 9


@contextmanager
def nobody_waits():
    """Inside, whatever makes the host wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def the_host_is_the_reference(monkeypatch):
    monkeypatch.setattr(dispatch, "_cpu", lambda: dispatch._REFERENCE)


def connected_graph(seed: int, num_states: int = 5, width: int = WIDTH) -> Fsa:
    fsa = workloads.connected(num_states, 4 * num_states, width)
    pdf = np.random.default_rng(seed).integers(0, width, fsa.num_arcs)
    return Fsa(fsa.num_states, fsa.src, fsa.dst, pdf, fsa.log_prob, fsa.final_log_prob)


def left_to_right_graph(seed: int, num_states: int = 5, width: int = WIDTH) -> Fsa:
    pdfs = np.random.default_rng(seed).integers(0, width, num_states - 1)
    return workloads.left_to_right(pdfs, np.arange(num_states - 1) % 3 == 1, -1.0, 1)


def make_denominator(seed: int = 0) -> DenominatorGraph:
    return DenominatorGraph(connected_graph(seed), WIDTH)


def make_loss(denominator: object = None, **options: float) -> LFMMILoss:
    return LFMMILoss(denominator or make_denominator(), leaky_hmm_coefficient=0.1, **options)
