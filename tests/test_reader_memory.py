"""Memory of every reader on large sound files: at most three times the file, or the figure that docs/safety.md gives.

What is traced is Python's and NumPy's; weights of models are torch's, and are mapped.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

for module in ("safetensors", "yaml", "soundfile", "pywrapfst"):
    pytest.importorskip(module, reason="the readers need fsachain[recipes]")

from fsachain.data.kaldi_dir import DataDir
from tools.fuzz.large import DATA_FOLDER, LARGE, MORE_THAN_THREE, data_folder
from tools.fuzz.readers import READERS, Reader, unpacked_size

SIZE = 1_000_000  # bytes of a file
FLOOR = 400_000  # bytes that are the same for a file of any size
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "safety.md"
# Small by their nature: options are at most 256 KiB; a tree has thousands of numbers; the tables of a directory together.
WITHOUT_LARGE = {"tree as JSON", "data directory", "cuts", "shard", "rows of matrices"}
BY_NAME = {reader.name: reader for reader in READERS}


def peak_memory(read: Callable[[], object]) -> int:
    """Bytes at the highest while `read` runs."""
    gc.collect()
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_every_reader_has_a_large_file() -> None:
    assert LARGE.keys() == BY_NAME.keys() - WITHOUT_LARGE
    assert MORE_THAN_THREE.keys() <= LARGE.keys()


@pytest.mark.parametrize("reader", [BY_NAME[name] for name in LARGE], ids=lambda reader: reader.name)
def test_a_large_file_takes_its_factor_of_memory(reader: Reader, tmp_path: Path) -> None:
    small, large = tmp_path / f"small{reader.suffix}", tmp_path / f"large{reader.suffix}"
    reader.write(small)
    reader.read(small)  # what is loaded on first use
    LARGE[reader.name](large, SIZE)
    peak = peak_memory(lambda: reader.read(large))
    assert peak <= FLOOR + MORE_THAN_THREE.get(reader.name, 3.0) * unpacked_size(large)


def test_a_large_data_directory_takes_its_factor_of_memory(tmp_path: Path) -> None:
    size = data_folder(tmp_path / "data", SIZE)
    assert peak_memory(lambda: DataDir.read(tmp_path / "data")) <= FLOOR + DATA_FOLDER * size


def test_the_document_has_the_factors() -> None:
    rows = dict(
        re.findall(r"^\| (\w[\w ]*) \| ([\d.]+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    )
    for name, factor in {**MORE_THAN_THREE, "data directory": DATA_FOLDER}.items():
        assert float(rows[name]) == factor


def attacks() -> dict[str, tuple[str, bytes]]:
    """Text that becomes as many objects as it can: the reader, and the content."""
    many = 50_000
    numbers = b"".join(b"%d\n" % number for number in range(many))
    return {
        "a line of words": ("transcripts", b"u1 " + b"ab " * many + b"\n"),
        "a line without end": ("transcripts", b"u1" + b"x" * 1_500_000),
        "a line of zero bytes": ("transcripts", bytes(500_000)),
        "ids alone": ("transcripts", numbers),
        "empty lines": ("transcripts", b"\n" * 200_000),
        "one word many times": ("lexicon", b"".join(b"a A%d\n" % number for number in range(many // 4))),
        "a long pronunciation": ("lexicon", b"a " + b"A " * many + b"\n"),
        "an id beyond the lines": ("symbols", b"a 1\nb 1000000000000\n"),
        "a state beyond the lines": ("acceptor as text", b"0 2000000000 1 1\n"),
        "a state far off in a long file": ("acceptor as text", b"0 0 1 1\n" * 10_000 + b"0 30000000 1 1\n"),
        "a state beyond an archive": (
            "fsts as text",
            b"u1\n0 0 1 1\n0\n\n" * 5_000 + b"u2\n0 600000 1 1\n\n",
        ),
        "a state beyond a lattice": ("lattices", b"u1\n0 900000 1 1,1,1\n\n"),
        "a string of a lattice": ("lattices", b"u1\n0 1 1 1,1," + b"1_" * many + b"1\n1\n\n"),
        "an alignment of one line": ("alignments", b"u1 " + b"1 " * many + b"\n"),
        "frames without pairs": ("posteriors", b"u1 " + b"[ ] " * many + b"\n"),
        "a matrix of one column": ("matrices as text", b"u1  [\n" + b" 1\n" * many + b" ]\n"),
        "a matrix of one row": ("matrices as text", b"u1  [ " + b"1 " * many + b"]\n"),
        "lines of a log": ("log", b"{}\n" * many),
        "brackets in a log": ("log", b"[" * 500_000),
        "entries of a list of options": ("options", b"a: [" + b"a," * 100_000 + b"a]\n"),
        "tables in options": ("options", b"a: [" + b"{}," * 80_000 + b"]\n"),
        "times of an alignment": ("ctm", b"".join(b"u 1 %d %d a\n" % (n, n) for n in range(many // 2))),
    }


@pytest.mark.parametrize("attack", attacks())
def test_text_that_becomes_many_objects_stays_in_bounds(attack: str, tmp_path: Path) -> None:
    from fsachain.errors import FsachainError

    name, content = attacks()[attack]
    reader = BY_NAME[name]
    path = tmp_path / f"hostile{reader.suffix}"
    reader.write(path)
    reader.read(path)
    path.write_bytes(content)

    def read() -> None:
        try:
            reader.read(path)
        except FsachainError as error:
            assert len(str(error)) < 1000

    assert peak_memory(read) <= reader.most_memory(len(content))
