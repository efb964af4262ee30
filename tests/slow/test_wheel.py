"""The wheel as a user gets it: built from the sdist, installed into a bare environment, and put to work there."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tools.release import build_distributions, version

LOSS_PROGRAM = """
import numpy as np, torch, fsachain
from fsachain import kernels
assert "log_add" in kernels.read("log_add.cuh")
assert "site-packages" in fsachain.__file__, fsachain.__file__
den = fsachain.DenominatorGraph(
    fsachain.Fsa(2, [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1], np.log([0.5] * 4), [0.0, 0.0]), num_pdfs=2)
num = fsachain.Fsa(3, [0, 1, 1], [1, 1, 2], [0, 0, 1], np.log([0.5] * 3), [-np.inf, -np.inf, 0.0])
y = torch.zeros(1, 5, 2, requires_grad=True)
loss = fsachain.LFMMILoss(den)(y, [5], [num])
loss.backward()
print(float(loss), float(y.grad.abs().sum()))
"""
IMPORT_PROGRAM = """
import sys
import torch
before = set(sys.modules)
import fsachain
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


def clean_environment():
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


@pytest.fixture(scope="module")
def installed_python(tmp_path_factory):
    """A new environment with the wheel in it; numpy, scipy, numba and torch are borrowed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip, options = [sys.executable, "-m", "pip"], {"check": True, "env": clean_environment()}
    _, wheel = build_distributions(folder)

    environment = folder / "bare"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    # The line of a .pth file adds the folder but does not run the .pth files in it: an editable install of
    # this package beside the borrowed ones stays invisible.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([*pip, *install], **options)
    return python


def run_installed(python, program):
    done = subprocess.run(
        [python, "-c", program],
        cwd=python.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_carries_the_kernels_and_runs_a_loss(installed_python):
    loss, gradient = map(float, run_installed(installed_python, LOSS_PROGRAM).split())
    assert loss > 0.0  # the numerator is a subset of what the denominator allows
    assert gradient > 0.0


def test_wheel_has_the_version_that_the_package_states(installed_python):
    program = "import fsachain; from importlib.metadata import version; print(fsachain.__version__, version('fsachain'))"
    assert run_installed(installed_python, program).split() == [version()] * 2


def test_wheel_carries_the_templates_of_the_report(installed_python):
    program = (
        "from importlib import resources\n"
        "print(*sorted(file.name for file in (resources.files('fsachain.asr.report') / 'templates').iterdir()))"
    )
    assert run_installed(installed_python, program).split() == [
        "alignments.html",
        "page.html",
        "page.js",
        "parts.html",
        "style.css",
    ]


def test_importing_loads_no_other_package_beside_torch(installed_python):
    """Compilers, graph libraries and optional packages come with the first name that needs them."""
    assert run_installed(installed_python, IMPORT_PROGRAM).split() == ["fsachain"]
