"""The one parallel function: kernels that are already machine code, one call per thread."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, prange, types

from .cpu_lanes import lane_function


@lane_function
def _call(context: Any, kernel: Any, arguments: Any, thread: Any) -> Any:
    """Call the C function at address `kernel` with (arguments, thread)."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        integer = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [integer.as_pointer(), integer])
        callee = builder.inttoptr(values[0], function.as_pointer())
        builder.call(callee, [builder.inttoptr(values[1], integer.as_pointer()), values[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit("void(int64, int64, int64)", parallel=True, cache=True)
def run(kernel: int, arguments: int, threads: int) -> None:
    """Call `kernel(arguments, thread)` for each of `threads` threads, and wait for all."""
    for thread in prange(threads):
        _call(kernel, arguments, thread)
