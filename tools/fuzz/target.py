"""Readers under atheris, each in a process of its own; a program that `tools.fuzz.run` drives.

What is slow, importing and instrumenting, is done once; each request is a line of JSON (`reader`, `seconds`, `folder`), for
which a child is forked. The answer is a line too: `status`, negative for a signal, or null if the child hung and was killed.
What it says is in `stderr.txt` of the folder.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path

import atheris

from tools.fuzz.damage import damaged

# The parsers alone: numba compiles the bytecode of the backends, which must stay as it is. Atheris leaves out what is
# named, and not what is inside it.
BACKENDS = Path(__file__).resolve().parents[2] / "fsachain" / "backends"
COMPILED = ["fsachain.backends", *(f"fsachain.backends.{path.stem}" for path in BACKENDS.glob("*.py"))]
with atheris.instrument_imports(include=["fsachain", "yaml", "zipfile"], exclude=COMPILED):
    from fsachain.errors import FsachainError
    from tools.fuzz.reader import Reader, most_memory
    from tools.fuzz.readers import READERS

HANG_SECONDS = 10  # of one file; the largest has a few kilobytes
GRACE_SECONDS = 90  # for the start of a child and the end of its last file
LARGEST = 1 << 16
ADDRESS_SPACE = 16 << 30  # an allocation that believes a header ends here and not in the machine's memory


class OutOfProportion(Exception):
    """A reader took more memory than its file accounts for."""


def read_once(reader: Reader, path: Path, content: bytes) -> None:
    """Read the content; one of fsachain's own errors is right, any other exception is a finding."""
    path.write_bytes(content)
    most = most_memory(path)
    tracemalloc.start()
    try:
        reader.read(path)
    except FsachainError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > most:
        raise OutOfProportion(f"{peak} bytes for a file of {len(content)}")


def fuzz(reader: Reader, seconds: int, folder: Path) -> None:
    """Run atheris on one reader; does not return."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    path = folder / f"file{reader.suffix}"
    reader.write(path)
    sound = path.read_bytes()
    reader.read(path)  # what is loaded on first use is not of this file
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


def child(name: str, seconds: int, folder: Path) -> None:
    """Does not return; all that is said goes to a file."""
    said = os.open(folder / "stderr.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    fuzz(next(one for one in READERS if one.name == name), seconds, folder)


def wait_for(process: int, seconds: float) -> int | None:
    """The exit status of a child, negative for a signal; None if it took longer and was killed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def serve() -> None:
    """Answer requests until the end of the input."""
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        folder.mkdir()
        process = os.fork()
        if process == 0:
            try:
                child(request["reader"], request["seconds"], folder)
            finally:
                os._exit(1)
        status = wait_for(process, request["seconds"] + GRACE_SECONDS)
        print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    serve()
