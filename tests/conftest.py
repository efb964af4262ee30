"""Fixtures that all tests share, and hypothesis profiles: fixed seeds, failures printed so that they can be replayed.

Nothing here needs the application: `make test-library` runs these tests without it. Its fixtures are in asr/conftest.py.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
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


# Packages of the extras (setup.cfg). Where one is absent, the files and tests that end for want of it are skipped.
OPTIONAL = re.findall(
    r"\w+",
    "click dask distributed espeakng_loader html5lib jinja2 kaldi_decoder kaldi_native_fbank kaldi_native_io kaldialign "
    "kaldifst kaldilm lhotse lilcom matplotlib mkdocs onnx onnxruntime onnxscript playwright praatio pygraphviz pywrapfst "
    "rich safetensors sklearn soundfile tensorboardX yaml",
)


def absent_package(error):
    """The optional package for want of which this error came, or None."""
    while error is not None:
        name = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else None
        if name in OPTIONAL:
            return name
        error = error.__cause__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    name = absent_package(report.call.excinfo.value) if report.failed else None
    if name is not None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), None, f"{name} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except ImportError as error:
        name = absent_package(error)
        if name is None:
            raise
        pytest.skip(f"{name} is not installed")


pytest_runtest_setup = pytest_runtest_call


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


@pytest.fixture(params=["auto", "reference"])
def backend(request):
    """By what a test runs: the CPU, then the oracle; tests/slow has the kernels of a device in their place."""
    return request.param


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
