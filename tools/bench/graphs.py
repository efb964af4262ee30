"""Print what graphs cost: numerators beside Kaldi's own compiler and in bulk, phone models with denominators by size.

    python -m tools.bench.graphs [--kaldi PYTHON] [--transcripts 300] [--rounds 5]

PYTHON is the interpreter of an environment with kaldi-hmm-gmm; `make bench-graphs` makes one. Lexicons are those of the
golden cases; transcripts are drawn. Kaldi's compiler is that of compile-train-graphs, from words to a graph over
transition ids, with what the wheel offers: trees without context. Times are those of the processor, in one thread; both
take turns, and a ratio is formed in each round.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fsachain.denominator import DenominatorGraph
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import build_numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.shards import NumeratorMaker, make_shards
from fsachain.graph.topology import Topology
from fsachain.table import compile_table
from tools import SHARED, parser_of
from tools.bench.timing import Call, Times, seconds_of
from tools.golden.graphs import cases, language
from tools.golden.oracle import Job, compile_jobs

LONGEST = 12  # words
LARGE_LEXICON = "lm6_biphone_tied"
SENTENCES = 5_000, 10_000, 20_000, 40_000
DIGITS = ("oh", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def drawn(words: Sequence[str], count: int, longest: int, *, skew: float = 0.0) -> list[tuple[str, ...]]:
    """Transcripts of 1 to `longest` words; the k-th word is drawn in proportion to k ** -skew."""
    rng = np.random.default_rng(0)
    share = np.arange(1, len(words) + 1) ** -skew
    sizes = rng.integers(1, longest + 1, size=count)
    return [tuple(words[i] for i in rng.choice(len(words), size, p=share / share.sum())) for size in sizes]


def thread_time(work: Call) -> float:
    return seconds_of(work, now=time.thread_time)


def beside_kaldi(folders: Sequence[Path], python: Path, count: int, rounds: int) -> Iterator[str]:
    """A line for each case: nanoseconds per arc of Kaldi's compiler, of ours, and of ours with the compiled table."""
    yield f"{'case':18} {'words':>6} {'Kaldi':>8} {'ours':>8} {'+ table':>8}  {'ours / Kaldi':>17} {'+ table / Kaldi':>17}"
    jobs = []
    for lexicon, _ in map(language, folders):
        sets = [[phone] for phone in range(1, len(lexicon.phones) + 1)]
        jobs.append(Job(lexicon, Topology.chain(), sets, drawn(lexicon.words, count, LONGEST)))
    taken = np.array([_round(jobs, python) for _ in range(rounds)])  # [round, case, program]
    for job, folder, seconds in zip(jobs, folders, taken.transpose(1, 2, 0), strict=True):
        kaldi, *ours = (Times(tuple(row)) for row in seconds)
        middle = " ".join(f"{times.scaled(1e9).median:8.0f}" for times in (kaldi, *ours))
        ratios = " ".join(f"{times.over(kaldi)!s:>17}" for times in ours)
        yield f"{folder.name:18} {len(job.lexicon.words):6} {middle}  {ratios}"


def _round(jobs: Sequence[Job], python: Path) -> list[tuple[float, float, float]]:
    """Seconds per arc of each job: Kaldi, our graphs, our graphs and tables."""
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        costs = compile_jobs(python, jobs, Path(folder))
    result = []
    for job, theirs in zip(jobs, costs, strict=True):
        tree = ContextTree.monophone(job.lexicon.phones, job.topology)
        numerators = (build_numerator(words, job.lexicon, tree).fsa for words in job.transcripts)
        fsas: list[Fsa] = []
        graphs = thread_time(partial(fsas.extend, numerators))
        tables = thread_time(partial(deque, (compile_table(fsa, tree.num_pdfs) for fsa in fsas), 0))
        arcs = sum(fsa.num_arcs for fsa in fsas)
        kaldi = sum(cost.seconds for cost in theirs) / sum(cost.num_arcs for cost in theirs)
        result.append((kaldi, graphs / arcs, (graphs + tables) / arcs))
    return result


def in_bulk(folder: Path, rounds: int) -> Iterator[str]:
    """Numerators per second, words to files of compiled tables, each kind with the normalization and without."""
    yield f"{'numerators':34} {'per second':>10}  {'with normalization':>18}"
    lexicon, tied = language(folder)
    spelled = Lexicon.characters([DIGITS])
    biphones = ContextTree.biphone(spelled.phones, Topology.chain())
    for name, words, tree, longest in (
        ("digit strings, spelled, 1-7 words", spelled, biphones, 7),
        (f"{LARGE_LEXICON}, 1-{LONGEST} words", lexicon, tied, LONGEST),
    ):
        said = [(f"u{n}", words_of) for n, words_of in enumerate(drawn(words.words, 1_000, longest))]
        phones = lm_phones([words_of for _, words_of in said], words, seed=1)
        graph = DenominatorGraph(build_denominator(estimate_phone_lm(phones, 2, 0, 2), tree), tree.num_pdfs)
        rates = []
        for maker in (NumeratorMaker(words, tree), NumeratorMaker(words, tree, graph.normalization_fsa())):
            with tempfile.TemporaryDirectory(prefix="fsachain-") as out:
                works = [partial(make_shards, said, maker, Path(out, str(n))) for n in range(rounds)]
                rates.append(len(said) / float(np.median([thread_time(work) for work in works])))
        yield f"{name:34} {rates[0]:10.0f}  {rates[1]:18.0f}"


def models(folder: Path) -> Iterator[str]:
    """A line for each size of text, each in a process of its own."""
    yield "sentences      phones    phone LM states / arcs   den     LM, s   den, s  peak, MB"
    for count in SENTENCES:
        with get_context("spawn").Pool(1) as pool:
            yield pool.apply(model_row, (folder, count))


def model_row(folder: Path, count: int) -> str:
    """Phone model and denominator of `count` sentences: sizes, seconds, and the most memory that Python held for them."""
    lexicon, tree = language(folder)
    said = drawn(lexicon.words, count, LONGEST + 1, skew=1.0)
    phones = [[int(phone) for phone in sentence] for sentence in lm_phones(said, lexicon, seed=1)]
    made: list[Fsa] = []
    seconds = [thread_time(lambda: made.append(estimate_phone_lm(phones)))]
    seconds.append(thread_time(lambda: made.append(build_denominator(made[0], tree))))
    sizes = " ".join(f"{model.num_states:7,} / {model.num_arcs:6,}" for model in made)
    tracemalloc.start()  # in a pass of its own, which is much slower
    build_denominator(estimate_phone_lm(phones), tree)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    return f"{count:9,} {sum(map(len, phones)):11,} {sizes} {seconds[0]:8.2f} {seconds[1]:8.2f} {peak:8.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--kaldi", type=Path, help="interpreter with kaldi-hmm-gmm; without it no comparison")
    parser.add_argument("--transcripts", type=int, default=300, help="for each case")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    folders = cases(SHARED)
    if not folders:
        print(f"{SHARED}: no lexicons found; expected golden/kaldi/lm", file=sys.stderr)
        return 2
    large = next(folder for folder in folders if folder.name == LARGE_LEXICON)
    tables = [in_bulk(large, options.rounds), models(large)]
    if options.kaldi is not None:
        tables.insert(0, beside_kaldi(folders, options.kaldi, options.transcripts, options.rounds))
    for table in tables:
        for line in table:
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
