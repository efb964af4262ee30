"""Values of PyChain, k2, GTN and torch-struct on acceptors."""

import pytest
from conftest import SHARED

from tools.golden import peers
from tools.golden.rows import compare

CASES = peers.cases(SHARED)


@pytest.mark.parametrize(
    "case",
    CASES or [pytest.param(None, marks=pytest.mark.skip("no ../shared"))],
    ids=lambda case: getattr(case, "name", ""),
)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_values_of_other_programs_are_met(case, backend):
    rows = list(case.rows(backend))
    assert rows
    assert not [row for row in rows if not row.agrees]


def test_all_acceptor_files_are_compared(shared):
    on_acceptors = [
        path
        for path in (shared / "golden" / "peers").glob("*.npz")
        if not path.stem.startswith(("rnnt_", "fastrnnt_", "torch_ctc", "k2_ctc"))
    ]
    assert len(CASES) == len(on_acceptors)


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        ([1.0, 2.0], [1.0, 2.2], False),
        ([1.0, 2.0], [1.0, 2.05], True),
        ([float("-inf")], [float("-inf")], True),
        ([0.0], [float("-inf")], False),
        ([float("nan")], [1.0], False),
    ],
)
def test_a_row_agrees_only_within_its_allowance(ours, theirs, agrees):
    assert compare("case", "quantity", ours, theirs, 0.1).agrees is agrees
