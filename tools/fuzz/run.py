"""Fuzzes every reader under atheris, guided by coverage: `make fuzz`, or `python -m tools.fuzz.run --seconds 60`.

Each reader has a process of its own, forked from one that has imported them all, so that one that crashes, hangs or takes
too much memory is named and the others go on. What made it fail is kept in the folder `--out`, and read again with
`--replay`.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import atheris

from tools import ROOT, parser_of
from tools.fuzz.damage import damaged

# The parsers alone: numba compiles the bytecode of the backends, which must stay as it is. Atheris leaves out what is
# named, and not what is inside it.
BACKENDS = ROOT / "fsachain" / "backends"
COMPILED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in [BACKENDS, *BACKENDS.rglob("*")]
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
    corpus, path = folder / "corpus", folder / f"file{reader.suffix}"
    corpus.mkdir()
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

    limits = (
        f"-max_total_time={seconds}",
        f"-timeout={HANG_SECONDS}",
        f"-max_len={LARGEST}",
        "-rss_limit_mb=6000",
    )
    output = f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=0"  # else it writes beside us
    atheris.Setup([sys.argv[0], str(corpus), *limits, *output], one_input)
    atheris.Fuzz()


def run_one(reader: Reader, seconds: int, out: Path) -> tuple[int, str]:
    """Executions of a reader, and its finding or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        child = get_context("fork").Process(target=fuzz, args=(reader, seconds, folder))
        child.start()
        child.join(seconds + GRACE_SECONDS)
        hangs = child.is_alive()
        child.kill()
        child.join()
        said = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"number_of_executed_units:\s*(\d+)", said)
        executions = int(found[1]) if found else 0
        if child.exitcode == 0:
            return executions, "" if executions else f"nothing was executed: {said[-2000:]}"
        # The last file, which made it fail, as it was read: sealed again where its checksums must hold.
        kept = out / f"{reader.name.replace(' ', '-')}-found{reader.suffix}"
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"file{reader.suffix}", kept)
        reasons = re.findall(r"(?m)^\w+(?:\.\w+)*(?:Error|Exception|Proportion).*$", said)
        reason = reasons[-1] if reasons else f"status {child.exitcode}"
        return executions, f"{'hangs' if hangs else reason} ({kept})"


def replay(path: Path) -> None:
    """Read one kept file by the reader in its name, with the traceback."""
    fitting = (one for one in READERS if path.name.startswith(one.name.replace(" ", "-")))
    reader = max(fitting, key=lambda one: len(one.name))
    with tempfile.TemporaryDirectory() as scratch:
        read_once(reader, Path(scratch) / f"file{reader.suffix}", path.read_bytes())
    print(f"{path}: no finding by {reader.name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    by_name = {reader.name: reader for reader in READERS}
    parser.add_argument("--seconds", type=int, default=600, help="for all readers together (default 600)")
    parser.add_argument(
        "--reader", action="append", choices=by_name, help="only this one; may be given several times"
    )
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for findings")
    parser.add_argument("--replay", type=Path, help="read a kept file again instead")
    options = parser.parse_args(arguments)
    if options.replay:
        replay(options.replay)
        return 0
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
