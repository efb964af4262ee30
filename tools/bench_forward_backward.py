"""Time the CPU forward-backward beside every peer that is installed: see `tools.bench.report`, or `--help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench.report import main

if __name__ == "__main__":
    raise SystemExit(main())
