"""One reader under atheris, in a process of its own: `python -m tools.fuzz.target READER SECONDS FOLDER`."""

from __future__ import annotations

import random
import resource
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import atheris

# The parsers alone: numba compiles the bytecode of the backends, which must stay as it is.
with atheris.instrument_imports(include=["fsachain", "yaml", "zipfile"], exclude=["fsachain.backends"]):
    from fsachain.errors import FsachainError
    from tools.fuzz.readers import READERS, Reader

from tools.fuzz.damage import damaged

MEMORY_FLOOR = 8_000_000
HANG_SECONDS = 10  # of one file; the largest has a few kilobytes
LARGEST = 1 << 16
ADDRESS_SPACE = 16 << 30  # an allocation that believes a header ends here and not in the machine's memory


class OutOfProportion(Exception):
    """A reader took more memory than its file accounts for."""


def read_once(reader: Reader, path: Path, content: bytes) -> None:
    """Read the content; one of fsachain's own errors is right, any other exception is a finding."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        reader.read(path)
    except FsachainError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > MEMORY_FLOOR + reader.memory_per_byte * max(len(content), 1):
        raise OutOfProportion(f"{peak} bytes for a file of {len(content)}")


def fuzz(reader: Reader, seconds: int, folder: Path) -> None:
    """Run atheris on one reader; does not return."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    path = folder / f"file{reader.suffix}"
    reader.write(path)
    sound = path.read_bytes()
    for number in range(50):
        (corpus / str(number)).write_bytes(damaged(sound, random.Random(number)))
    (corpus / "sound").write_bytes(sound)

    def one_input(data: bytes) -> None:
        """Three of four inputs as they are; the others steer damage inside a file whose checksums hold."""
        content = data
        if reader.reseal and len(data) % 4 == 0:
            generator = random.Random(data)
            content = generator.choice(reader.reseal)(sound, partial(damaged, generator=generator))
        read_once(reader, path, content)

    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={seconds}",
            f"-timeout={HANG_SECONDS}",
            f"-max_len={LARGEST}",
            f"-artifact_prefix={folder}/",
            "-rss_limit_mb=6000",
            "-print_final_stats=1",
            "-verbosity=0",
        ],
        one_input,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(next(one for one in READERS if one.name == sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
