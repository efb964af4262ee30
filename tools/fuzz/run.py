"""Fuzzes every reader under atheris, guided by coverage: `make fuzz`, or `python -m tools.fuzz.run --seconds 60`.

Each reader has a process of its own, forked from one that has imported them all, so that one that crashes, hangs or takes
too much memory is named and the others go on. What made it fail is kept in the folder `--out`, and read again with
`--replay`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import atheris

from tools.fuzz.damage import damaged

# The parsers alone: numba compiles the bytecode of the backends, which must stay as it is. Atheris leaves out what is
# named, and not what is inside it.
PACKAGE = Path(__file__).resolve().parents[2] / "fsachain"
COMPILED = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in [PACKAGE / "backends", *(PACKAGE / "backends").rglob("*")]
]
with atheris.instrument_imports(include=["fsachain", "yaml", "zipfile"], exclude=COMPILED):
    from fsachain.errors import FsachainError
    from tools.fuzz.reader import Reader, most_memory, within
    from tools.fuzz.readers import READERS

HANG_SECONDS = 10  # of one file; the largest has a few kilobytes
GRACE_SECONDS = 90  # for the start of a child and the end of its last file
LARGEST = 1 << 16
ADDRESS_SPACE = 16 << 30  # an allocation that believes a header ends here and not in the machine's memory


def read_once(reader: Reader, path: Path, content: bytes) -> None:
    """Read the content; one of fsachain's own errors is right, any other exception is a finding."""
    path.write_bytes(content)
    with within(most_memory(path)), suppress(FsachainError):
        reader.read(path)


def fuzz(reader: Reader, seconds: int, folder: Path) -> None:
    """Run atheris on one reader, in a child: what is said goes to a file, and it does not return."""
    said = os.open(folder / "stderr.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
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

    options = (
        f"-max_total_time={seconds} -timeout={HANG_SECONDS} -max_len={LARGEST} -artifact_prefix={folder}/"
    )
    options += " -rss_limit_mb=6000 -print_final_stats=1 -verbosity=0"
    atheris.Setup([sys.argv[0], str(corpus), *options.split()], one_input)
    atheris.Fuzz()


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


def run_one(reader: Reader, seconds: int, out: Path) -> tuple[int, str]:
    """Executions of a reader, and its finding or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        process = os.fork()
        if process == 0:
            try:
                fuzz(reader, seconds, folder)
            finally:
                os._exit(1)
        status = wait_for(process, seconds + GRACE_SECONDS)
        said = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"number_of_executed_units:\s*(\d+)", said)
        executions = int(found[1]) if found else 0
        if status == 0:
            return executions, "" if executions else "nothing was executed"
        kept = ", ".join(_keep(reader, folder, out, hung=status is None))
        if status is None:
            return executions, f"hangs ({kept})"
        reasons = re.findall(r"(?m)^\w+(?:\.\w+)*(?:Error|Exception|Proportion).*$", said)
        return executions, f"{reasons[-1] if reasons else f'status {status}'} ({kept or said[-2000:]})"


def _keep(reader: Reader, folder: Path, out: Path, *, hung: bool) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    kinds = ("crash", "timeout", "oom", "leak")
    files = {artifact: artifact.name for kind in kinds for artifact in folder.glob(f"{kind}-*")}
    last = folder / f"file{reader.suffix}"
    if hung and last.exists():
        files[last] = "hang"
    kept = [out / f"{reader.name.replace(' ', '-')}-{name}" for name in files.values()]
    for source, path in zip(files, kept, strict=True):
        path.write_bytes(source.read_bytes())
    return [str(path) for path in kept]


def replay(path: Path) -> None:
    """Read one kept file by the reader in its name, with the traceback."""
    fitting = (one for one in READERS if path.name.startswith(one.name.replace(" ", "-")))
    reader = max(fitting, key=lambda one: len(one.name))
    with tempfile.TemporaryDirectory() as scratch:
        read_once(reader, Path(scratch) / f"file{reader.suffix}", path.read_bytes())
    print(f"{path}: no finding by {reader.name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for all readers together (default 600)")
    parser.add_argument("--reader", action="append", help="only this one; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for findings")
    parser.add_argument("--replay", type=Path, help="read a kept file again instead")
    options = parser.parse_args(arguments)
    if options.replay:
        replay(options.replay)
        return 0
    by_name = {reader.name: reader for reader in READERS}
    chosen = [by_name[name] for name in options.reader or by_name]
    total, findings = 0, 0
    for reader in chosen:
        executions, finding = run_one(reader, max(1, options.seconds // len(chosen)), options.out)
        total += executions
        findings += bool(finding)
        print(f"{reader.name:<20}{executions:>10} executions  {finding or 'no finding'}", flush=True)
    print(f"{len(chosen)} readers, {total} executions, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
