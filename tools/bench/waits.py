"""Print what a user waits for: first calls of a process while no kernel is compiled, and tables of 100,000 lines.

    python -m tools.bench.waits [--rounds 5] [--lines 100000] [calls] [tables]

Seconds of the process on the processor. A first call is made in a process of its own, in one thread, with an empty
cache of kernels; each row goes on in the process of the row before it. Tables are read in a process that has read
nothing before; the least and the median of all rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fsachain.data.kaldi_dir import DataDir
from fsachain.denominator import DenominatorGraph
from fsachain.graph.lexicon import Lexicon
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from tools.bench.workloads import connected, left_to_right

KINDS = ("calls", "tables")
FRAMES, PDFS = 50, 40
CALL_LIMITS = (12.0, 5.0, 8.0)  # seconds, of the rows of `first_calls`
TABLE_LIMIT = 0.6


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def first_calls() -> Iterator[tuple[str, float]]:
    """Names and seconds, in this process."""
    numerators = [left_to_right(n + np.arange(20), np.zeros(20, bool), -1.0, 1) for n in range(4)]
    fsa = connected(300, 3000, PDFS)
    graph = DenominatorGraph(replace(fsa, pdf=fsa.dst % PDFS), PDFS)
    scores = torch.randn(4, FRAMES, PDFS, generator=torch.manual_seed(1))
    lengths, sizes = torch.full((4,), FRAMES), torch.full((4,), 10)
    targets = torch.arange(40).reshape(4, 10) % (PDFS - 1) + 1

    def lfmmi(dtype: torch.dtype) -> None:
        leaf = scores.to(dtype).requires_grad_()
        LFMMILoss(graph)(leaf, lengths, numerators).backward()

    def ctc() -> None:
        ctc_loss(scores.log_softmax(-1).transpose(0, 1).requires_grad_(), targets, lengths, sizes).backward()

    yield "LFMMILoss, float32", seconds_of(lambda: lfmmi(torch.float32))
    yield "then ctc_loss, float32", seconds_of(ctc)
    yield "then LFMMILoss, float64", seconds_of(lambda: lfmmi(torch.float64))


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
        write_lines(place / "text", (f"{name} {text}" for name, text in zip(ids, texts, strict=True)))
        write_lines(place / "utt2spk", (f"{name} {name[:11]}" for name in ids))
    write_lines(plain / "wav.scp", (f"{name} audio/{name[:11]}/{name}.flac" for name in ids))
    write_lines(cut / "wav.scp", (f"talk{n:04} audio/talk{n:04}.flac" for n in range(count // 100 + 1)))
    write_lines(
        cut / "segments",
        (
            f"{name} talk{n // 100:04} {n % 100 * 7.25:.2f} {n % 100 * 7.25 + 6.5:.2f}"
            for n, name in enumerate(ids)
        ),
    )
    phones = ["AA", "AE", "AH", "B", "D", "EH", "F", "G", "IH", "K", "L", "M", "N", "OW", "P", "R", "S", "T"]
    write_lines(
        folder / "lexicon.txt",
        (f"{word} {' '.join(rng.choices(phones, k=rng.randint(3, 10)))}" for word in words),
    )


def write_lines(path: Path, lines: Iterator[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


TABLES: dict[str, Callable[[Path], object]] = {
    "data directory": lambda folder: DataDir.read(folder / "plain"),
    "data directory with segments": lambda folder: DataDir.read(folder / "cut"),
    "lexicon": lambda folder: Lexicon.read(folder / "lexicon.txt"),
}


def in_process(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "tools.bench.waits", *arguments]
    found = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    return found.stdout.decode()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="by default both")
    parser.add_argument("--rounds", type=int, default=5, help="of tables")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--first-calls", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--table", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.first_calls:
        for (name, seconds), limit in zip(first_calls(), CALL_LIMITS, strict=True):
            print(f"{name:30} {seconds:6.2f} s, limit {limit:.0f}", flush=True)
        return 0
    if options.table is not None:
        name, folder = options.table
        print(seconds_of(lambda: TABLES[name](Path(folder))))
        return 0
    kinds = options.kinds or KINDS
    with tempfile.TemporaryDirectory(prefix="fsachain-") as place:
        if "calls" in kinds:
            cache = {
                "NUMBA_CACHE_DIR": str(Path(place, "kernels")),
                "OMP_NUM_THREADS": "1",
                "FSACHAIN_QUIET": "1",
            }
            print(in_process("--first-calls", **cache), end="")
        if "tables" in kinds:
            write_tables(Path(place), options.lines)
            for name in TABLES:
                taken = [float(in_process("--table", name, place)) for _ in range(options.rounds)]
                print(f"{name:30} least {min(taken):.2f} s, median {median(taken):.2f}, limit {TABLE_LIMIT}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
