"""What the figures depend on beside the code: machine, versions, date and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tools.bench.workloads import ROOT


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numba": _version("numba"),
        "torch": torch.__version__,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def one_line(facts: dict[str, Any]) -> str:
    """The same as a sentence, with how busy the machine is, where it says so."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(f"{name} {facts[name]}" for name in ("numba", "torch"))
    return f"Python {facts['python']}, {versions}; {facts['cpu']}, {facts['cores']} cores{load}"


def save(
    facts: dict[str, Any], tables: dict[str, list[dict[str, Any]]], folder: Path, kind: str = "cpu"
) -> Path:
    """Write <kind>-<date>.json, replacing an earlier one of that day."""
    date = datetime.now(UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{date}.json"
    record = {"device": facts, "date": date, "commit": commit(), "tables": tables}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def commit() -> str | None:
    """The commit of this checkout, "+" after it where files differ; None without git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
