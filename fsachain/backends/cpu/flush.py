"""Numbers below the least normal one count as 0 inside a kernel: the processor's state for that, set and restored.

An operand that is subnormal (below 1.2e-38 in float32) costs Intel's processors some hundred cycles. Alphas of a leaky
denominator fade through this range on every peaked score, which made a call up to 37 times slower. Each kernel therefore
sets "flush to zero" and "denormals are zero" for its thread when it begins, and restores what its caller had when it ends.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VOID = ir.VoidType()
_BYTES = ir.IntType(8).as_pointer()
# MXCSR of x86: bit 15 flushes results, bit 6 takes operands for 0.
_X86_BITS = 0x8040
# FPCR of AArch64: bit 24 does both.
_ARM_BIT = 1 << 24


def flush_in(function: Any, machine: str = platform.machine()) -> None:
    """Let an LLVM function flush subnormal numbers from its first instruction to each of its ends.

    Args:
        function: of llvmlite's IR, complete but not yet compiled. It is changed in place.
        machine: the processor's family, as `platform.machine` names it. On others than x86-64 and AArch64 nothing is
            done: results are the same but for subnormal numbers, and speed is the processor's.
    """
    if machine not in _STATES:
        return
    builder = ir.IRBuilder(function.entry_basic_block)
    builder.position_at_start(function.entry_basic_block)
    state = _STATES[machine](builder)
    callers = state.read()
    state.write(builder.or_(callers, callers.type(state.bits)))
    for block in function.blocks:
        if isinstance(block.terminator, ir.Ret):
            builder.position_before(block.terminator)
            state.write(callers)


class _X86State:
    """The register MXCSR, which is read into memory and written from it."""

    bits = _X86_BITS

    def __init__(self, builder: Any) -> None:
        """Take the memory where the builder stands, in the function's first block."""
        self._builder = builder
        self._place = builder.alloca(_I32)
        self._bytes = builder.bitcast(self._place, _BYTES)

    def _call(self, name: str) -> None:
        module = self._builder.module
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(_VOID, [_BYTES]), name)
        self._builder.call(module.globals[name], [self._bytes])

    def read(self) -> Any:
        self._call("llvm.x86.sse.stmxcsr")
        return self._builder.load(self._place)

    def write(self, value: Any) -> None:
        self._builder.store(value, self._place)
        self._call("llvm.x86.sse.ldmxcsr")


class _ArmState:
    """The register FPCR, which LLVM's intrinsic functions reach in newer versions only."""

    bits = _ARM_BIT

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def read(self) -> Any:
        return self._builder.asm(ir.FunctionType(_I64, []), "mrs $0, fpcr", "=r", [], side_effect=True)

    def write(self, value: Any) -> None:
        kind = ir.FunctionType(_VOID, [_I64])
        self._builder.asm(kind, "msr fpcr, $0", "r,~{memory}", [value], side_effect=True)


_STATES: dict[str, Any] = {"x86_64": _X86State, "AMD64": _X86State, "aarch64": _ArmState, "arm64": _ArmState}
