"""The memory of a long alignment does not grow with its length."""

import subprocess
import sys

from conftest import REPOSITORY

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
    aligner = LongAligner(numerator_of(words * repeats, tree), tree.num_pdfs, window=300, lookahead=100)
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
