"""Every kernel compiles for every generation of GPUs, in the configurations that the drivers ask for, without spills."""

from functools import cache

import pytest

from fsachain.backends.cuda import plan as cuda_plan
from tools import cuda_compile, cuda_configurations
from tools.bench import gpu_report
from tools.cuda_configurations import GPUS, main_kernels

pytestmark = pytest.mark.skipif(
    cuda_compile.skip_reason() is not None, reason=str(cuda_compile.skip_reason())
)

REGISTERS = 65_536  # of a multiprocessor, of every generation


@pytest.mark.parametrize("architecture", list(GPUS))
def test_main_kernels_compile_and_spill_nothing(architecture):
    entries = cuda_compile.compile_kernels(main_kernels(GPUS[architecture]), architecture)
    spilled = [entry for entry in entries if entry.spill_bytes]
    assert not spilled, cuda_compile.table(spilled)
    assert {entry.architecture for entry in entries} == {architecture}


def test_registers_leave_room_for_the_blocks_of_a_team():
    together = [kernel for kernel in main_kernels(GPUS[90]) if kernel.cooperative]
    assert together
    for entry in cuda_compile.compile_kernels(together, 90):
        threads = dict(entry.defines)["THREADS"]
        assert entry.registers * threads * cuda_plan.RESIDENT_BLOCKS <= REGISTERS, entry


def test_variants_compile_and_spill_nothing(monkeypatch):
    """What `make gpu-report` compares with the default, for the GPU that has all of it."""

    def kernels():
        # Plans stay with tables.
        for name, make in makers.items():
            monkeypatch.setattr(cuda_configurations, name, cache(make))
        return set(main_kernels(GPUS[90]))

    makers = {
        name: getattr(cuda_configurations, name).__wrapped__ for name in ("_denominator", "_numerators")
    }
    usual, others = kernels(), set()
    for name, (attribute, value) in gpu_report.VARIANTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(cuda_plan, attribute, value)
            own = kernels() - usual
        assert own, name
        others |= own
    spilled = [entry for entry in cuda_compile.compile_kernels(others, 90) if entry.spill_bytes]
    assert not spilled, cuda_compile.table(spilled)
