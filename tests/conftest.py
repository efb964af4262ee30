"""Fixtures that all tests share, and hypothesis profiles: fixed seeds, failures printed so that they can be replayed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {"derandomize": True, "print_blob": True, "deadline": None, "database": None}
settings.register_profile(
    "default",
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    **_COMMON,
)
settings.register_profile("thorough", max_examples=300, suppress_health_check=list(HealthCheck), **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
sys.path.append(str(REPOSITORY))  # for tools/, which no wheel holds


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden values and recordings that stands beside the checkout."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("the folder ../shared with golden values stands not beside this checkout")
    return SHARED
