"""Benchmarks, and checks beside the tests: against other programs' values, on damaged files, of kernels without a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What `tools.gpu_pack` makes for a machine that has nothing but this checkout.
CARRIED = ROOT / "build" / "gpu"
SHARED = next((s for s in (ROOT.parent / "shared", CARRIED / "shared") if s.is_dir()), CARRIED / "shared")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Shows a module's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
