"""Fixtures that all tests share, and hypothesis profiles: fixed seeds, failures printed so that they can be replayed."""

import os
import sys
from pathlib import Path

import pytest
import torch
from cli_fixtures import built, fsachain, recorded  # noqa: F401
from hypothesis import HealthCheck, settings

_COMMON = {"derandomize": True, "print_blob": True, "deadline": None, "database": None}
EXAMPLES = 30  # of a test that names no number of its own
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
TIMES = {"default": 1, "thorough": 10}.get(PROFILE, 1)  # what a test's own number is multiplied by
settings.register_profile(
    "default",
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    **_COMMON,
)
settings.register_profile(
    "thorough", max_examples=EXAMPLES * TIMES, suppress_health_check=list(HealthCheck), **_COMMON
)
settings.load_profile(PROFILE)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
sys.path.append(str(REPOSITORY))  # for tools/, which no wheel holds


@pytest.fixture(scope="session")
def shared():
    """The folder with golden values and recordings that stands beside the checkout."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("the folder ../shared with golden values stands not beside this checkout")
    return SHARED


@pytest.fixture(autouse=True)
def _threads_of_torch():
    """A training may take all processors for torch; the next test has what was there."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def use_threads():
    """Sets the number of threads of the CPU backend; what it was comes back."""
    from fsachain import get_num_threads, set_num_threads

    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def pytest_collection_modifyitems(items):
    """A profile alone changes no test that names its number of examples; here these get their multiple too."""
    own = {
        item.function
        for item in items
        if isinstance(item, pytest.Function)
        and hasattr(item.function, "_hypothesis_internal_settings_applied")
    }
    for test in own if TIMES > 1 else ():
        used = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(used, max_examples=TIMES * used.max_examples)
