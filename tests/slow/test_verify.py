"""`make verify` counts what ran, shows the worst differences and does not pass over failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import verify
from tools.verify import Found, Part

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
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Found]:
    monkeypatch.setenv("PYTHONPATH", str(verify.TESTS))
    (tmp_path / "test_made.py").write_text(TESTS)
    checks = verify.run_tests([str(tmp_path / "test_made.py"), "-p", "conftest"], 1, "thorough")
    return {one.name.partition("::")[2]: one for one in checks}


def test_a_run_gives_outcomes_examples_and_the_closest_comparisons(found: dict[str, Found]) -> None:
    assert found["test_with_the_number_of_the_profile"].examples == 300
    assert found["test_with_a_number_of_its_own"].examples == 200
    closest = {name: (one.ratio, one.difference) for name, one in found.items() if one.ratio}
    assert closest == {"test_numpy": (0.5, 0.5), "test_torch": (0.25, 0.25), "test_approx": (0.75, 0.75)}
    assert (found["test_words"].outcome, found["test_left_out"].outcome) == ("failed", "skipped")
    assert "AssertionError" in found["test_words"].why
    assert 'assert "a" == "b"' in found["test_words"].text
    assert found["test_left_out"].why == "nothing there"
    assert sum(one.outcome == "passed" for one in found.values()) == 5


def test_a_run_that_cannot_begin_is_a_failure(tmp_path: Path) -> None:
    (only,) = verify.run_tests([str(tmp_path / "absent.py")], 1)
    assert (only.outcome, only.name) == ("failed", "pytest")
    assert "absent.py" in only.why


def test_a_file_that_cannot_be_collected_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    checks = list(verify.run_tests([str(tmp_path / "test_broken.py")], 1))
    assert any(one.outcome == "failed" and "test_broken" in one.name for one in checks)


@pytest.mark.parametrize(
    ("checks", "status", "told"),
    [
        ([Found("a", "passed", ratio=0.5, difference=1e-6)], 0, "all is well"),
        ([Found("a", "passed"), Found("b", "failed", "off by one")], 1, "b: off by one"),
        ([Found("a", "skipped", "no ../shared")], 1, "golden: nothing passed"),
    ],
)
def test_the_page_and_the_status_say_what_is_wrong(
    checks: list[Found], status: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(verify.PARTS, "golden", lambda workers: Part("golden", checks))
    assert verify.main(["--part", "golden"]) == status
    page = capsys.readouterr().out
    assert told in page
    assert ("NOT WELL" in page) == bool(status)
    assert all(one.why in page for one in checks)


def test_parts_take_the_tests_that_they_are_for() -> None:
    for name, pattern in (
        ("test_golden_kaldi.py", verify.GOLDEN),
        ("test_cuda_sanitizers.py", verify.SANITIZED),
        ("test_recipe_tiny.py", verify.RECIPES),
    ):
        assert name in {Path(file).name for file in verify.test_files(pattern)}


def test_every_recipe_is_run_by_a_test() -> None:
    assert verify.recipes_not_run() == []
