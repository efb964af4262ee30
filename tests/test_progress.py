"""What a person sees of long work: lines where there is no terminal, one display of bars where there is one."""

import time

import pytest

for module in ("click", "rich"):
    pytest.importorskip(module, reason="progress needs fsachain[recipes]")

from test_run import exp, inputs  # noqa: F401 (fixtures)

import fsachain.progress as lines
from fsachain.cli.options import counter


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
    with lines.Lines("graphs") as progress:
        for call in calls:
            progress(*call)
        assert progress.line(seconds) == expected


def test_lines_come_in_time_and_end_with_the_work(monkeypatch, capsys):
    monkeypatch.setattr(lines, "SECONDS", 0.01)
    with counter("slow work") as update:
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
        def __init__(self, what, stream=None):
            self.what = what
            found.setdefault(what, (0, 0))

        def __call__(self, done, total):
            found[self.what] = (done, total)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        close = __enter__

    monkeypatch.setattr(lines, "Lines", Noted)
    assert fsachain("run", exp, *inputs).status == 0
    counted = {"features", "numerators", "network", "tuning", "decoding", "aligning", "epoch 1/1"}
    assert counted | {"phone language model", "denominator graph", "decoding graph", "report"} <= set(found)
    for what in counted:
        done, total = found[what]
        assert done == total > 0, what


def test_bars_within_bars_share_one_display(monkeypatch, capsys):
    """rich allows one; the bar outside goes on when the one inside is gone."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with counter("outside") as outer:
        outer(1, 2)
        with counter("inside") as inner:
            inner(3, 4)
            time.sleep(0.3)
        outer(2, 2)
        time.sleep(0.3)
    told = capsys.readouterr().err
    assert "outside" in told and "inside" in told and "3/4" in told and "2/2" in told
