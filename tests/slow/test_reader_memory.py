"""Texts that become as many or as large objects as they can: one line of error or a value, within the bound on memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

for module in ("safetensors", "yaml", "soundfile", "pywrapfst"):
    pytest.importorskip(module, reason="the readers need fsachain[recipes]")

from fsachain.errors import FsachainError
from tools.fuzz.hostile import HOSTILE
from tools.fuzz.reader import most_memory
from tools.fuzz.readers import READERS

BY_NAME = {reader.name: reader for reader in READERS}


@pytest.mark.parametrize("attack", HOSTILE)
def test_text_that_becomes_many_objects_stays_in_bounds(attack: str, tmp_path: Path) -> None:
    name, content = HOSTILE[attack]
    reader = BY_NAME[name]
    path = tmp_path / f"hostile{reader.suffix}"
    reader.write(path)
    reader.read(path)  # what is loaded on first use
    path.write_bytes(content)
    tracemalloc.start()
    try:
        reader.read(path)
    except FsachainError as error:
        assert len(str(error)) < 1000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= most_memory(path)
