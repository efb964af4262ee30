"""Time the CUDA backend beside what the device allows: see `tools.bench.gpu_report`, or `--help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench.gpu_report import main

if __name__ == "__main__":
    raise SystemExit(main())
