"""Tables of the losses as users call them: LF-MMI, its share of a training step, and CTC beside torch's."""

from __future__ import annotations

from collections.abc import Callable

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.table import compile_table
from tools.bench import calls, digits
from tools.bench.limit import Name, against_limit, work_of, yardsticks
from tools.bench.row import HEADER, Comparison, Row, Table
from tools.bench.tables import LEAK, as_jobs, pack_numerators, per_thread
from tools.bench.timing import Times, take_turns
from tools.bench.workloads import Sizes, Workloads


def whole_loss(work: Workloads, sizes: Sizes) -> Table:
    """`LFMMILoss` forward and backward as in a training step, for a narrow and a wide network output."""
    widths = work.denominator.num_pdfs, work.numerator_pdfs
    rows = [_loss_row(work, sizes, width, threads) for width in widths for threads in sizes.threads]
    return Table("LFMMILoss, with the shares of numerators, denominator and the rest", HEADER, rows)


def ctc(work: Workloads, sizes: Sizes) -> Table:
    """The CTC loss from logits to their gradient: `ctc_loss`, graphs through `total_log_prob`, torch's."""
    batch = TableBatch.pack([compile_table(graph, sizes.labels) for graph in work.ctc])
    scores = calls.random_scores(batch.size, sizes.frames, sizes.labels)
    start = f"B {batch.size}, "
    made = {
        f"{start}ctc_loss, logits": calls.ctc_through_loss(work.targets, scores, "logits"),
        f"{start}ctc_loss, log_softmax": calls.ctc_through_loss(work.targets, scores, "log_probs"),
        f"{start}total_log_prob": calls.ctc_through_graphs(batch, scores),
        f"{start}torch ctc_loss": calls.ctc_through_torch(work.targets, scores),
    }
    *ours, peer = made
    jobs: dict[Name, Callable[[], object]] = {}
    for name, call in made.items():
        jobs |= per_thread(name, call, sizes)
    times = take_turns(as_jobs({**jobs, **yardsticks()}), sizes.seconds)
    least = work_of(batch, sizes.frames, sizes.labels)
    rows = []
    for threads in sizes.threads:
        theirs = times[peer, threads]
        for name in ours:
            mine = times[name, threads]
            ratios = against_limit(times, (name, threads), least), Comparison(peer, mine.over(theirs))
            rows.append(Row(name, threads, least.evaluations, mine, ratios))
        rows.append(Row(peer, threads, least.evaluations, theirs))
    return Table("CTC, log-softmax included", HEADER, rows)


def training_step(work: Workloads, sizes: Sizes) -> Table:
    """One step of the digits recipe and the share of the loss; no row where its texts are not beside this checkout."""
    rows = []
    step = digits.make_step(None if work.folder is None else work.folder.parent / "digits")
    for threads in sizes.threads:
        jobs = {("step", threads): step.whole, ("loss", threads): step.loss_alone}
        whole, loss = take_turns(as_jobs(jobs), sizes.seconds).values()
        rows.append(Row(step.name, threads, 0, whole, (Comparison("share of the loss", loss.over(whole)),)))
    return Table("a training step: forward, loss, backward, optimiser", HEADER, rows)


def shares(whole: Times, numerator: Times, denominator: Times) -> tuple[Comparison, ...]:
    """What part of the whole the numerators, the denominator and all the rest take, round by round."""
    rest = zip(whole.seconds, numerator.seconds, denominator.seconds, strict=True)
    left = Times(tuple(w - n - d for w, n, d in rest))
    named = {"numerators": numerator, "denominator": denominator, "rest": left}
    return tuple(Comparison(name, part.over(whole)) for name, part in named.items())


def _loss_row(work: Workloads, sizes: Sizes, num_pdfs: int, threads: int) -> Row:
    graph = DenominatorGraph(work.denominator.fsa, num_pdfs)
    batch = pack_numerators(work, num_pdfs)
    shared = graph.batch(batch.size)
    scores = calls.random_scores(batch.size, sizes.frames, num_pdfs)
    loss = LFMMILoss(graph, leaky_hmm_coefficient=LEAK)
    jobs = {
        ("loss", threads): calls.loss_call(loss, batch, scores),
        ("numerators", threads): calls.backend_call(batch, scores, 0.0),
        ("denominator", threads): calls.backend_call(shared, scores, LEAK),
    }
    whole, *parts = take_turns(as_jobs(jobs), sizes.seconds).values()
    count = sum(work_of(one, sizes.frames, num_pdfs).evaluations for one in (batch, shared))
    return Row(f"B {batch.size}, P {num_pdfs}", threads, count, whole, shares(whole, *parts))
