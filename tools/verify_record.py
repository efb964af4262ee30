"""A pytest plugin that writes down what the tests of a run found: `python -m pytest -p tools.verify_record --record FILE`.

One line of JSON for each test: its outcome, seconds, the examples that hypothesis ran, and the comparison by
`numpy.testing.assert_allclose`, `torch.testing.assert_close` or `pytest.approx` that used most of its tolerance.
Comparisons that fail are in the outcome; those that hold show here how much was left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

Worst = tuple[float, float]  # difference over allowed difference, and the difference
_PASSING = re.compile(r"(\d+) passing")


class Differences:
    """The comparison of one test that came closest to its tolerance."""

    def __init__(self) -> None:
        self.worst: Worst = (0.0, 0.0)

    def note(self, found: Any, expected: Any, allowed: Any) -> None:
        """`allowed` is the largest difference that counts as agreement, for each element or for all."""
        try:
            found, expected = (np.asarray(value, dtype=np.float64) for value in (found, expected))
            allowed = np.asarray(allowed, dtype=np.float64)
            with np.errstate(all="ignore"):
                difference = np.where(found == expected, 0.0, np.abs(found - expected))
                ratio = np.where(difference == 0.0, 0.0, difference / allowed)
        except (TypeError, ValueError):  # words, or shapes that only the comparison itself brings together
            return
        ratio, difference = (np.broadcast_to(part, ratio.shape).ravel() for part in (ratio, difference))
        usable = np.flatnonzero(np.isfinite(ratio))
        if len(usable):
            at = usable[np.argmax(ratio[usable])]
            self.worst = max(self.worst, (float(ratio[at]), float(difference[at])))


DIFFERENCES = Differences()


def _watch_numpy(check: Callable[..., None]) -> Callable[..., None]:
    @wraps(check)
    def watched(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0.0, **options: Any) -> None:
        __tracebackhide__ = True
        check(actual, desired, rtol=rtol, atol=atol, **options)
        DIFFERENCES.note(actual, desired, atol + rtol * np.abs(np.asarray(desired)))

    return watched


def _watch_torch(check: Callable[..., None]) -> Callable[..., None]:
    @wraps(check)
    def watched(actual: Any, expected: Any, **options: Any) -> None:
        __tracebackhide__ = True
        check(actual, expected, **options)
        rtol, atol = options.get("rtol"), options.get("atol")
        if rtol is None or atol is None:
            return  # torch chooses by the type of the numbers
        found, wanted = (torch.as_tensor(side).detach().double().cpu().numpy() for side in (actual, expected))
        DIFFERENCES.note(found, wanted, atol + rtol * np.abs(wanted))

    return watched


def _watch_approx(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Of a number; pytest compares sequences and arrays number by number."""

    def watched(self: Any, actual: Any) -> bool:
        agrees = equal(self, actual)
        if agrees and np.ndim(actual) == 0:
            DIFFERENCES.note(actual, self.expected, self.tolerance)
        return agrees

    return watched


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, required=False, help="file that gets a line for each test")


def pytest_configure(config: pytest.Config) -> None:
    np.testing.assert_allclose = _watch_numpy(np.testing.assert_allclose)
    torch.testing.assert_close = _watch_torch(torch.testing.assert_close)
    number = type(pytest.approx(1.0))
    number.__eq__ = _watch_approx(number.__eq__)
    if config.getoption("record") and not hasattr(config, "workerinput"):
        config.getoption("record").write_text("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    DIFFERENCES.worst = (0.0, 0.0)
    try:
        return (yield)
    finally:
        item.user_properties.append(("worst", DIFFERENCES.worst))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Add the number of examples that hypothesis says it ran."""
    report = yield
    if report.when == "teardown":
        examples = sum(map(int, _PASSING.findall(getattr(item, "hypothesis_statistics", ""))))
        report.user_properties.append(("examples", examples))
    return report


class Recorder:
    """Collects the reports of a test's three phases, also those that workers send."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.running: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line once the test is torn down."""
        test = self.running.setdefault(
            report.nodeid, {"test": report.nodeid, "outcome": "passed", "why": "", "seconds": 0.0}
        )
        test["seconds"] += report.duration
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            test.update(outcome="failed", why=lines[0][2:].strip() if lines else report.when)
            said = [text for title, text in report.sections if title == "Hypothesis"]
            test["text"] = "\n".join([report.longreprtext, *said])
        elif report.skipped and test["outcome"] == "passed":
            test.update(outcome="skipped", why=_reason(report))
        if report.when == "teardown":
            test.update(dict(report.user_properties))
            self._write(self.running.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected fails, one that lacks a package is skipped."""
        if report.outcome != "passed":
            why = _reason(report) if report.skipped else "cannot be collected"
            self._write({"test": report.nodeid, "outcome": report.outcome, "why": why, "seconds": 0.0})

    def _write(self, test: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(test) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr
    return str(told[2] if isinstance(told, tuple) else told).removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    path = session.config.getoption("record")
    if path and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Recorder(path))
