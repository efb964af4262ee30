"""Memory: of readers, at most 64 MB and twenty times the file; of a long alignment, none by its length."""

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY

from fsachain.errors import FsachainError
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon
from tools.fuzz.reader import most_memory

SIZE = 600_000  # bytes of a file
FILES: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "lexicon": (
        Lexicon.read,
        b"".join(b"word%06d P%d P%d P%d P%d\n" % (n, n % 40, n % 39, n % 7, n % 11) for n in range(20_000)),
    ),
    "lexicon of one word": (Lexicon.read, b"".join(b"a p%d\n" % n for n in range(40_000))),
    "saved lexicon": (Lexicon.load, b"[[],[],[]]\n" * (SIZE // 11)),
    "saved lexicon of one line": (Lexicon.load, b"[" + b"[]," * (SIZE // 3)),
    "acceptor": (
        Fsa.from_text,
        b"".join(b"%d %d 1 1 0.5\n" % (n, n + 1) for n in range(20_000)) + b"20000\n",
    ),
    "acceptor of few lines": (Fsa.from_text, b"0 2000000000 1\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_large_or_hostile_file_takes_memory_in_proportion(name, tmp_path):
    read, content = FILES[name]
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    gc.collect()
    tracemalloc.start()
    try:
        try:
            read(path)
        except FsachainError as error:
            assert len(str(error)) < 1000
        assert tracemalloc.get_traced_memory()[1] <= most_memory(path)
    finally:
        tracemalloc.stop()


LONG_ALIGNMENT = """
import sys
import numpy as np
from test_long_alignment import numerator_of, spoken, tree_of
from fsachain.decode.align import LongAligner

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def align(repeats):
    tree = tree_of("monophone")
    words = ["yes", "no", "oh", "no"] * 25
    part = numerator_of(words, tree)
    block = np.full((1200, 500), -1.0, np.float32)
    block[:, : tree.num_pdfs] = spoken(part, tree.num_pdfs, 1200, 0)
    aligner = LongAligner(numerator_of(words * repeats, tree), window=300, lookahead=100)
    for _ in range(repeats):
        aligner.accept(block)
    arcs, _ = aligner.finish()
    assert len(arcs) == 1200 * repeats
    return peak()

print(align(2), align(20))
"""


def test_memory_of_an_alignment_does_not_grow_with_the_recording():
    """Ten times the recording, 24,000 frames of 500 outputs: 48 MB of scores, and a trellis of 260 million steps."""
    done = subprocess.run(
        [sys.executable, "-c", LONG_ALIGNMENT],
        cwd=REPOSITORY / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    short, long = map(float, done.stdout.split())
    assert long - short < 24.0  # MB; half of the scores alone
