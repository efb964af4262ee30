"""Every kernel compiles for every generation of GPUs, in the configurations that the drivers ask for, without spills."""

import pytest

from fsachain.backends.cuda import plan as cuda_plan
from tools import cuda_compile
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
