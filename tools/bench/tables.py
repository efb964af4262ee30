"""Tables of the recursion and the losses, each row timed beside what it is compared with; and growth with size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import torch

from fsachain.batch import TableBatch
from fsachain.decode.wer import read_text
from fsachain.denominator import DenominatorGraph
from fsachain.graph.algorithms import table_bytes
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import build_numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import Topology
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.total import total_log_prob
from fsachain.table import compile_table
from tools.bench import calls, workloads, yardstick
from tools.bench.graphs import DIGITS, drawn
from tools.bench.timing import Call, Calls, Comparison, Name, Row, Table, take_turns
from tools.bench.workloads import LEAK, Scores, Sizes, Work, Workloads, random_scores, work_of

NUMERATOR_SCALES = 1, 30, 80, 1000
WSJ_FRAMES = 200  # num_wsj needs 166


def compared(
    ours: Calls, theirs: Calls, seconds: float, evaluations: int = 0, least: Work | None = None
) -> list[Row]:
    """A row for each of our jobs, with ratios to the work's limit and to theirs: with as many threads, else with one."""
    times = take_turns({**ours, **theirs, **(yardstick.rates() if least else {})}, seconds)
    rows = []
    for key in ours:
        ratios = [yardstick.against_limit(times, key, least)] if least else []
        for other in dict.fromkeys(name for name, _ in theirs):
            beside = times.get((other, key[1])) or times[other, 1]
            ratios.append(Comparison(other, times[key].over(beside)))
        rows.append(Row(*key, times[key], least.evaluations if least else evaluations, tuple(ratios)))
    return rows


def per_thread(named: dict[str, Call], sizes: Sizes) -> dict[Name, Call]:
    return {(name, threads): call for threads in sizes.threads for name, call in named.items()}


def leaky_denominator(work: Workloads, sizes: Sizes) -> Table:
    rows = []
    for name, graph in work.denominators.items():
        for size in sizes.batch_sizes:
            batch = graph.batch(size)
            scores = random_scores(size, sizes.frames, graph.num_pdfs)
            ours = per_thread({f"{name}, B {size}": calls.backend_call(batch, scores, LEAK)}, sizes)
            plain = calls.plain_call(batch, scores, LEAK, np.float32)
            rows += _beside_plain(ours, plain, batch, scores, sizes)
    return Table(f"denominator, leak {LEAK:g}", rows)


def long_denominator(work: Workloads, sizes: Sizes) -> Table:
    size, frames = sizes.long
    batch = work.denominator.batch(size)
    scores = random_scores(size, frames, work.denominator.num_pdfs)
    ours = {
        (f"{work.name}, B {size}, T {frames}", max(sizes.threads)): calls.backend_call(batch, scores, LEAK)
    }
    least = work_of(batch, frames, work.denominator.num_pdfs)
    return Table(f"a long batch, leak {LEAK:g}", compared(ours, {}, sizes.seconds, least=least))


def exact_denominator(work: Workloads, sizes: Sizes) -> Table:
    """Without a leak; large scores leave the range of plain numbers and take the slower ways."""
    graph = work.denominator
    batch = graph.batch(sizes.sequences)
    scores = random_scores(batch.size, sizes.frames, graph.num_pdfs)
    ours = _at_scales(f"{work.name}, B {batch.size}", batch, scores, (1, 30, 80, 1000), sizes)
    plain = calls.plain_call(batch, scores, 0.0, np.float32)
    return Table("denominator, exact", _beside_plain(ours, plain, batch, scores, sizes))


def numerators(work: Workloads, sizes: Sizes) -> Table:
    """A graph of its own for each sequence; the plain loop runs in float64, since float32 would underflow.

    Also as a user calls them, with the gradient made and scaled.
    """
    rows = _numerator_rows("", pack_numerators(work, work.numerator_pdfs), sizes.frames, sizes)
    if work.folder is not None:
        fsa, num_pdfs = workloads.read_graph(work.folder / "num_wsj.npz")
        batch = TableBatch.pack([compile_table(fsa, num_pdfs) for _ in range(sizes.sequences)])
        rows += _numerator_rows("num_wsj, ", batch, WSJ_FRAMES, sizes)
    return Table("numerators", rows)


def _numerator_rows(name: str, batch: TableBatch, frames: int, sizes: Sizes) -> list[Row]:
    scores = random_scores(batch.size, frames, batch.table(0).num_pdfs)
    ours = _at_scales(f"{name}B {batch.size}", batch, scores, NUMERATOR_SCALES, sizes)
    whole = {}
    for scale in NUMERATOR_SCALES:
        leaf = torch.from_numpy(np.float32(scale) * scores).requires_grad_()
        loss = partial(total_log_prob, batch, leaf)
        whole[f"{name}B {batch.size}, scores x {scale}, total_log_prob"] = calls.with_gradient(loss, leaf)
    plain = calls.plain_call(batch, scores, 0.0, np.float64)
    return _beside_plain({**ours, **per_thread(whole, sizes)}, plain, batch, scores, sizes)


def _beside_plain(ours: Calls, plain: Call, batch: TableBatch, scores: Scores, sizes: Sizes) -> list[Row]:
    """Of a wide network output only the columns of active pdfs are read and written."""
    width = scores.shape[2]
    if not batch.is_shared:
        width = max(len(batch.table(n).active_pdfs) for n in range(batch.size))
    least = work_of(batch, scores.shape[1], width)
    return compared(ours, {("plain loop", 1): plain}, sizes.seconds, least=least)


def _at_scales(
    name: str, batch: TableBatch, scores: Scores, scales: Iterable[int], sizes: Sizes
) -> dict[Name, Call]:
    scaled = {
        f"{name}, scores x {scale}": calls.backend_call(batch, np.float32(scale) * scores, 0.0)
        for scale in scales
    }
    return per_thread(scaled, sizes)


def packing(work: Workloads, sizes: Sizes) -> Table:
    """What a batch of new numerators costs beside its recursion: packing, and what the first pass makes of the tables."""
    ready = pack_numerators(work, work.numerator_pdfs)
    many = [ready.table(n % ready.size) for n in range(sizes.packed)]
    scores = random_scores(ready.size, sizes.frames, work.numerator_pdfs)

    def anew() -> object:
        fresh = TableBatch.pack([replace(table) for table in ready.tables])
        return calls.backend_call(fresh, scores, 0.0)()

    jobs = {
        (f"pack {len(many)} tables", 1): lambda: TableBatch.pack(many),
        (f"B {ready.size}, tables seen before", 1): calls.backend_call(ready, scores, 0.0),
        (f"B {ready.size}, new tables", 1): anew,
    }
    return Table("packing", compared(jobs, {}, sizes.seconds))


def pack_numerators(work: Workloads, num_pdfs: int) -> TableBatch:
    """The numerators for outputs of this width, with pdfs beyond it folded onto those within."""
    graphs = [replace(fsa, pdf=fsa.pdf % num_pdfs) for fsa in work.numerators]
    return TableBatch.pack([compile_table(fsa, num_pdfs) for fsa in graphs])


# Losses as users call them: LF-MMI, and CTC beside torch's.


def whole_loss(work: Workloads, sizes: Sizes) -> Table:
    widths = work.denominator.num_pdfs, work.numerator_pdfs
    rows = [_loss_row(work, sizes, width, threads) for width in widths for threads in sizes.threads]
    return Table("LFMMILoss, with the shares of numerators and denominator", rows)


def _loss_row(work: Workloads, sizes: Sizes, num_pdfs: int, threads: int) -> Row:
    graph = DenominatorGraph(work.denominator.fsa, num_pdfs)
    batch = pack_numerators(work, num_pdfs)
    shared = graph.batch(batch.size)
    scores = random_scores(batch.size, sizes.frames, num_pdfs)
    loss, leaf = LFMMILoss(graph, leaky_hmm_coefficient=LEAK), torch.from_numpy(scores).requires_grad_()
    lengths = torch.full((batch.size,), sizes.frames)
    jobs = {
        ("loss", threads): calls.with_gradient(lambda: loss(leaf, lengths, batch), leaf),
        ("numerators", threads): calls.backend_call(batch, scores, 0.0),
        ("denominator", threads): calls.backend_call(shared, scores, LEAK),
    }
    whole, *parts = take_turns(jobs, sizes.seconds).values()
    shares = [
        Comparison(name, part.over(whole))
        for name, part in zip(("numerators", "denominator"), parts, strict=True)
    ]
    count = sum(work_of(one, sizes.frames, num_pdfs).evaluations for one in (batch, shared))
    return Row(f"B {batch.size}, P {num_pdfs}", threads, whole, count, tuple(shares))


def ctc(work: Workloads, sizes: Sizes) -> Table:
    """The CTC loss from logits to their gradient: `ctc_loss`, graphs through `total_log_prob`, torch's."""
    batch = TableBatch.pack([compile_table(graph, sizes.labels) for graph in work.ctc])
    scores = random_scores(batch.size, sizes.frames, sizes.labels)
    made: dict[str, Call] = {**calls.ctc_calls(batch, work.targets, scores)}
    peer = made.popitem()
    least = work_of(batch, sizes.frames, sizes.labels)
    rows = compared(per_thread(made, sizes), per_thread(dict([peer]), sizes), sizes.seconds, least=least)
    return Table(f"CTC, B {batch.size}, log-softmax included", rows)


# Targets and transcripts that may be wrong, beside plain ones.

CTC_SHAPES = (200, 32, 30), (400, 500, 50)  # frames, classes, labels
# N-grams of phones: order, states more than those of order - 1, least order that is whole.
ORDERS = ((2, 0, 2), (4, 1000, 3))
# Of digits: texts, their longest; sequences and frames that are timed.
SENTENCES, WORDS, FEW, MANY = 2500, 7, 16, 90


def forgiving(work: Workloads, sizes: Sizes) -> Table:
    """CTC from logits, and numerators of digit strings with their denominator's phone model; each beside the plain one."""
    rows = []
    for frames, classes, labels in CTC_SHAPES:
        scores = torch.from_numpy(random_scores(FEW, frames, classes)).transpose(0, 1).requires_grad_()
        targets = torch.from_numpy(np.random.default_rng(4).integers(1, classes, (FEW, labels)))
        given = scores, targets, [frames] * FEW, [labels] * FEW
        rows += _beside_the_plain(
            f"ctc_loss, T {frames}, C {classes}",
            {
                name: calls.with_gradient(partial(ctc_loss, *given, inputs="logits", forgive=ways), scores)
                for name, ways in _ways("mean").items()
            },
            sizes,
        )
    data = workloads.SHARED / "data"
    path = data / "digits" / "lang" / "lexicon.txt"
    lexicon = Lexicon.read(path) if path.is_file() else Lexicon.characters([DIGITS])
    rows += _numerators("digits", lexicon, drawn(DIGITS[1:], SENTENCES, WORDS), _ways("sum"), sizes)
    prompts = data / "prompts_en"
    if prompts.is_dir():
        lexicon, known = Lexicon.read(prompts / "lang" / "lexicon.txt"), read_text(prompts / "train" / "text")
        texts = [text for text in known.values() if set(text) <= set(lexicon.words)]
        texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
        ways = {
            "plain": None,
            "all three": Forgiveness(6.0, 7.0, -3.0, "sum"),
        }  # as in recipes/weak_transcripts
        rows += _numerators("prompts", lexicon, texts, ways, sizes)
    return Table(f"what may be wrong, B {FEW}", rows)


def _numerators(
    name: str,
    lexicon: Lexicon,
    texts: Sequence[Sequence[str]],
    ways: Mapping[str, Forgiveness | None],
    sizes: Sizes,
) -> list[Row]:
    """Numerators of the first texts with the phone model of all, alone and in the loss; arcs and bytes of a table."""
    rows, tree = [], ContextTree.monophone(lexicon.phones, Topology.chain())
    leaf = torch.from_numpy(random_scores(FEW, MANY, tree.num_pdfs)).requires_grad_()
    for order, more, whole in ORDERS:
        phones = estimate_phone_lm(lm_phones(texts, lexicon, seed=1), order, more, whole)
        graph = DenominatorGraph(build_denominator(phones, tree), tree.num_pdfs)
        alone: dict[str, Call] = {}
        within: dict[str, Call] = {}
        loss = LFMMILoss(graph, leaky_hmm_coefficient=LEAK)
        for way, forgive in ways.items():
            how = {"normalization": graph.normalization_fsa(), "forgive": forgive}
            made = (build_numerator(text, lexicon, tree, **how) for text in texts[:FEW])
            tables = [compile_table(one.fsa, tree.num_pdfs) for one in made]
            batch = TableBatch.pack(tables)
            arcs, size = (
                sum(of(table) for table in tables) / FEW for of in (attrgetter("num_arcs"), table_bytes)
            )
            alone[f"{way}, {arcs:.0f} arcs, {size / 1e3:.0f} kB"] = calls.with_gradient(
                partial(total_log_prob, batch, leaf), leaf
            )
            within[way] = calls.with_gradient(partial(loss, leaf, [MANY] * FEW, batch), leaf)
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
    plain, *others = ((f"{name}, {job}", call) for job, call in jobs.items())
    return compared(per_thread(dict([plain, *others]), sizes), {("plain", 1): plain[1]}, sizes.seconds)


# How time grows with frames, arcs and sequences: a slope of 1 on logarithmic axes is linear.

POINTS = 5
LANES = 16  # sequences that fill a vector register
FEW_FRAMES = 15


def growth(work: Workloads, sizes: Sizes) -> Table:
    """Over two decades each, in one thread: the denominator by frames, arcs and sequences, numerators by frames."""
    frames, arcs, sequences = (_between(*ends) for ends in sizes.growth)
    name, graph, num_pdfs = work.name, work.denominator, work.denominator.num_pdfs
    lanes, numerators = graph.batch(LANES), pack_numerators(work, work.numerator_pdfs)
    graphs = {
        n: DenominatorGraph(workloads.connected(max(n // 10, 2), n, num_pdfs), num_pdfs).batch(LANES)
        for n in arcs
    }
    rows = [
        _slope(f"{name}, B {LANES}: frames", frames, lambda t: (lanes, t), sizes),
        _slope(f"random graphs, B {LANES}: arcs", arcs, lambda n: (graphs[n], sizes.frames), sizes),
        _slope(
            f"{name}, T {FEW_FRAMES}: sequences", sequences, lambda n: (graph.batch(n), FEW_FRAMES), sizes
        ),
        _slope(f"numerators, B {numerators.size}: frames", frames, lambda t: (numerators, t), sizes),
    ]
    return Table(f"growth with size, leak {LEAK:g} and 0, one thread; ns/arc at each size", rows)


def _slope(
    name: str, points: tuple[int, ...], work_at: Callable[[int], tuple[TableBatch, int]], sizes: Sizes
) -> Row:
    """Time the batch and frames that `work_at(size)` gives. The slope is that of log seconds over log size."""
    jobs, evaluations = {}, []
    for size in points:
        batch, frames = work_at(size)
        num_pdfs = batch.table(0).num_pdfs
        scores = random_scores(batch.size, frames, num_pdfs)
        jobs[f"{size}", 1] = calls.backend_call(batch, scores, LEAK if batch.is_shared else 0.0)
        evaluations.append(work_of(batch, frames, num_pdfs).evaluations)
    times = [taken.scaled(1.0) for taken in take_turns(jobs, sizes.seconds).values()]
    # Of the least times, which others disturb least.
    slope = float(np.polyfit(np.log(points), np.log([time.least for time in times]), 1)[0])
    each = zip(points, times, evaluations, strict=True)
    return Row(name, 1, figures={"slope": slope, **{f"at {n}:": 1e9 * t.median / e for n, t, e in each}})


def _between(first: int, last: int) -> tuple[int, ...]:
    return tuple(int(size) for size in np.geomspace(first, last, POINTS).round())
