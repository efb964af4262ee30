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

from tools import CARRIED, SHARED
from tools.bench import workloads
from tools.bench.gpu_cases import MAKERS
from tools.bench.gpu_report import TINY_VALUES, VALUES
from tools.bench.workloads import TINY, Sizes, Workloads

MOST_BYTES = 60 << 20  # of build/gpu
COPIED = "golden/**/*", "data/graphs/*", "data/librispeech_clean100_shapes.npz"


def main() -> int:
    """1 where it is too large to be carried."""
    if SHARED != CARRIED / "shared":
        for source in (path for pattern in COPIED for path in SHARED.glob(pattern) if path.is_file()):
            target = CARRIED / "shared" / source.relative_to(SHARED)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    write(workloads.seeded(TINY), TINY, TINY_VALUES)
    write(workloads.from_folder(workloads.GRAPHS, Sizes()), Sizes(), VALUES)
    size = sum(path.stat().st_size for path in CARRIED.rglob("*") if path.is_file())
    print(f"{CARRIED}: {size / 2**20:.1f} MiB; at most {MOST_BYTES >> 20} may be carried")
    return int(size > MOST_BYTES)


def write(work: Workloads, sizes: Sizes, folder: Path) -> None:
    """The float64 values of each case that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in (case for maker in MAKERS.values() for case in maker(work, sizes)):
        path, start = folder / case.file, time.monotonic()
        if not path.is_file():
            np.savez_compressed(path, **case.reference())
            print(f"{path.name}: {path.stat().st_size} bytes, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
