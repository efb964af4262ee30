"""The tables of `make bench`: recursions and losses beside what they are compared with, growth with size, and memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.asr.cli import record
from fsachain.asr.decode.wer import read_text
from fsachain.backends.cpu import backend as cpu
from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.graph.algorithms import table_bytes
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import build_numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import Topology
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.grid import mutual_information_recursion
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.pruned import get_rnnt_prune_ranges, rnnt_loss_pruned, rnnt_loss_simple
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.total import total_log_prob
from fsachain.loss.variants import hat_loss, tdt_loss
from tools import SHARED
from tools.bench import workloads, yardstick
from tools.bench.graphs import DIGITS, drawn
from tools.bench.timing import Call, Calls, Comparison, Name, Row, take_turns
from tools.bench.workloads import LEAK, Scores, Sizes, Work, Workloads, packed, random_scores, work_of

SCALES = 1, 15, 30, 80, 1000
WSJ_FRAMES = 200  # num_wsj needs 166


class Table(NamedTuple):
    title: str
    rows: list[Row]


# What is timed, each as a function without arguments.


def recursion(batch: TableBatch, scores: Scores, leak: float) -> Call:
    """log Z and occupancy, which is added to an array that stands ready, as inside the losses."""
    out = np.zeros_like(scores)
    lengths, weights = np.full(batch.size, scores.shape[1]), np.ones(batch.size)
    return lambda: cpu.add_occupancy(batch, scores, lengths, leak, weights, out)


def plain_loop(batch: TableBatch, scores: Scores, leak: float, dtype: npt.DTypeLike) -> Calls:
    """The plain loop over the same work: all sequences at once where they share a graph, else one after another."""
    parts = [scores] if batch.is_shared else np.split(scores, batch.size)
    inputs = []
    for table, part in zip(batch.tables, parts, strict=True):
        columns = yardstick.plain_scores(table, part, dtype)
        c = columns.dtype.type(leak)
        inputs.append((yardstick.plain_graph(table, dtype), c, columns, np.empty_like(columns)))
    return {("plain loop", 1): lambda: [yardstick.plain_forward_backward(*each) for each in inputs]}


def with_gradient(loss: Callable[[], Tensor], leaf: Tensor) -> Callable[[], Tensor]:
    """A forward and backward pass, as in a training step; returns the leaf with its gradient."""

    def step() -> Tensor:
        leaf.grad = None
        value = loss()
        # Any gradient of its shape: the value itself is at hand without a pass over memory.
        value.backward(value.detach() if value.ndim else None)
        return leaf

    return step


def compared(
    ours: Calls, theirs: Calls, sizes: Sizes, evaluations: int = 0, least: Work | None = None
) -> list[Row]:
    """A row for each of our jobs, with ratios to the work's limit and to theirs: with as many threads, else with one."""
    times = take_turns({**ours, **theirs, **(yardstick.rates() if least else {})}, sizes.seconds)
    rows = []
    for key in ours:
        ratios = [yardstick.against_limit(times, key, least)] if least else []
        for other in dict.fromkeys(name for name, _ in theirs):
            beside = times.get((other, key[1])) or times[other, 1]
            ratios.append(Comparison(other, times[key].over(beside)))
        rows.append(Row(*key, times[key], least.evaluations if least else evaluations, tuple(ratios)))
    return rows


def per_thread(named: Mapping[str, Call], sizes: Sizes) -> dict[Name, Call]:
    return {(name, threads): call for threads in sizes.threads for name, call in named.items()}


def beside_the_loop(
    named: Mapping[str, Call],
    batch: TableBatch,
    scores: Scores,
    sizes: Sizes,
    leak: float = 0.0,
    dtype: npt.DTypeLike = np.float32,
) -> list[Row]:
    """Next to the plain loop. Of a wide network output only the columns of active pdfs are read and written."""
    width = scores.shape[2]
    if not batch.is_shared:
        width = max(len(batch.table(n).active_pdfs) for n in range(batch.size))
    least = work_of(batch, scores.shape[1], width)
    loop = plain_loop(batch, scores, leak, dtype)
    return compared(per_thread(named, sizes), loop, sizes, least=least)


def at_scales(name: str, batch: TableBatch, scores: Scores, leak: float = 0.0) -> dict[str, Call]:
    return {
        f"{name}, scores x {scale}": recursion(batch, np.float32(scale) * scores, leak) for scale in SCALES
    }


# Recursions.


def leaky_denominator(work: Workloads, sizes: Sizes) -> Table:
    rows = []
    for name, graph in work.denominators.items():
        for size in sizes.batch_sizes:
            batch, scores = graph.batch(size), random_scores(size, sizes.frames, graph.num_pdfs)
            ours = {f"{name}, B {size}": recursion(batch, scores, LEAK)}
            rows += beside_the_loop(ours, batch, scores, sizes, LEAK)
    return Table(f"denominator, leak {LEAK:g}", rows)


def long_denominator(work: Workloads, sizes: Sizes) -> Table:
    (size, frames), num_pdfs = sizes.long, work.denominator.num_pdfs
    batch, name = work.denominator.batch(size), f"{work.name}, B {size}, T {frames}"
    ours = {(name, max(sizes.threads)): recursion(batch, random_scores(size, frames, num_pdfs), LEAK)}
    least = work_of(batch, frames, num_pdfs)
    return Table(f"a long batch, leak {LEAK:g}", compared(ours, {}, sizes, least=least))


def exact_denominator(work: Workloads, sizes: Sizes) -> Table:
    """Without a leak; large scores leave the range of plain numbers and take the slower ways."""
    batch = work.denominator.batch(sizes.sequences)
    scores = random_scores(batch.size, sizes.frames, work.denominator.num_pdfs)
    ours = at_scales(f"{work.name}, B {batch.size}", batch, scores)
    return Table("denominator, exact", beside_the_loop(ours, batch, scores, sizes))


def peaked_denominator(work: Workloads, sizes: Sizes) -> Table:
    """With a leak, through which alphas fade into subnormal numbers when scores are large."""
    batch = work.denominator.batch(sizes.sequences)
    scores = random_scores(batch.size, sizes.frames, work.denominator.num_pdfs)
    ours = at_scales(f"{work.name}, B {batch.size}", batch, scores, LEAK)
    return Table(
        f"denominator of large scores, leak {LEAK:g}", beside_the_loop(ours, batch, scores, sizes, LEAK)
    )


def numerators(work: Workloads, sizes: Sizes) -> Table:
    """A graph of its own for each sequence, also as a user calls them, with the gradient made and scaled.

    The plain loop runs in float64, since float32 would underflow.
    """
    kinds = [("", work.numerator_batch(work.numerator_pdfs), sizes.frames)]
    if work.folder is not None:
        fsa, num_pdfs = workloads.read_graph(work.folder / "num_wsj.npz")
        kinds.append(("num_wsj, ", packed([fsa] * sizes.sequences, num_pdfs), WSJ_FRAMES))
    rows = []
    for name, batch, frames in kinds:
        scores = random_scores(batch.size, frames, batch.table(0).num_pdfs)
        ours = at_scales(f"{name}B {batch.size}", batch, scores)
        for scale in SCALES:
            leaf = torch.from_numpy(np.float32(scale) * scores).requires_grad_()
            loss = partial(total_log_prob, batch, leaf)
            ours[f"{name}B {batch.size}, scores x {scale}, total_log_prob"] = with_gradient(loss, leaf)
        rows += beside_the_loop(ours, batch, scores, sizes, dtype=np.float64)
    return Table("numerators", rows)


def packing(work: Workloads, sizes: Sizes) -> Table:
    """What a batch of new numerators costs beside its recursion: packing, and what the first pass makes of the tables."""
    ready = work.numerator_batch(work.numerator_pdfs)
    many = [ready.table(n % ready.size) for n in range(sizes.packed)]
    scores = random_scores(ready.size, sizes.frames, work.numerator_pdfs)

    def anew() -> object:
        return recursion(TableBatch.pack([replace(table) for table in ready.tables]), scores, 0.0)()

    jobs = {
        (f"pack {len(many)} tables", 1): lambda: TableBatch.pack(many),
        (f"B {ready.size}, tables seen before", 1): recursion(ready, scores, 0.0),
        (f"B {ready.size}, new tables", 1): anew,
    }
    return Table("packing", compared(jobs, {}, sizes))


# How time grows with frames, arcs and sequences: a slope of 1 on logarithmic axes is linear.

POINTS = 5
LANES = 16  # sequences that fill a vector register
FEW_FRAMES = 15


def growth(work: Workloads, sizes: Sizes) -> Table:
    """Over two decades each, in one thread: the denominator by frames, arcs and sequences, numerators by frames."""
    frames, arcs, sequences = (np.geomspace(*ends, POINTS).round().astype(int) for ends in sizes.growth)
    name, graph, num_pdfs = work.name, work.denominator, work.denominator.num_pdfs
    lanes, own = graph.batch(LANES), work.numerator_batch(work.numerator_pdfs)

    def random(num_arcs: int) -> TableBatch:
        fsa = workloads.connected(max(num_arcs // 10, 2), num_arcs, num_pdfs)
        return DenominatorGraph(fsa, num_pdfs).batch(LANES)

    works: dict[str, dict[int, tuple[TableBatch, int]]] = {
        f"{name}, B {LANES}: frames": {t: (lanes, t) for t in frames},
        f"random graphs, B {LANES}: arcs": {n: (random(n), sizes.frames) for n in arcs},
        f"{name}, T {FEW_FRAMES}: sequences": {n: (graph.batch(n), FEW_FRAMES) for n in sequences},
        f"numerators, B {own.size}: frames": {t: (own, t) for t in frames},
    }
    rows = [_slope(name, at, sizes) for name, at in works.items()]
    return Table(f"growth with size, leak {LEAK:g} and 0, one thread; ns/arc at each size", rows)


def _slope(name: str, work_at: Mapping[int, tuple[TableBatch, int]], sizes: Sizes) -> Row:
    """Time the batch and frames of each size. The slope is that of log seconds over log size."""
    jobs, evaluations = {}, []
    for size, (batch, frames) in work_at.items():
        num_pdfs = batch.table(0).num_pdfs
        scores = random_scores(batch.size, frames, num_pdfs)
        jobs[f"{size}", 1] = recursion(batch, scores, LEAK if batch.is_shared else 0.0)
        evaluations.append(work_of(batch, frames, num_pdfs).evaluations)
    times = [taken.scaled(1.0) for taken in take_turns(jobs, sizes.seconds).values()]
    # Of the least times, which others disturb least.
    slope = float(np.polyfit(np.log(list(work_at)), np.log([time.least for time in times]), 1)[0])
    each = zip(work_at, times, evaluations, strict=True)
    return Row(name, 1, figures={"slope": slope, **{f"at {n}:": 1e9 * t.median / e for n, t, e in each}})


# Losses as users call them: LF-MMI, and CTC beside torch's.


def whole_loss(work: Workloads, sizes: Sizes) -> Table:
    rows = []
    for num_pdfs in (work.denominator.num_pdfs, work.numerator_pdfs):
        graph, batch = DenominatorGraph(work.denominator.fsa, num_pdfs), work.numerator_batch(num_pdfs)
        shared, scores = graph.batch(batch.size), random_scores(batch.size, sizes.frames, num_pdfs)
        loss, leaf = LFMMILoss(graph, leaky_hmm_coefficient=LEAK), torch.from_numpy(scores).requires_grad_()
        lengths = torch.full((batch.size,), sizes.frames)
        jobs = {
            "": with_gradient(partial(loss, leaf, lengths, batch), leaf),
            "numerators": recursion(batch, scores, 0.0),
            "denominator": recursion(shared, scores, LEAK),
        }
        count = sum(work_of(one, sizes.frames, num_pdfs).evaluations for one in (batch, shared))
        for threads in sizes.threads:
            whole, *parts = take_turns(
                {(name, threads): job for name, job in jobs.items()}, sizes.seconds
            ).values()
            shares = [
                Comparison(name, part.over(whole)) for name, part in zip(list(jobs)[1:], parts, strict=True)
            ]
            rows.append(Row(f"B {batch.size}, P {num_pdfs}", threads, whole, count, tuple(shares)))
    return Table("LFMMILoss, with the shares of numerators and denominator", rows)


def ctc(work: Workloads, sizes: Sizes) -> Table:
    """The CTC loss from logits to their gradient: `ctc_loss`, graphs through `total_log_prob`, torch's."""
    batch = packed(work.ctc, sizes.labels)
    scores = random_scores(batch.size, sizes.frames, sizes.labels)
    made: dict[str, Call] = {**ctc_calls(batch, work.targets, scores)}
    peer = made.popitem()
    least = work_of(batch, sizes.frames, sizes.labels)
    rows = compared(per_thread(made, sizes), per_thread(dict([peer]), sizes), sizes, least=least)
    return Table(f"CTC, B {batch.size}, log-softmax included", rows)


def ctc_calls(
    batch: TableBatch, targets: npt.NDArray[np.int64], scores: Scores
) -> dict[str, Callable[[], Tensor]]:
    """The CTC loss summed over the batch, from logits to their gradient; torch's comes last."""
    logits, labels = torch.from_numpy(scores).requires_grad_(), torch.from_numpy(targets)
    lengths = torch.full((len(scores),), scores.shape[1]), torch.full((len(scores),), targets.shape[1])

    def rows() -> Tensor:
        return logits.log_softmax(2).transpose(0, 1)

    ours = partial(ctc_loss, reduction="sum")
    losses = {
        "ctc_loss, logits": lambda: ours(logits.transpose(0, 1), labels, *lengths, inputs="logits"),
        "ctc_loss, log_softmax": lambda: ours(rows(), labels, *lengths, inputs="log_probs"),
        "total_log_prob": lambda: -total_log_prob(batch, logits.log_softmax(2)).sum(),
        "torch ctc_loss": lambda: torch.nn.functional.ctc_loss(rows(), labels, *lengths, reduction="sum"),
    }
    return {name: with_gradient(loss, logits) for name, loss in losses.items()}


# Targets and transcripts that may be wrong, beside plain ones.

CTC_SHAPES = (200, 32, 30), (400, 500, 50)  # frames, classes, labels
# N-grams of phones: order, states more than those of order - 1, least order that is whole.
ORDERS = (2, 0, 2), (4, 1000, 3)
SENTENCES, WORDS = 2500, 7  # of digits, and of the longest
FEW, MANY = 16, 90  # sequences and frames that are timed


def forgiving(work: Workloads, sizes: Sizes) -> Table:
    """CTC from logits, and numerators of digit strings with their denominator's phone model; each beside the plain one."""
    rows = []
    for frames, classes, labels in CTC_SHAPES:
        scores = torch.from_numpy(random_scores(FEW, frames, classes)).transpose(0, 1).requires_grad_()
        targets = torch.from_numpy(np.random.default_rng(4).integers(1, classes, (FEW, labels)))
        loss = partial(ctc_loss, scores, targets, [frames] * FEW, [labels] * FEW, inputs="logits")
        jobs = {
            name: with_gradient(partial(loss, forgive=ways), scores) for name, ways in _ways("mean").items()
        }
        rows += _beside_the_plain(f"ctc_loss, T {frames}, C {classes}", jobs, sizes)
    path, prompts = SHARED / "data/digits/lang/lexicon.txt", SHARED / "data/prompts_en"
    lexicon = Lexicon.read(path) if path.is_file() else Lexicon.characters([DIGITS])
    ways = _ways("sum") | {"all three, frames": Forgiveness(5.0, 5.0, 0.0, "frames")}
    rows += _forgiving_numerators("digits", lexicon, drawn(DIGITS[1:], SENTENCES, WORDS), ways, sizes)
    if prompts.is_dir():
        lexicon, known = Lexicon.read(prompts / "lang/lexicon.txt"), read_text(prompts / "train/text")
        texts = [text for text in known.values() if set(text) <= set(lexicon.words)]
        texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
        # As in recipes/weak_transcripts.
        ways = {
            "plain": None,
            "all three": Forgiveness(6.0, 7.0, -3.0, "sum"),
            "all three, frames": Forgiveness(8.0, 8.0, 0.0, "frames"),
        }
        rows += _forgiving_numerators("prompts", lexicon, texts, ways, sizes)
    return Table(f"what may be wrong, B {FEW}", rows)


def _forgiving_numerators(
    name: str,
    lexicon: Lexicon,
    texts: Sequence[Sequence[str]],
    ways: Mapping[str, Forgiveness | None],
    sizes: Sizes,
) -> list[Row]:
    """Numerators of the first texts with the phone model of all, alone and in the loss; arcs and bytes of a table."""
    rows, tree = [], ContextTree.monophone(lexicon.phones, Topology.chain())
    width = tree.num_pdfs
    leaf, wide = (
        torch.from_numpy(random_scores(FEW, MANY, size)).requires_grad_() for size in (width, width + 1)
    )
    for order, more, whole in ORDERS:
        phones = estimate_phone_lm(lm_phones(texts, lexicon, seed=1), order, more, whole)
        graph = DenominatorGraph(build_denominator(phones, tree), width)
        loss = LFMMILoss(graph.with_star(), leaky_hmm_coefficient=LEAK)
        alone: dict[str, Call] = {}
        within: dict[str, Call] = {}
        for way, forgive in ways.items():
            how = {"normalization": graph.normalization_fsa(), "forgive": forgive}
            stars = forgive is not None and forgive.has_star_of_frames
            scores = wide if stars else leaf
            batch = packed(
                (build_numerator(text, lexicon, tree, **how).fsa for text in texts[:FEW]), width + stars
            )
            arcs, size = (sum(map(of, batch.tables)) / FEW for of in (attrgetter("num_arcs"), table_bytes))
            title = f"{way}, {arcs:.0f} arcs, {size / 1e3:.0f} kB"
            alone[title] = with_gradient(partial(total_log_prob, batch, scores), scores)
            within[way] = with_gradient(partial(loss, leaf, [MANY] * FEW, batch), leaf)
        rows += _beside_the_plain(f"{name}, {order}-gram", alone, sizes)
        rows += _beside_the_plain(f"{name}, {order}-gram, LFMMILoss", within, sizes)
    return rows


def _ways(star: Star) -> dict[str, Forgiveness | None]:
    return {
        "plain": None,
        "insertion": Forgiveness(insertion=5.0, star=star),
        "substitution": Forgiveness(5.0, star=star),
        "all three": Forgiveness(5.0, 5.0, 5.0, star),
    }


def _beside_the_plain(name: str, jobs: Mapping[str, Call], sizes: Sizes) -> list[Row]:
    """The first is the plain one."""
    named = {f"{name}, {job}": call for job, call in jobs.items()}
    return compared(per_thread(named, sizes), {("plain", 1): next(iter(named.values()))}, sizes)


# Transducers, next to log_softmax forward and backward of the same logits.

PRUNED = 5  # labels of a frame
DURATIONS = [0, 1, 2, 4]
SOFTMAX = "log_softmax"
IN_A_ROW = 10  # recursions: one alone would time how cold the caches are after the jobs before it
RECURSIONS = f"recursion, {IN_A_ROW} in a row"


def transducer(work: Workloads, sizes: Sizes) -> Table:
    """Loss and gradient from logits, the recursion alone, and the pruned pair; nanoseconds are for each node (t, u)."""
    size, frames, labels, classes = sizes.transducer
    ours = transducer_calls(*sizes.transducer)
    theirs = per_thread({SOFTMAX: ours.pop(SOFTMAX)}, sizes)
    recursions = per_thread({RECURSIONS: ours.pop(RECURSIONS)}, sizes)
    nodes = size * frames * (labels + 1)
    rows = compared(per_thread(ours, sizes), theirs, sizes, nodes)
    rows += compared(recursions, theirs, sizes, IN_A_ROW * nodes)
    rows += _alone("rnnt_loss, in place", transducer_memory, *sizes.transducer)
    title = f"transducer, B {size}, T {frames}, U {labels}, V {classes}; ns/arc is ns for each (t, u)"
    return Table(title, rows)


def transducer_calls(size: int, frames: int, labels: int, classes: int) -> dict[str, Call]:
    """What is timed, all with the gradient."""
    generator = torch.Generator().manual_seed(3)
    randn = partial(torch.randn, generator=generator)
    logits = randn(size, frames, labels + 1, classes).requires_grad_()
    am, lm = randn(size, frames, classes).requires_grad_(), randn(size, labels + 1, classes).requires_grad_()
    px, py = randn(size, labels, frames + 1), randn(size, labels + 1, frames)
    targets = torch.randint(0, classes, (size, labels), generator=generator)
    labels_only = 1 + targets % (classes - len(DURATIONS) - 1)  # neither the blank, 0, nor a duration
    _, occupancies = rnnt_loss_simple(lm, am, targets, 0, return_grad=True)
    ranges = get_rnnt_prune_ranges(*occupancies, None, PRUNED)
    kept = randn(*ranges.shape, classes).requires_grad_()
    lengths = [frames] * size, [labels] * size
    losses = {
        SOFTMAX: (lambda: logits.log_softmax(3), logits),
        "rnnt_loss": (lambda: rnnt_loss(logits, targets, *lengths), logits),
        # The gradient becomes the next round's logits: any will do.
        "rnnt_loss, in place": (lambda: rnnt_loss(logits, targets, *lengths, inplace=True), logits),
        "hat_loss": (lambda: hat_loss(logits, labels_only, *lengths, 0), logits),
        "tdt_loss": (lambda: tdt_loss(logits, labels_only, *lengths, DURATIONS, 0), logits),
        "rnnt_loss_simple": (lambda: rnnt_loss_simple(lm, am, targets, 0), am),
        f"rnnt_loss_pruned, {PRUNED} labels": (lambda: rnnt_loss_pruned(kept, targets, ranges, 0), kept),
    }
    made: dict[str, Call] = {name: with_gradient(*loss) for name, loss in losses.items()}
    made[RECURSIONS] = lambda: [
        mutual_information_recursion(px, py, return_grad=True) for _ in range(IN_A_ROW)
    ]
    return made


# Memory, each in a process of its own where the system tells how much a process held, and no row elsewhere.

FIRST_FRAMES = 3  # by which kernels are compiled


def memory(work: Workloads, sizes: Sizes) -> Table:
    name = f"{'random' if work.folder is None else 'den10k'}, B {sizes.large[3]}, T {sizes.large[4]}"
    rows = _alone(name, recursion_memory, work.folder, sizes)
    return Table(f"memory of a large batch, leak {LEAK:g}, default budget", rows)


def _alone(name: str, measure: Callable[..., dict[str, float]], *arguments: Any) -> list[Row]:
    if not Path("/proc/self/clear_refs").exists():
        return []
    with get_context("spawn").Pool(1) as pool:
        return [Row(name, figures=pool.apply(measure, arguments))]


def held_by(run: Callable[[], object]) -> int:
    """The most bytes that this process holds while it runs, beyond those before."""
    record.forget_peaks()  # the mark falls to what is held now
    before = record.peak_rss()
    run()
    return record.peak_rss() - before


def recursion_memory(folder: Path | None, sizes: Sizes) -> dict[str, float]:
    """Run the large batch once in this process; "all alphas" are those of the batch in float32."""
    size, frames = sizes.large[3:]
    graph = workloads.large_denominator(folder, sizes)
    batch, scores = graph.batch(size), random_scores(size, frames, graph.num_pdfs)
    out, weights = np.ones_like(scores), np.ones(size)
    cpu.add_occupancy(batch, scores, np.full(size, FIRST_FRAMES), LEAK, weights, out)
    lengths, started = np.full(size, frames), time.perf_counter()
    peak = held_by(lambda: cpu.add_occupancy(batch, scores, lengths, LEAK, weights, out))
    seconds = time.perf_counter() - started
    return {
        "MB beside scores and gradient": peak / 1e6,
        "MB of all alphas": 4e-6 * (frames + 1) * graph.table.num_states * size,
        "seconds": seconds,
        "ns/arc": 1e9 * seconds / (frames * size * len(graph.table.by_dst.arc)),
    }


def transducer_memory(size: int, frames: int, labels: int, classes: int) -> dict[str, float]:
    """What loss and gradient in place take beside the logits at most: as arrays, and as the system counts it.

    The latter has what Python and torch load on first use as well; a small loss before compiles the kernels and starts
    the threads.
    """
    logits = torch.randn(size, frames, labels + 1, classes).requires_grad_()
    targets = torch.randint(0, classes, (size, labels))
    few = logits.detach()[:, :2].contiguous().requires_grad_()
    rnnt_loss(few, targets, [2] * size, [labels] * size, inplace=True).backward()
    tracemalloc.start()
    lengths = [frames] * size, [labels] * size
    process = held_by(lambda: rnnt_loss(logits, targets, *lengths, inplace=True).backward())
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    percent = 100.0 / (4 * logits.numel())
    return {"% of the logits beside them: arrays": arrays * percent, "process": process * percent}


# PyChain on the same graphs and scores, where it is installed. It takes scores [N, T, P] to log Z and its gradient in one
# thread, clamps scores to +-30 and keeps no sequence exact in float32.

SHARING = 8  # sequences of the denominator


def beside_pychain(work: Workloads, sizes: Sizes) -> Table:
    """Ours and PyChain's, in the same rounds: its denominator with a leak and all states final, its numerator in logs."""
    try:
        pychain, simplefst = import_module("pychain"), import_module("simplefst")
    except ImportError as error:
        return Table(f"PyChain is not timed: {error}", [])
    shared, rows = work.denominator, []
    tasks = {
        "leaky": (shared.batch(SHARING), [shared.fsa]),
        "numerators": (work.numerator_batch(work.numerator_pdfs), work.numerators),
        "ctc": (packed(work.ctc, sizes.labels), work.ctc),
    }
    for task, (batch, fsas) in tasks.items():
        leak, how, most = 0.0, {"log_domain": True}, {}
        if batch.is_shared:
            leak, how = LEAK, {"initial_mode": "leaky", "final_mode": "ones"}
        else:
            most["max_num_transitions"] = max(fsa.num_arcs for fsa in fsas)
            most["max_num_states"] = max(fsa.num_states for fsa in fsas)
        theirs = [pychain.graph.ChainGraph(_simple_fst(simplefst, fsa), **how) for fsa in fsas]
        width = batch.table(0).num_pdfs
        scores = random_scores(batch.size, sizes.frames, width)
        leaf, lengths = torch.from_numpy(scores).requires_grad_(), torch.full((batch.size,), sizes.frames)
        graphs = pychain.graph.ChainGraphBatch(
            *(theirs if batch.is_shared else [theirs]), **most or {"batch_size": batch.size}
        )
        loss = partial(pychain.loss.ChainFunction.apply, leaf, lengths, graphs, LEAK)
        rows += compared(
            {(f"{task}, B {batch.size}", 1): recursion(batch, scores, leak)},
            {("PyChain", 1): with_gradient(lambda loss=loss: loss().sum(), leaf)},
            sizes,
            work_of(batch, sizes.frames, width).evaluations,
        )
    return Table("PyChain on the same graphs", rows)


def _simple_fst(simplefst: Any, fsa: Fsa) -> Any:
    """The acceptor as PyChain's OpenFst module reads it, labels pdf + 1."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.fst"
        fsa.write(path)
        return simplefst.StdVectorFst.read(str(path))


MAKERS: dict[str, Callable[[Workloads, Sizes], Table]] = {
    "denominator": leaky_denominator,
    "peaked": peaked_denominator,
    "long": long_denominator,
    "exact": exact_denominator,
    "numerators": numerators,
    "ctc": ctc,
    "packing": packing,
    "loss": whole_loss,
    "forgiving": forgiving,
    "memory": memory,
    "growth": growth,
    "transducer": transducer,
    "peers": beside_pychain,
}
