"""Memory of every reader: at most three times the file, sound or hostile, beside what is the same for a file of any size.

What is traced is Python's and NumPy's; weights of models are torch's, and are mapped.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

for module in ("safetensors", "yaml", "soundfile", "pywrapfst"):
    pytest.importorskip(module, reason="the readers need fsachain[recipes]")

from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import FsachainError
from tools.fuzz.hostile import HOSTILE
from tools.fuzz.large import LARGE, data_folder
from tools.fuzz.reader import MEMORY_FLOOR, MEMORY_PER_BYTE, Reader, unpacked_size
from tools.fuzz.readers import READERS

SIZE = 1_000_000  # bytes of a file
FLOOR = 400_000  # bytes that are the same for a file of any size
HOSTILE_FLOOR = 300_000
WITHOUT_LARGE = {"data directory"}  # which is several files
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


@pytest.mark.parametrize("reader", [BY_NAME[name] for name in LARGE], ids=lambda reader: reader.name)
def test_a_large_file_takes_three_times_its_size(reader: Reader, tmp_path: Path) -> None:
    small, large = tmp_path / f"small{reader.suffix}", tmp_path / f"large{reader.suffix}"
    reader.write(small)
    reader.read(small)  # what is loaded on first use
    LARGE[reader.name](large, SIZE)
    peak = peak_memory(lambda: reader.read(large))
    assert peak <= FLOOR + MEMORY_PER_BYTE * unpacked_size(large)


def test_a_large_data_directory_takes_three_times_its_size(tmp_path: Path) -> None:
    size = data_folder(tmp_path / "data", SIZE)
    assert peak_memory(lambda: DataDir.read(tmp_path / "data")) <= FLOOR + MEMORY_PER_BYTE * size


@pytest.mark.parametrize("attack", HOSTILE)
def test_text_that_becomes_many_objects_stays_in_bounds(attack: str, tmp_path: Path) -> None:
    name, content = HOSTILE[attack]
    reader = BY_NAME[name]
    path = tmp_path / f"hostile{reader.suffix}"
    reader.write(path)
    reader.read(path)  # what is loaded on first use
    path.write_bytes(content)
    floor = MEMORY_FLOOR if name == "options" else HOSTILE_FLOOR  # the parser of YAML takes more
    most = floor + MEMORY_PER_BYTE * unpacked_size(path)

    def read() -> None:
        try:
            reader.read(path)
        except FsachainError as error:
            assert len(str(error)) < 1000

    assert peak_memory(read) <= most
