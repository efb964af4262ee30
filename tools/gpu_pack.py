"""What the GPU report needs beside a bare checkout, in build/gpu: graphs, values of other programs, float64 values.

    python -m tools.gpu_pack

Run it where the shared folder is; the report is then run from the checkout with build/gpu in it, anywhere. Takes minutes.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np

from tools.bench import gpu_report
from tools.bench.gpu_tables import MAKERS
from tools.bench.gpu_workloads import GpuSizes
from tools.bench.workloads import CARRIED, SHARED, Workloads

MOST_BYTES = 60 << 20  # of build/gpu
COPIED = ("golden", "data/graphs", "data/librispeech_clean100_shapes.npz")


def main() -> int:
    """1 where it is too large to be carried."""
    if SHARED != CARRIED / "shared":
        for name in COPIED:
            _copy(SHARED / name, CARRIED / "shared" / name)
    write(gpu_report.tiny(), gpu_report.TINY_SIZES, gpu_report.TINY)
    write(gpu_report.whole(), GpuSizes(), gpu_report.FULL)
    size = sum(path.stat().st_size for path in CARRIED.rglob("*") if path.is_file())
    print(f"{CARRIED}: {size / 2**20:.1f} MiB; at most {MOST_BYTES >> 20} may be carried")
    return int(size > MOST_BYTES)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def write(work: Workloads, sizes: GpuSizes, folder: Path) -> None:
    """The float64 values of each case that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for maker in MAKERS.values():
        for entry in maker(work, sizes):
            path, start = folder / entry.file, time.monotonic()
            if not path.is_file():
                np.savez_compressed(path, **entry.case.reference())
                print(
                    f"{path.name}: {path.stat().st_size} bytes, {time.monotonic() - start:.0f} s", flush=True
                )


if __name__ == "__main__":
    sys.exit(main())
