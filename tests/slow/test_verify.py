"""`make verify` counts what ran, shows the worst differences and does not pass over failures."""

import pytest

from tools import verify

TESTS = """
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st

@given(st.integers(0, 10**9))
def test_with_the_number_of_the_profile(n):
    pass

@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_with_a_number_of_its_own(n):
    pass

def test_numpy():
    np.testing.assert_allclose([1.0, 2.0], [1.0, 2.5], rtol=0.0, atol=1.0)
    np.testing.assert_allclose([np.inf, 2.0], [np.inf, 2.0], rtol=0.0, atol=0.0)

def test_torch():
    torch.testing.assert_close(torch.ones(2), torch.full((2,), 1.25), rtol=0.0, atol=1.0)

def test_approx():
    assert [1.0, 3.0] == pytest.approx([1.0, 3.75], abs=1.0)
    assert 1.0 != pytest.approx(9.0, abs=1.0)

def test_words():
    assert "a" == "b"

@pytest.mark.skip(reason="nothing there")
def test_left_out():
    pass
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(verify.TESTS))
    (tmp_path / "test_made.py").write_text(TESTS)
    checks = verify.run_tests([str(tmp_path / "test_made.py"), "-p", "conftest"], 1, "thorough")
    return {one.name.partition("::")[2]: one for one in checks}


def test_a_run_gives_outcomes_examples_and_the_closest_comparisons(found):
    assert found["test_with_the_number_of_the_profile"].examples == 300
    assert found["test_with_a_number_of_its_own"].examples == 200
    closest = {name: (one.ratio, one.difference) for name, one in found.items() if one.ratio}
    assert closest == {"test_numpy": (0.5, 0.5), "test_torch": (0.25, 0.25), "test_approx": (0.75, 0.75)}
    assert (found["test_words"].outcome, found["test_left_out"].outcome) == ("failed", "skipped")
    assert "AssertionError" in found["test_words"].why
    assert 'assert "a" == "b"' in found["test_words"].text
    assert found["test_left_out"].why == "nothing there"
    assert sum(one.outcome == "passed" for one in found.values()) == 5


def test_every_recipe_is_run_by_a_test():
    assert verify.recipes_not_run() == []
