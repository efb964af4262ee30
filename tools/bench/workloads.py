"""What is timed: the graphs that stand beside the checkout, or seeded ones of the same kinds and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.table import compile_table
from tools import SHARED
from tools.golden.rows import graph_fsa

GRAPHS = SHARED / "data" / "graphs"
LEAK = 1e-5
PER_ARC = 2
CACHE_BYTES = 32 << 20  # alphas that are no larger need not go to memory
FLOAT = 4  # bytes
THIRD = float(-np.log(3.0))  # of each arc of a chain whose states may be left out

Scores = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """How much is timed; the defaults are those of TARGETS.md and of the published comparisons."""

    batch_sizes: tuple[int, ...] = (1, 4, 8, 16, 32, 64)  # sequences of the denominator table
    sequences: int = 32  # and frames: of all other tables but those below
    frames: int = 150
    long: tuple[int, int] = (128, 700)  # sequences and frames of the long batch
    packed: int = 128  # tables
    # states, arcs and pdfs of a seeded graph (den10k has its own), sequences and frames where memory is measured
    large: tuple[int, int, int, int, int] = (10_000, 100_000, 3000, 64, 1500)
    states: int = 3000  # of a seeded denominator; and so on for seeded numerators and targets
    arcs: int = 30_000
    pdfs: int = 84
    numerator_states: int = 200
    numerator_pdfs: int = 2000
    labels: int = 500  # with the blank
    label_length: int = 40
    transducer: tuple[int, int, int, int] = (8, 200, 50, 500)  # sequences, frames, labels and classes
    # the smallest and the largest frames, arcs and sequences of the slopes
    growth: tuple[tuple[int, int], ...] = ((15, 1500), (1000, 100_000), (16, 1600))
    threads: tuple[int, ...] = (1, 2)  # a row for each
    seconds: float = 1.5  # time for each group of rows
    # On a device: sequences, frames and states of numerators, half of which can be left out (1,000 arcs); sequences of
    # the whole loss; units, sequences and frames of the denominator over pairs of units; sequences of the random
    # transducer batch, frames of the sorted one, and of an utterance at most; what measures the device.
    numerators: tuple[int, int, int] = (128, 700, 401)
    loss: int = 128
    bigram: tuple[int, int, int] = (500, 64, 500)
    utterances: tuple[int, int, int] = (30, 10_000, 1000)
    # Sequences, frames, classes and labels of a long CTC; utterances of so many frames with so many classes in bfloat16;
    # frames of den10k (`large`); states, arcs, pdfs, sequences and frames of the largest graph; channels and bottleneck of
    # a TDNN-F.
    long_ctc: tuple[int, int, int, int] = (32, 1024, 128, 96)
    spoken: tuple[int, int, int] = (32, 375, 1024)
    large_frames: int = 150
    largest: tuple[int, int, int, int, int] = (1_000_000, 2_000_000, 3000, 16, 50)
    network: tuple[int, int] = (1536, 160)
    copy_bytes: int = 1 << 30
    product_side: int = 8192


TINY = Sizes(
    batch_sizes=(1, 3), sequences=3, frames=12, long=(3, 10), packed=5, large=(10, 40, 6, 3, 30), states=10, arcs=40,
    pdfs=6, numerator_states=8, numerator_pdfs=20, labels=9, label_length=4, transducer=(2, 6, 3, 20),
    growth=((5, 20), (30, 60), (2, 8)), seconds=0.0, numerators=(2, 12, 9), loss=3, bigram=(4, 2, 10),
    utterances=(2, 90, 40), long_ctc=(2, 14, 7, 3), spoken=(2, 20, 12), large_frames=8, largest=(30, 60, 6, 2, 9),
    network=(8, 4), copy_bytes=1 << 16, product_side=16,
)  # fmt: skip


@dataclass(frozen=True)
class Workloads:
    """The graphs of one run; `source` says where they are from, `folder` is None where that is a seed."""

    source: str
    folder: Path | None
    denominators: dict[str, DenominatorGraph]
    numerators: tuple[Fsa, ...]
    numerator_pdfs: int
    targets: Ints

    @property
    def name(self) -> str:
        return next(iter(self.denominators))

    @property
    def denominator(self) -> DenominatorGraph:
        return self.denominators[self.name]

    @property
    def ctc(self) -> list[Fsa]:
        return [ctc_graph(target) for target in self.targets]

    def numerator_batch(self, num_pdfs: int, size: int | None = None) -> TableBatch:
        """The numerators, over and over up to `size`, with pdfs beyond this output folded onto those within."""
        graphs = (self.numerators[n % len(self.numerators)] for n in range(size or len(self.numerators)))
        return packed((replace(fsa, pdf=fsa.pdf % num_pdfs) for fsa in graphs), num_pdfs)


def packed(graphs: Iterable[Fsa], num_pdfs: int) -> TableBatch:
    return TableBatch.pack([compile_table(fsa, num_pdfs) for fsa in graphs])


def from_folder(folder: Path, sizes: Sizes) -> Workloads:
    """Read den_wsj, den3k, num_00.. and the CTC targets, one of each for every sequence."""
    numerators = [read_graph(folder / f"num_{n:02}.npz") for n in range(sizes.sequences)]
    with np.load(folder / "ctc_targets_B32_U40_V500.npz") as archive:
        targets = archive["targets"][: sizes.sequences]
    source = "den_wsj, den3k, den10k, num_00.. and CTC targets of the shared folder"
    shared = {name: DenominatorGraph(*read_graph(folder / f"{name}.npz")) for name in ("den_wsj", "den3k")}
    return Workloads(source, folder, shared, tuple(fsa for fsa, _ in numerators), numerators[0][1], targets)


def seeded(sizes: Sizes) -> Workloads:
    """Random graphs of the same kinds; equal sizes give equal graphs."""
    generator = np.random.default_rng(1)
    targets = generator.integers(1, sizes.labels, (sizes.sequences, sizes.label_length))
    shared = DenominatorGraph(connected(sizes.states, sizes.arcs, sizes.pdfs), sizes.pdfs)
    chains = generator.integers(0, sizes.numerator_pdfs, (sizes.sequences, sizes.numerator_states - 1))
    skips = generator.random(chains.shape) < 0.5
    own = tuple(left_to_right(pdfs, skip, THIRD, 1) for pdfs, skip in zip(chains, skips, strict=True))
    return Workloads("seeded random graphs", None, {"random": shared}, own, sizes.numerator_pdfs, targets)


def large_denominator(folder: Path | None, sizes: Sizes) -> DenominatorGraph:
    """den10k of the folder, or a seeded graph of the sizes asked for."""
    if folder is not None:
        return DenominatorGraph(*read_graph(folder / "den10k.npz"))
    states, arcs, pdfs, _, _ = sizes.large
    return DenominatorGraph(connected(states, arcs, pdfs), pdfs)


def connected(num_states: int, num_arcs: int, num_pdfs: int) -> Fsa:
    """A random acceptor: a ring through all states, which makes it strongly connected, and arcs anywhere."""
    generator = np.random.default_rng(2)
    ring = np.arange(num_states)
    src = np.concatenate([ring, generator.integers(0, num_states, num_arcs - num_states)])
    dst = np.concatenate([(ring + 1) % num_states, generator.integers(0, num_states, num_arcs - num_states)])
    weight = generator.random(num_arcs) + 0.01
    leaving = np.bincount(src, weight, num_states)
    pdf = generator.integers(0, num_pdfs, num_arcs)
    return Fsa(num_states, src, dst, pdf, np.log(weight / leaving[src]), np.zeros(num_states))


def entered_by_one_pdf(num_states: int, num_arcs: int, num_pdfs: int) -> DenominatorGraph:
    """The same with one pdf for all arcs into a state, as in graphs of phones."""
    fsa = connected(num_states, num_arcs, num_pdfs)
    return DenominatorGraph(replace(fsa, pdf=fsa.dst % num_pdfs), num_pdfs)


def left_to_right(
    pdfs: npt.NDArray[np.integer], skippable: npt.NDArray[np.bool_], log_prob: float, num_finals: int
) -> Fsa:
    """A chain of states after the start, each with one pdf and a self-loop; where m is skippable, m - 1 may be left out."""
    states = np.arange(1, len(pdfs) + 1)
    jumps = states[1:][skippable[1:]]
    src = np.concatenate([states, states - 1, jumps - 2])
    dst = np.concatenate([states, states, jumps])
    final = np.full(len(pdfs) + 1, -np.inf)
    final[-num_finals:] = 0.0
    return Fsa(len(final), src, dst, pdfs[dst - 1], np.full(len(src), log_prob), final)


def chains(generator: np.random.Generator, size: int, states: int, num_pdfs: int) -> TableBatch:
    """A chain of so many states for each of `size` sequences, of which none may be left out."""
    drawn = (generator.integers(0, num_pdfs, states) for _ in range(size))
    return packed((left_to_right(pdfs, np.zeros(states, bool), -1.0, 1) for pdfs in drawn), num_pdfs)


def ctc_graph(targets: Ints) -> Fsa:
    """Blank is 0, which may be left out between two different labels."""
    pdfs = np.zeros(2 * len(targets) + 1, dtype=np.int64)
    pdfs[1::2] = targets
    before = np.concatenate([[-1, -1], pdfs[:-2]])
    return left_to_right(pdfs, (pdfs != 0) & (pdfs != before), 0.0, 2)


def read_graph(path: Path) -> tuple[Fsa, int]:
    with np.load(path) as archive:
        return graph_fsa(archive), int(archive["num_pdfs"])


def random_scores(size: int, frames: int, pdfs: int) -> Scores:
    """[N, T, P] standard normal, seeded."""
    return np.random.default_rng(3).standard_normal((size, frames, pdfs), dtype=np.float32)


@dataclass(frozen=True)
class Work:
    """What one pass over a batch must do at least: arc-evaluations, and bytes through memory."""

    evaluations: int
    bytes: int


def work_of(batch: TableBatch, frames: int, num_pdfs: int) -> Work:
    tables = [batch.table(n) for n in range(batch.size)]
    # Arcs of weight -inf are not evaluated and do not count.
    evaluations = frames * sum(len(table.by_dst.arc) for table in tables)
    alphas = FLOAT * frames * sum(table.num_states for table in tables)
    matrices = 3 * FLOAT * frames * num_pdfs * batch.size
    return Work(evaluations, matrices + (2 * alphas if alphas > CACHE_BYTES else 0))
