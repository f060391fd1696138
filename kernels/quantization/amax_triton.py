"""The largest magnitude in Triton: one of each part of the tensor, then one of those.

float32 magnitudes have the order of their bits, and NaN is above all of them: the maximum is that
of the bits, so that NaN stays.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, tiles
from ..backends.triton_rows import CONFIGURATIONS, resident, warps_of
from ..dtypes import int32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec

_BLOCK = 1024  # of the second kernel


@triton.jit
def _parts(
    x, largest, N: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    found = tl.zeros((BLOCK,), tl.int32)
    for block in range(tl.program_id(0), (N + BLOCK - 1) // BLOCK, PROGRAMS):
        at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < N, other=0.0, eviction_policy="evict_first")
        bits = tl.abs(value.to(tl.float32)).to(tl.int32, bitcast=True)
        found = tl.maximum(found, bits)
    tl.store(largest + tl.program_id(0), tl.max(found, 0))


@triton.jit
def _whole(largest, amax, N: tl.constexpr, BLOCK: tl.constexpr):
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, N, BLOCK):
        part = start + tl.arange(0, BLOCK)
        found = tl.maximum(found, tl.load(largest + part, mask=part < N, other=0))
    tl.store(amax, tl.max(found, 0).to(tl.float32, bitcast=True))


def prepare(direction: str, spec: Spec) -> Prepared:
    (x,) = spec.io.reads

    def plan(choice: Choice) -> Plan:
        block = int(choice["tile"])
        warps = warps_of(block, choice)
        programs = resident(spec, warps, tiles(x.elements, block))
        sizes = {"N": x.elements, "PROGRAMS": programs, "BLOCK": block}
        last = {"N": programs, "BLOCK": _BLOCK}
        pointers = {"largest": "largest", "amax": "amax"}
        kernels = [
            Kernel(_parts, {"x": "x", "largest": "largest"}, sizes, (programs, 1, 1), warps),
            Kernel(_whole, pointers, last, (1, 1, 1), 4),
        ]
        return Plan(kernels, [Tensor("largest", (programs,), int32)])

    return choose(spec, plan, CONFIGURATIONS)
