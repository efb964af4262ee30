"""Fuzzes every reader under atheris, guided by coverage: `make fuzz`, or `python -m tools.fuzz.run --seconds 60`.

Each reader has a process of its own, so that one that crashes, hangs or takes too much memory is named and the others
go on. What made it fail is kept in the folder `--out`, and read again with `--replay`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fsachain.errors import FsachainError
from tools.fuzz.readers import READERS, Reader

GRACE_SECONDS = 120  # for the start of a process, and for the end of its last file


def run_one(reader: Reader, seconds: int, out: Path) -> tuple[int, str]:
    """Executions of a reader's process, and its finding or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "fuzz"
        command = [sys.executable, "-m", "tools.fuzz.target", reader.name, str(seconds), str(folder)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds + GRACE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            out.mkdir(parents=True, exist_ok=True)
            last = out / f"{reader.name.replace(' ', '-')}-hang"
            file = folder / f"file{reader.suffix}"
            if not file.exists():
                return 0, "did not start in time"
            last.write_bytes(file.read_bytes())
            return 0, f"hangs ({last})"
        found = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        executions = int(found[1]) if found else 0
        if done.returncode == 0:
            return executions, ""
        out.mkdir(parents=True, exist_ok=True)
        kept = []
        for kind in ("crash", "timeout", "oom", "leak"):
            for artifact in folder.glob(f"{kind}-*"):
                target = out / f"{reader.name.replace(' ', '-')}-{artifact.name}"
                target.write_bytes(artifact.read_bytes())
                kept.append(str(target))
        reason = next(
            (
                line
                for line in reversed(done.stderr.splitlines())
                if re.match(r"\w+(\.\w+)*(Error|Exception|Proportion)", line)
            ),
            f"status {done.returncode}",
        )
        return executions, f"{reason} ({', '.join(kept) or done.stderr[-2000:]})"


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
    """Fuzz the readers one after the other; returns 1 if one has a finding."""
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
