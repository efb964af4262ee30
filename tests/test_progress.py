"""What a person sees of long work: lines where there is no terminal, one display of bars where there is one."""

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_run import exp, inputs  # noqa: F401 (fixtures)

import fsachain.progress as lines

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("calls", "seconds", "expected"),
    [
        ([], 65.0, "graphs: 1:05 so far"),
        ([(1, 4)], 10.0, "graphs: 1 of 4, 0:30 left"),
        ([(1, 4), (3, 4)], 30.0, "graphs: 3 of 4, 0:10 left"),
        ([(51, 100), (60, 100)], 20.0, "graphs: 60 of 100, 1:20 left"),  # fifty were done before
        ([(1, 7201)], 1.0, "graphs: 1 of 7201, 2:00:00 left"),
    ],
)
def test_line_says_what_is_done_and_how_long_the_rest_takes(calls, seconds, expected):
    with lines.Lines("graphs", sys.stderr) as progress:
        for call in calls:
            progress(*call)
        assert progress.line(seconds) == expected
        lines.wait_for("compiling")
        assert progress.line(seconds) == f"{expected}; compiling"
        lines.go_on()
        assert progress.line(seconds) == expected


def test_lines_come_in_time_and_end_with_the_work(monkeypatch, capsys):
    monkeypatch.setattr(lines, "SECONDS", 0.01)
    with lines.counter("slow work") as update:
        update(1, 2)
        until = time.monotonic() + 10
        told = ""
        while told.count("slow work: 1 of 2, 0:00 left\n") < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
            told += capsys.readouterr().err
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_all_long_work_of_a_run_is_counted_to_its_end(fsachain, exp, inputs, monkeypatch):  # noqa: F811
    found = {}

    class Noted:
        def __init__(self, what, stream):
            self.what = what
            found.setdefault(what, (0, 0))

        def __call__(self, done, total, text=""):
            found[self.what] = (done, total)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(lines, "Lines", Noted)
    fsachain.ok("run", exp, *inputs)
    counted = {"features", "numerators", "network", "tuning", "decoding", "aligning", "epoch 1/1"}
    assert counted | {"phone language model", "denominator graph", "decoding graph", "report"} <= set(found)
    for what in counted:
        done, total = found[what]
        assert done == total > 0, what


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_within_bars_share_one_display_which_tells_what_they_wait_for():
    """rich allows one; the bar outside goes on when the one inside is gone."""
    terminal = Terminal()
    with lines.counter("outside", terminal) as outer:
        outer(1, 2)
        with lines.counter("inside", terminal) as inner:
            inner(3, 4, "objf -0.1")
            time.sleep(0.3)
        lines.wait_for("compiling a kernel")
        time.sleep(0.3)
        lines.go_on()
        before = terminal.getvalue()
        terminal.truncate(0)
        outer(2, 2)
        time.sleep(0.3)
    before, after = (re.sub(r"\x1b\[[0-9;?]*\w", "", told) for told in (before, terminal.getvalue()))
    assert all(part in before for part in ("outside", "inside", "3/4", "objf -0.1", "compiling a kernel"))
    assert "2/2" in after and "compiling" not in after


def test_kernels_that_are_compiled_appear_in_the_bar_of_the_work(tmp_path):
    """Those of a first call; work that is shown by nothing compiles in silence but for one line."""
    work = (
        "import numpy, sys, time; from fsachain import progress; from fsachain.backends.cpu.jit import jit\n"
        "@jit\ndef twice(x):\n    return 2 * x\n"
        "told = []; wait_for = progress.wait_for\n"
        "progress.wait_for = lambda what: (told.append(what), wait_for(what))\n"
        "print(twice(1.0), twice(2.0), twice(1), told, progress._waiting)"
    )
    (tmp_path / "work.py").write_text(work)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, tmp_path / "work.py"], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "2.0 4.0 2 ['compiling work.twice', 'compiling work.twice'] []\n"
