"""Print what a user waits for: first calls of a process while no kernel is compiled, and tables of 100,000 lines.

    python -m tools.bench.waits [--rounds 5] [--lines 100000] [calls] [tables]

Seconds of the process on the processor. A first call is made in a process of its own, in one thread, with an empty
cache of kernels; each row goes on in the process of the row before it. Tables are read in a process that has read
nothing before; the least and the median of all rounds.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.graph.lexicon import Lexicon
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from tools import parser_of
from tools.bench.timing import Call, seconds_of
from tools.bench.workloads import entered_by_one_pdf, left_to_right

KINDS = "calls", "tables"
FRAMES, PDFS = 50, 40
# Seconds.
CALL_LIMITS = {"LFMMILoss, float32": 12.0, "then ctc_loss, float32": 5.0, "then LFMMILoss, float64": 8.0}
TABLE_LIMIT = 0.6
LONE = {"OMP_NUM_THREADS": "1", "FSACHAIN_QUIET": "1"}


def first_calls() -> list[float]:
    """Seconds of calls in this process."""
    numerators = [left_to_right(n + np.arange(20), np.zeros(20, bool), -1.0, 1) for n in range(4)]
    graph = entered_by_one_pdf(300, 3000, PDFS)
    scores = torch.randn(4, FRAMES, PDFS, generator=torch.manual_seed(1))
    lengths, sizes = torch.full((4,), FRAMES), torch.full((4,), 10)
    targets = torch.arange(40).reshape(4, 10) % (PDFS - 1) + 1

    def lfmmi(dtype: torch.dtype) -> None:
        LFMMILoss(graph)(scores.to(dtype).requires_grad_(), lengths, numerators).backward()

    def ctc() -> None:
        ctc_loss(scores.log_softmax(-1).transpose(0, 1).requires_grad_(), targets, lengths, sizes).backward()

    return [
        processor_time(call) for call in (partial(lfmmi, torch.float32), ctc, partial(lfmmi, torch.float64))
    ]


def processor_time(call: Call) -> float:
    return seconds_of(call, now=time.process_time)


def write_tables(folder: Path, count: int) -> None:
    """A data directory, the same with segments, and a lexicon, of `count` lines each."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = sorted({"".join(rng.choices(letters, k=rng.randint(3, 12))) for _ in range(2 * count)})[:count]
    ids = [f"speaker{n // 100:04}-utterance{n:06}" for n in range(count)]
    texts = [" ".join(rng.choices(words, k=rng.randint(3, 15))) for _ in ids]
    plain, cut = folder / "plain", folder / "cut"
    for place in (plain, cut):
        place.mkdir()
        _write(place / "text", (f"{name} {text}" for name, text in zip(ids, texts, strict=True)))
        _write(place / "utt2spk", (f"{name} {name[:11]}" for name in ids))
    _write(plain / "wav.scp", (f"{name} audio/{name[:11]}/{name}.flac" for name in ids))
    _write(cut / "wav.scp", (f"talk{n:04} audio/talk{n:04}.flac" for n in range(count // 100 + 1)))
    starts = [(name, n // 100, n % 100 * 7.25) for n, name in enumerate(ids)]
    _write(cut / "segments", (f"{name} talk{n:04} {t:.2f} {t + 6.5:.2f}" for name, n, t in starts))
    phones = ["AA", "AE", "AH", "B", "D", "EH", "F", "G", "IH", "K", "L", "M", "N", "OW", "P", "R", "S", "T"]
    _write(
        folder / "lexicon.txt", (f"{w} {' '.join(rng.choices(phones, k=rng.randint(3, 10)))}" for w in words)
    )


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


TABLES: dict[str, Callable[[Path], object]] = {
    "data directory": lambda folder: DataDir.read(folder / "plain"),
    "data directory with segments": lambda folder: DataDir.read(folder / "cut"),
    "lexicon": lambda folder: Lexicon.read(folder / "lexicon.txt"),
}


def read_table(name: str, folder: Path) -> float:
    return processor_time(partial(TABLES[name], folder))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="by default both")
    parser.add_argument("--rounds", type=int, default=5, help="of tables")
    parser.add_argument("--lines", type=int, default=100_000)
    options = parser.parse_args(arguments)
    kinds = options.kinds or KINDS
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        place = Path(folder)
        os.environ.update(LONE, NUMBA_CACHE_DIR=str(place / "kernels"))
        # A process for each task.
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            if "calls" in kinds:
                seconds = pool.apply(first_calls)
                for (name, limit), taken in zip(CALL_LIMITS.items(), seconds, strict=True):
                    print(f"{name:30} {taken:6.2f} s, limit {limit:.0f}", flush=True)
            if "tables" in kinds:
                write_tables(place, options.lines)
                for name in TABLES:
                    times = [pool.apply(read_table, (name, place)) for _ in range(options.rounds)]
                    print(
                        f"{name:30} least {min(times):.2f} s, median {median(times):.2f}, limit {TABLE_LIMIT}"
                    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
