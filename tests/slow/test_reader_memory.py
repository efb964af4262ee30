"""Memory of readers: at most 64 MB and twenty times the file, whatever it holds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

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
def test_a_large_or_hostile_file_takes_memory_in_proportion(name: str, tmp_path: Path) -> None:
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
