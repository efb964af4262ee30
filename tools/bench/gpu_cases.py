"""What is timed on a device: the cases of TARGETS.md as users call them, with the float64 values that they must have."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.total import total_log_prob
from fsachain.table import compile_table
from tests import tolerances
from tools.bench.gpu_peers import EagerLFMMI
from tools.bench.timing import Call, Target
from tools.bench.workloads import (
    GRAPHS,
    LEAK,
    THIRD,
    Ints,
    Sizes,
    Work,
    Workloads,
    connected,
    ctc_graph,
    large_denominator,
    left_to_right,
    packed,
    random_scores,
    work_of,
)
from tools.golden.rows import compare, log_prob_limits

CACHE_BYTES = 128 << 20  # twice the second-level cache of the largest GPU there is
MOST_INPUTS = 8

Loss = Callable[[torch.Tensor], torch.Tensor]
Sums = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A loss of scores that do not depend on the machine.

    Attributes:
        arrays: makes float32 arrays on the host.
        loss: of each sequence, or one of all.
        work: the least that any program must do.
        target: of the time of a step; of all memory in torch's pool, scores and gradient included, it is `memory`.
        peers: losses of the same scores, by name.
        combine: of the arrays, where the loss shall run, the scores [N, T, .., P].
        trains: the gradient is asked for too.
        unit: how large gradients may be.
        parts: the same sequence by sequence, for a host without room for all in float64.
        rotates: there is room for several inputs.
        unseen: makes the same loss with graphs that no device has seen, laid out beforehand or not.
        within: steps of a training on a device, with this loss and with a trivial one, by the precision of the network.
    """

    name: str
    arrays: Callable[[], Sequence[npt.NDArray[np.float32]]]
    loss: Loss
    work: Work
    target: Target | None = None
    memory: Target | None = None
    peers: Mapping[str, Loss] = field(default_factory=dict)
    combine: Callable[..., torch.Tensor] = lambda scores: scores
    trains: bool = True
    unit: float = 1.0
    parts: Callable[[], Iterator[Case]] | None = None
    rotates: bool = True
    unseen: Callable[[bool], Loss] | None = None
    within: Mapping[str, Callable[[torch.device], dict[str, Call]]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Where the float64 values are kept."""
        return re.sub(r"\W+", "-", self.name) + ".npz"

    def scores(self, device: torch.device) -> torch.Tensor:
        there = [torch.from_numpy(array).to(device) for array in self.arrays()]
        return self.combine(*there).requires_grad_(self.trains)

    def step(self, scores: torch.Tensor) -> torch.Tensor:
        """The losses; the gradient, where it is asked for, is `scores.grad`."""
        scores.grad = None
        losses = self.loss(scores)
        if self.trains:
            losses.sum().backward()
        return losses

    def call(self, device: torch.device) -> Call:
        """Steps with as many inputs in turn as together do not fit the caches."""
        first = self.scores(device)
        wanted = -(-CACHE_BYTES // (first.numel() * first.element_size()))
        count = min(MOST_INPUTS, max(2, wanted)) if self.rotates else 1
        others = [first.detach().roll(n, dims=1).requires_grad_(self.trains) for n in range(1, count)]
        turns = cycle([first, *others])
        return lambda: self.step(next(turns))

    def sums(self, scores: torch.Tensor) -> Sums:
        """The losses and, of the gradient, sums over frames and weighted sums over classes: float64."""
        losses = self.step(scores).detach().double().cpu().numpy().reshape(-1)
        if not self.trains:
            return {"loss": losses}
        assert scores.grad is not None
        weights = torch.from_numpy(np.random.default_rng(9).random(scores.shape[-1])).to(scores.device)
        by_class, by_frame = [], []
        for gradient in scores.grad:  # one at a time, since float64 takes twice the room
            wide = gradient.double()
            by_class.append(wide.flatten(0, -2).sum(0).cpu().numpy())
            by_frame.append((wide @ weights).reshape(len(wide), -1).sum(1).cpu().numpy())
        return {"loss": losses, "by_class": np.stack(by_class), "by_frame": np.stack(by_frame)}

    def reference(self) -> Sums:
        """The sums in float64 by the host, and a check sum of the arrays."""
        if self.parts is None:
            found = self.sums(self.scores(torch.device("cpu")).detach().double().requires_grad_(self.trains))
        else:
            each = [part.reference() for part in self.parts()]
            found = {name: _stacked([sums[name] for sums in each]) for name in each[0]}
        return {**found, "arrays": self.check_sum()}

    def check_sum(self) -> npt.NDArray[Any]:
        return np.array([zlib.crc32(np.ascontiguousarray(array)) for array in self.arrays()])

    def compare(self, path: Path, device: torch.device) -> tuple[float, str]:
        """The largest difference from a file that `reference` has made, relative to what is allowed, and of what.

        Raises:
            FileNotFoundError, ValueError: there is no such file, or it is for other arrays.
        """
        with np.load(path) as archive:
            exact = dict(archive)
        if not np.array_equal(exact.pop("arrays"), self.check_sum()):
            raise ValueError(f"{path.name} is for other scores: this machine's numpy draws other numbers")
        worst, scores = (0.0, "nothing"), self.scores(device)
        # A gradient in the type of the scores is rounded to it.
        rounding = tolerances.ELEMENT_ROUNDING.get(str(scores.dtype).removeprefix("torch."), 0.0)
        for name, ours in self.sums(scores).items():
            allowed: Any = log_prob_limits
            if name != "loss":
                allowed = max(tolerances.OCCUPANCY, rounding) * (self.unit + np.abs(exact[name]))
            worst = max(worst, (compare(self.name, name, ours, exact[name], allowed).ratio, name))
        return worst


def _stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Rows of different lengths, with zeros behind."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])


# Recursions.


def _recursion(name: str, batch: TableBatch, frames: int, leak: float = 0.0, **more: Any) -> Case:
    pdfs = batch.tables[0].num_pdfs
    return Case(
        name,
        lambda: [random_scores(batch.size, frames, pdfs)],
        lambda scores: total_log_prob(batch, scores, leaky_hmm_coefficient=leak),
        work_of(batch, frames, pdfs),
        **more,
    )


def _best_paths(name: str, batch: TableBatch, frames: int) -> Case:
    """Brought to the host."""
    case = _recursion(f"{name}, best paths", batch, frames, trains=False)
    return replace(case, loss=lambda scores: best_path(batch, scores).score)


def long_denominator(work: Workloads, sizes: Sizes) -> list[Case]:
    """With Kaldi's leak and exact, and best paths."""
    size, frames = sizes.long
    batch, name = work.denominator.batch(size), f"{work.name}, B {size}, T {frames}"
    return [
        _recursion(f"{name}, leaky", batch, frames, LEAK, target=Target(8.0, "ms")),
        _recursion(f"{name}, exact", batch, frames),
        _best_paths(name, batch, frames),
    ]


def numerators(work: Workloads, sizes: Sizes) -> list[Case]:
    """Seeded: chains with a self-loop on each state, of which every second may be left out."""
    (size, frames, states), num_pdfs = sizes.numerators, sizes.numerator_pdfs
    generator, skips = np.random.default_rng(5), np.arange(states - 1) % 2 == 1

    def drawn() -> TableBatch:
        chains = [generator.integers(0, num_pdfs, states - 1) for _ in range(size)]
        return packed((left_to_right(pdfs, skips, THIRD, 1) for pdfs in chains), num_pdfs)

    def unseen(laid_out: bool) -> Loss:
        batch = drawn()
        return partial(total_log_prob, batch.lay_out() if laid_out else batch)

    batch = drawn()
    name = f"numerators, B {size}, T {frames}, {batch.table(0).num_arcs} arcs"
    return [
        _recursion(name, batch, frames, target=Target(3.0, "ms"), unseen=unseen),
        _best_paths(name, batch, frames),
    ]


def bigram(work: Workloads, sizes: Sizes) -> list[Case]:
    """A denominator over all pairs of units: what it takes of the device's memory, scores and gradient included."""
    units, size, frames = sizes.bigram
    batch = TableBatch.share(compile_table(bigram_denominator(units)), size)
    return [
        _recursion(f"bigram of {units} units, B {size}, T {frames}", batch, frames, memory=Target(4.0, "GB"))
    ]


def bigram_denominator(units: int) -> Fsa:
    """All pairs of units in CTC's topology: pdf 0 is the blank, unit u has pdf u + 1; every state is final.

    State 0 starts and stands for blanks before the first unit; 1 + u is in unit u, 1 + units + u in a blank after it. From
    both every unit can follow, but a unit follows itself only after a blank.
    """
    unit = np.arange(units)
    inside, after = 1 + unit, 1 + units + unit
    before, following = (grid.ravel() for grid in np.meshgrid(unit, unit, indexing="ij"))
    other = before != following
    parts = [
        (np.zeros(1, int), np.zeros(1, int), np.zeros(1, int)),
        (np.zeros(units, int), inside, 1 + unit),
        (inside, inside, 1 + unit),
        (inside, after, np.zeros(units, int)),
        (after, after, np.zeros(units, int)),
        (inside[before[other]], inside[following[other]], 1 + following[other]),
        (after[before], inside[following], 1 + following),
    ]
    src, dst, pdf = (np.concatenate(column) for column in zip(*parts, strict=True))
    weight = np.random.default_rng(6).random(len(src)) + 0.01
    log_prob = np.log(weight / np.bincount(src, weight)[src])
    num_states = 1 + 2 * units
    return Fsa(num_states, src, dst, pdf, log_prob, np.zeros(num_states))


def large_graphs(work: Workloads, sizes: Sizes) -> list[Case]:
    """With Kaldi's leak: den10k, and a random graph as large as any."""
    *_, size, _ = sizes.large
    *shape, few, frames = sizes.largest
    large, largest = large_denominator(work.folder, sizes), DenominatorGraph(connected(*shape), shape[2])
    cases = ("den10k", large, size, sizes.large_frames), ("random", largest, few, frames)
    return [
        _recursion(
            f"{name}, {graph.fsa.num_states} states, B {size}, T {frames}, leaky",
            graph.batch(size),
            frames,
            LEAK,
        )
        for name, graph, size, frames in cases
    ]


# Steps of a training as large as Kaldi's chain recipes have it, and the loss that is a share of them.

FEATURES, SUBSAMPLING = 40, 3
# Four layers of all input frames, of which the last thins them out, and ten of the rest.
STRIDES, THINS_OUT = (1, 1, 1, 0, *(1,) * 10), 4
PRECISIONS = ("TF32", "bfloat16")  # of matrix products: float32 with fewer bits, and autocast


def steps(
    loss: Loss, shape: tuple[int, int, int], widths: tuple[int, int], precision: str, device: torch.device
) -> dict[str, Call]:
    """A whole step and one with a trivial loss: forward, backward, and SGD with momentum.

    Args:
        shape: of the scores [N, T, P]; the features have three times as many frames.
        widths: channels and bottleneck.
    """
    from fsachain.asr.nn.tdnnf import Tdnnf, TdnnfConfig  # the other cases need the library alone

    (size, frames, pdfs), (channels, bottleneck) = shape, widths
    torch.manual_seed(1)
    config = TdnnfConfig(
        FEATURES,
        pdfs,
        channels=channels,
        bottleneck=bottleneck,
        time_strides=STRIDES,
        subsampling=SUBSAMPLING,
        subsampling_layer=THINS_OUT,
        prefinal=channels,
    )
    network = Tdnnf(config).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5, momentum=0.9)
    features = torch.randn(size, SUBSAMPLING * frames, FEATURES, device=device)
    lengths = torch.full((size,), SUBSAMPLING * frames)

    def step(of_scores: Loss) -> None:
        optimizer.zero_grad()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                scores = network(features, lengths).nnet_output
            of_scores(scores.float()).sum().backward()
        finally:
            torch.set_float32_matmul_precision(before)
        optimizer.step()

    return {"whole": partial(step, loss), "trivial": partial(step, torch.mean)}


def whole_loss(work: Workloads, sizes: Sizes) -> list[Case]:
    graph, size, frames = work.denominator, sizes.loss, sizes.frames
    batch, lengths = work.numerator_batch(graph.num_pdfs, size), torch.full((size,), frames)
    loss, shape = LFMMILoss(graph, leaky_hmm_coefficient=LEAK), (size, frames, graph.num_pdfs)
    case = _recursion(f"LFMMILoss, B {size}, T {frames}", graph.batch(size), frames, target=Target(3.0, "ms"))

    def of_scores(scores: torch.Tensor) -> torch.Tensor:
        return loss(scores, lengths, batch)

    eager = EagerLFMMI(graph.table, batch.tables, graph.num_pdfs, LEAK)
    within = {kind: partial(steps, of_scores, shape, sizes.network, kind) for kind in PRECISIONS}
    unit = 1.0 / (size * frames)
    return [replace(case, loss=of_scores, unit=unit, peers={"eager torch": eager}, within=within)]


# CTC.


def ctc(work: Workloads, sizes: Sizes) -> list[Case]:
    """Beside torch's loss and cuDNN's, which takes at most 255 labels."""
    size, frames, classes, labels = sizes.long_ctc
    targets = np.random.default_rng(10).integers(1, classes, (size, labels))
    return [
        ctc_case(work.targets, sizes.frames, sizes.labels, Target(0.4, "ms")),
        ctc_case(targets, frames, classes, Target(0.5, "ms")),
    ]


def ctc_case(labels: Ints, frames: int, classes: int, target: Target) -> Case:
    """Of logits [N, T, C], log-softmax included, and labels [N, U]."""
    targets = torch.from_numpy(labels)
    size, count = targets.shape
    on = cache(targets.to)

    def ours(logits: torch.Tensor) -> torch.Tensor:
        lengths = [torch.full((size,), number) for number in (frames, count)]
        given = logits.transpose(0, 1), on(logits.device), *lengths
        return ctc_loss(*given, reduction="none", inputs="logits")

    def theirs(logits: torch.Tensor, integer: torch.dtype) -> torch.Tensor:
        """Targets as int32 on the host, all in a row, are what cuDNN's takes."""
        lengths = [torch.full((size,), number, dtype=integer) for number in (frames, count)]
        given = targets.to(integer).flatten() if integer == torch.int32 else on(logits.device)
        log_probs = logits.log_softmax(2).transpose(0, 1)
        is_for_cudnn = integer == torch.int32
        if logits.is_cuda and torch._use_cudnn_ctc_loss(log_probs, given, *lengths, 0) != is_for_cudnn:
            raise ValueError(f"torch takes {'its own loss' if is_for_cudnn else 'that of cuDNN'}")
        return torch.nn.functional.ctc_loss(log_probs, given, *lengths, reduction="none")

    name = f"CTC, B {size}, T {frames}, U {count}, V {classes}"
    case = _recursion(name, packed(map(ctc_graph, labels), classes), frames, target=target)
    peers = {"torch": partial(theirs, integer=torch.int64), "cuDNN": partial(theirs, integer=torch.int32)}
    return replace(case, loss=ours, peers=peers)


# Transducers: shapes of LibriSpeech's utterances, our loss and torchaudio's.

SHAPES = GRAPHS.parent / "librispeech_clean100_shapes.npz"
PASSES = 3  # over the logits: they are read once each way, and the gradient is written


class Batch(NamedTuple):
    """Utterances that are one batch: frames, labels [N], classes, targets [N, U], type of the logits."""

    frames: Ints
    labels: Ints
    classes: int
    on: Callable[[torch.device], torch.Tensor]  # targets where they are wanted, brought there once
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the logits [N, T, U + 1, V]."""
        return len(self.frames), int(self.frames.max()), int(self.labels.max()) + 1, self.classes

    @property
    def num_bytes(self) -> int:
        """Of the logits, padding included."""
        return self.dtype.itemsize * int(np.prod(self.shape))

    @property
    def work(self) -> Work:
        """What loss and gradient must do at least: two arcs a node, and three passes over rows that are no padding."""
        nodes = int((self.frames * (self.labels + 1)).sum())
        return Work(2 * nodes, PASSES * self.dtype.itemsize * self.classes * nodes)


def utterances(most: int, seeded: bool = False) -> Ints:
    """Frames and labels [*, 2] of LibriSpeech's utterances, or of seeded ones like them.

    `most`: the most frames of an utterance; longer ones are left out.
    """
    if seeded:
        generator = np.random.default_rng(8)
        frames = np.clip(generator.normal(318.0, 90.0, 4000), 2, 680).astype(np.int64)
        found = np.stack([frames, np.clip(frames * 0.214 + generator.normal(0, 8, 4000), 1, 151)], axis=1)
    else:
        with np.load(SHAPES) as archive:
            found = archive["frames_tokens"]
    found = found.astype(np.int64)
    return found[found[:, 0] <= most]


def random_batch(shapes: Ints, size: int, classes: int) -> Batch:
    """So many utterances drawn at random, as without sorting."""
    drawn = np.random.default_rng(4).choice(len(shapes), size, replace=len(shapes) < size)
    return _batch(shapes[drawn], classes)


def sorted_batch(shapes: Ints, num_frames: int, classes: int) -> Batch:
    """As many utterances about as long as the mean one as have so many frames together, padding included."""
    ordered = shapes[np.argsort(shapes[:, 0], kind="stable")]
    first = int(np.searchsorted(ordered[:, 0], shapes[:, 0].mean()))
    count = 1
    while first + count < len(ordered) and (count + 1) * ordered[first + count, 0] <= num_frames:
        count += 1
    return _batch(ordered[first : first + count], classes)


def batch_of_length(shapes: Ints, frames: int, size: int, classes: int, dtype: torch.dtype) -> Batch:
    """The first utterances of those nearest to so many frames."""
    nearest = np.argsort(np.abs(shapes[:, 0] - frames), kind="stable")[:size]
    return _batch(shapes[nearest], classes)._replace(dtype=dtype)


def _batch(shapes: Ints, classes: int) -> Batch:
    targets = np.random.default_rng(4).integers(1, classes, (len(shapes), int(shapes[:, 1].max())))
    return Batch(shapes[:, 0].copy(), shapes[:, 1].copy(), classes, cache(torch.from_numpy(targets).to))


def transducer_loss(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """Our losses; the gradient takes the logits' place."""
    given = batch.on(logits.device), batch.frames, batch.labels
    return rnnt_loss(logits, *given, blank=0, reduction="none", inplace=True)


def torchaudio(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """torchaudio's losses."""
    from torchaudio.functional import rnnt_loss as theirs

    given = [batch.on(logits.device), *map(torch.from_numpy, (batch.frames, batch.labels))]
    given = [values.to(logits.device, torch.int32) for values in given]
    loss: Any = theirs(logits, *given, blank=0, reduction="none")
    return loss


def transducer(work: Workloads, sizes: Sizes) -> list[Case]:
    """`rnnt_loss` in place, and torchaudio's."""
    (size, frames, longest), classes = sizes.utterances, sizes.labels
    shapes = utterances(longest, seeded=work.folder is None)
    batches = {
        f"{size} at random": random_batch(shapes, size, classes),
        f"{frames} frames": sorted_batch(shapes, frames, classes),
    }
    return [
        transducer_case(name, batch, Target(10.0, "ms"), {"torchaudio": partial(torchaudio, batch)})
        for name, batch in batches.items()
    ]


def half_transducer(work: Workloads, sizes: Sizes) -> list[Case]:
    """`rnnt_loss` in place of bfloat16 logits; torchaudio's takes none."""
    size, frames, classes = sizes.spoken
    shapes = utterances(sizes.utterances[2], seeded=work.folder is None)
    batch = batch_of_length(shapes, frames, size, classes, torch.bfloat16)
    return [transducer_case("bfloat16", batch, Target(2.0, "ms"), {})]


def transducer_case(kind: str, batch: Batch, target: Target, peers: Mapping[str, Loss]) -> Case:
    """Logits are sums of what a frame says and what the labels so far say, as before the joiner of a simple network.

    All memory shall be at most 1.05 times the logits.
    """
    size, frames, positions, classes = batch.shape
    name = f"rnnt_loss, {kind}, V {classes}: B {size}, T {frames}, U {positions - 1}"
    memory = Target(round(1.05e-9 * batch.num_bytes, 6), "GB")

    def arrays() -> list[npt.NDArray[np.float32]]:
        generator = np.random.default_rng(7)
        shapes = (size, frames, classes), (size, positions, classes)
        return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def combine(of_frames: torch.Tensor, of_labels: torch.Tensor) -> torch.Tensor:
        # Sums of float32, then rounded: the same on any device.
        return (of_frames.unsqueeze(2) + of_labels.unsqueeze(1)).to(batch.dtype)

    def parts() -> Iterator[Case]:
        of_frames, of_labels = arrays()
        for n, (t, u) in enumerate(zip(batch.frames, batch.labels, strict=True)):
            one, targets = slice(n, n + 1), batch.on(torch.device("cpu"))
            alone = Batch(
                batch.frames[one], batch.labels[one], classes, cache(targets[one, :u].to), batch.dtype
            )
            own = of_frames[one, :t], of_labels[one, : u + 1]
            yield Case(
                name, lambda own=own: own, partial(transducer_loss, alone), alone.work, combine=combine
            )

    how: Any = {"combine": combine, "parts": parts, "rotates": False}
    loss = partial(transducer_loss, batch)
    return Case(name, arrays, loss, batch.work, target, memory, peers, **how)


MAKERS: dict[str, Callable[[Workloads, Sizes], list[Case]]] = {
    "denominator": long_denominator,
    "numerators": numerators,
    "loss": whole_loss,
    "ctc": ctc,
    "bigram": bigram,
    "transducer": transducer,
    "bfloat16": half_transducer,
    "large": large_graphs,
}
