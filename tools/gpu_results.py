"""What a step of the GPU report has found, a line of JSON for each item, written as soon as it is known.

With `pytest -p tools.gpu_results` each test is an item: a process that is killed tells no summary.
"""

from __future__ import annotations

import json
from typing import Any

MARK = "result "


def tell(item: str, ok: bool, detail: str, **more: Any) -> None:
    """Print the line; `detail` is for people, `more` for programs."""
    print(MARK + json.dumps({"item": item, "ok": bool(ok), "detail": detail, **more}), flush=True)


def told(line: str) -> dict[str, Any] | None:
    """What a line tells; None for lines that are none of ours."""
    _, mark, rest = line.partition(MARK)  # pytest's dots may stand before it
    found: dict[str, Any] | None = json.loads(rest) if mark else None
    return found


def pytest_runtest_logreport(report: Any) -> None:
    """Tell a test as it ends; one that is skipped was not made for this machine."""
    if report.failed or report.skipped or report.when == "call":
        tell(report.nodeid, not report.failed, report.longreprtext[-2000:] or f"{report.duration:.1f} s")
