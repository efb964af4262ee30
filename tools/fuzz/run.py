"""Fuzzes every reader under atheris, guided by coverage: `make fuzz`, or `python -m tools.fuzz.run --seconds 60`.

Each reader has a process of its own, forked from one that has imported them all, so that one that crashes, hangs or takes
too much memory is named and the others go on. What made it fail is kept in the folder `--out`, and read again with
`--replay`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fsachain.errors import FsachainError
from tools.fuzz.reader import Reader
from tools.fuzz.readers import READERS


class Target:
    """The program that fuzzes, which imports once for all readers."""

    def __enter__(self) -> Target:
        command = [sys.executable, "-m", "tools.fuzz.target"]
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._said.close()

    def fuzz(self, reader: Reader, seconds: int, folder: Path) -> int | None:
        """Fuzz one reader; its exit status, negative for a signal, None for a hang."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"reader": reader.name, "seconds": seconds, "folder": str(folder)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._said.seek(0)
            raise SystemExit("tools.fuzz.target ended: " + self._said.read().decode(errors="replace")[-2000:])
        status: int | None = json.loads(answer)["status"]
        return status


def run_one(target: Target, reader: Reader, seconds: int, out: Path) -> tuple[int, str]:
    """Executions of a reader, and its finding or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "fuzz"
        status = target.fuzz(reader, seconds, folder)
        said = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"number_of_executed_units:\s*(\d+)", said)
        executions = int(found[1]) if found else 0
        if status == 0:
            return executions, "" if executions else "nothing was executed"
        kept = _keep(reader, folder, out, hung=status is None)
        if status is None:
            return executions, f"hangs ({', '.join(kept)})"
        reason = next(
            (
                line
                for line in reversed(said.splitlines())
                if re.match(r"\w+(\.\w+)*(Error|Exception|Proportion)", line)
            ),
            f"status {status}",
        )
        return executions, f"{reason} ({', '.join(kept) or said[-2000:]})"


def _keep(reader: Reader, folder: Path, out: Path, *, hung: bool) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    files = {
        artifact: artifact.name
        for kind in ("crash", "timeout", "oom", "leak")
        for artifact in folder.glob(f"{kind}-*")
    }
    last = folder / f"file{reader.suffix}"
    if hung and last.exists():
        files[last] = "hang"
    kept = [out / f"{reader.name.replace(' ', '-')}-{name}" for name in files.values()]
    for source, path in zip(files, kept, strict=True):
        path.write_bytes(source.read_bytes())
    return [str(path) for path in kept]


def replay(path: Path) -> None:
    """Read one kept file by the reader in its name, with the traceback."""
    reader = max(
        (one for one in READERS if path.name.startswith(one.name.replace(" ", "-"))),
        key=lambda one: len(one.name),
    )
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / f"file{reader.suffix}"
        copy.write_bytes(path.read_bytes())
        with suppress(FsachainError):
            reader.read(copy)
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
    with Target() as target:
        for reader in chosen:
            seconds = max(1, options.seconds // len(chosen))
            executions, finding = run_one(target, reader, seconds, options.out)
            total += executions
            findings += bool(finding)
            print(f"{reader.name:<20}{executions:>10} executions  {finding or 'no finding'}", flush=True)
    print(f"{len(chosen)} readers, {total} executions, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
