"""Every kernel compiles for every generation of GPUs, in the configurations that the drivers ask for, without spills."""

from __future__ import annotations

import pytest

from fsachain.backends.cuda import plan as cuda_plan
from tools import cuda_compile
from tools.cuda_compile import CompileError, compile_text
from tools.cuda_configurations import GPUS, all_kernels, main_kernels

pytestmark = pytest.mark.skipif(
    cuda_compile.skip_reason() is not None, reason=str(cuda_compile.skip_reason())
)

REGISTERS = 65_536  # of a multiprocessor, of every generation
# A hundred values at once in registers, of which a thread has 32, or 64 where only 1024 threads fit a multiprocessor.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* out) {
  float values[100];
  for (int i = 0; i < 100; ++i) values[i] = out[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 100; ++i) out[(99 - i) * 1024 + threadIdx.x] = values[i] * values[(i * 7) % 100];
}
"""
PLAIN = 'extern "C" __global__ void plain(float* out) { out[threadIdx.x] = SCALE * threadIdx.x; }'


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


def test_all_configurations_contain_the_main_ones():
    everything = set(all_kernels(GPUS[80]))
    assert set(main_kernels(GPUS[80])) < everything
    assert {kernel.name for kernel in everything} == {kernel.name for kernel in main_kernels(GPUS[80])}


@pytest.mark.parametrize("architecture", list(GPUS))
def test_spilled_registers_are_seen(architecture):
    (entry,) = compile_text("spills.cu", SPILLS, (), architecture)
    assert entry.spill_bytes > 0
    assert entry.stack_bytes > 0
    assert entry.registers <= 64


def test_a_text_that_does_not_compile_is_named_with_the_log():
    with pytest.raises(CompileError, match=r'wrong.cu for sm_80 with \{\}:(.|\n)*"SCALE" is undefined'):
        compile_text("wrong.cu", PLAIN, (), 80)
