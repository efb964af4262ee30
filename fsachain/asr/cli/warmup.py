"""Machine code of the CPU kernels made beforehand, `fsachain warmup`: for container images and read-only homes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import click
import numpy as np
import torch

from fsachain.asr.cli.options import command, track
from fsachain.backends.cpu.backend import FEW
from fsachain.backends.cpu.paths import LiveStates
from fsachain.backends.dispatch import best_path, forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.mbr import MBRLoss
from fsachain.loss.rnnt import rnnt_loss
from fsachain.openfst import Transducer

FRAMES = 40
PDFS = math.isqrt(FEW) + 1  # so that a graph with arcs between all states is no small one


def _loops() -> tuple[Fsa, Fsa]:
    """Any state after any: denominators. Arcs of one share destinations and pdfs, those of the other do not."""
    src, dst = np.divmod(np.arange(PDFS**2), PDFS)
    weights, final = np.full(len(src), -np.log(PDFS)), np.zeros(PDFS)
    return Fsa(PDFS, src, dst, dst, weights, final), Fsa(PDFS, src, dst, (src + dst) % PDFS, weights, final)


def _line(pdfs: list[int]) -> Fsa:
    """These pdfs in order, each a frame or more: a numerator."""
    last = len(pdfs)
    src = np.repeat(np.arange(last), 2)
    dst = src + np.tile([0, 1], last)
    final = np.append(np.full(last, -np.inf), 0.0)
    return Fsa(last + 1, src, dst, np.repeat(pdfs, 2), np.full(2 * last, -0.7), final)


def _scores(count: int, num_pdfs: int, scale: float, dtype: torch.dtype) -> torch.Tensor:
    drawn = torch.randn(count, FRAMES, num_pdfs, generator=torch.manual_seed(1)) * scale
    return drawn.to(dtype).requires_grad_()


def _lfmmi(
    count: int, scale: float, dtype: torch.dtype, loss: type[LFMMILoss] | type[MBRLoss] = LFMMILoss
) -> None:
    numerators = [_line([0, 1 + number % 3, 4, 5]) for number in range(count)]
    lengths = [FRAMES - number % 5 for number in range(count)]
    for graph, leak in itertools.product(_loops(), (0.0, 0.1)):
        made = loss(DenominatorGraph(graph, PDFS), leaky_hmm_coefficient=leak)
        made(_scores(count, PDFS, scale, dtype), lengths, numerators).backward()
        with torch.no_grad():
            made(_scores(count, PDFS, scale, dtype), lengths, numerators)


def _ctc(count: int, scale: float, dtype: torch.dtype) -> None:
    targets = torch.arange(count * 5).reshape(count, 5) % 4 + 1
    lengths, sizes = torch.full((count,), FRAMES), torch.full((count,), 5)
    scores = _scores(count, PDFS, scale, dtype)
    ctc_loss(scores.transpose(0, 1), targets, lengths, sizes, inputs="logits").backward()
    ctc_loss(scores.log_softmax(-1).transpose(0, 1), targets, lengths, sizes).backward()


def _align(count: int, scale: float, dtype: torch.dtype) -> None:
    scores = _scores(count, PDFS, scale, dtype).detach()
    for graph in _loops():
        batch = DenominatorGraph(graph, PDFS).batch(count)
        best_path(batch, scores, [FRAMES] * count)
        forward_backward(batch, scores, [FRAMES] * count)
    state = np.zeros(1, np.int32)
    loop = Transducer(1, 0, state, state, state + 1, state, np.zeros(1), np.zeros(1))
    LiveStates(loop).count(scores[0].float().numpy(), 1.0, FRAMES)


def _transducer(count: int, scale: float, dtype: torch.dtype) -> None:
    logits = _scores(count, 20, scale, dtype).reshape(count, FRAMES, 4, 5)
    sizes = torch.full((count,), 3, dtype=torch.int32)
    lengths = torch.full_like(sizes, FRAMES)
    rnnt_loss(logits, torch.ones(count, 3, dtype=torch.int32), lengths, sizes, blank=0).backward()


# Each compiles what its name says for a number of sequences, a scale of scores and their type.
JOBS: dict[str, Callable[[int, float, torch.dtype], None]] = {
    "lfmmi": _lfmmi,
    "mbr": partial(_lfmmi, loss=MBRLoss),
    "ctc": _ctc,
    "align": _align,
    "transducer": _transducer,
}
# A sequence alone, a few, groups of lanes; plain numbers, wide ones, logs: each has code of its own.
CASES = tuple(itertools.product((1, 3, 20, 40), (1.0, 30.0, 3000.0), (torch.float32, torch.float64)))


@command(jobs={"type": click.Choice(list(JOBS)), "nargs": -1})
def warmup(jobs: tuple[str, ...]) -> None:
    """Compile the kernels beforehand, for container images.

    In: JOBS, what is to be ready on the CPU, by default lfmmi.
    Out: machine code in NUMBA_CACHE_DIR if that is set, else beside the package or in the user's cache folder.
    Example: fsachain warmup lfmmi align
    """
    for job in jobs or ("lfmmi",):
        for case in track(CASES, f"kernels of {job}"):
            JOBS[job](*case)
        click.echo(f"{job}: compiled")
