"""Our phone models, denominators, normalizations and numerators are Kaldi's in size and score, line by line."""

from dataclasses import replace

import pytest
from conftest import SHARED

from tools.golden import graphs


@pytest.mark.parametrize(
    "folder",
    graphs.cases(SHARED) or [pytest.param(None, marks=pytest.mark.skip("no ../shared"))],
    ids=lambda folder: getattr(folder, "name", ""),
)
def test_graphs_of_kaldi_are_met(folder):
    rows = list(graphs.rows(folder, num_paths=20))
    assert [row.graph for row in rows][:3] == ["phone LM", "denominator", "normalization"]
    assert len(rows) == 5
    assert not [row for row in rows if not row.agrees]


@pytest.mark.parametrize("change", [{"difference": 0.2}, {"states": (103, 100)}, {"arcs": (103, 100)}])
def test_a_line_agrees_only_within_its_allowance(change):
    row = graphs.GraphRow("case", "denominator", (102, 100), (102, 100), 0.1, 0.1, graphs.SIZE)
    assert row.agrees
    assert not replace(row, **change).agrees
