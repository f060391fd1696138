"""Elementwise streams in Triton: y = F(reads), element by element, in float32.

1. One program per block of a flat run; 16-byte accesses, several in flight per thread.
2. 64-bit offsets: a block's base is formed in 64 bits, so 2^31 elements and more are fine.
3. Loads are evict-first and stores streaming: nothing here is used twice. A store that the next
   step of a chain reads keeps the default policy.
4. Load, convert to float32, compute, convert back: one rounding, also where Triton's interpreter
   has no bfloat16 arithmetic.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, tiles

_CONFIGURATIONS: tuple[Choice, ...] = (
    {"warps": 8, "vectors": 4},
    {"warps": 4, "vectors": 4},
    {"warps": 8, "vectors": 8},
    {"warps": 16, "vectors": 2},
)
"""vectors: 16-byte loads in flight per thread, shared by the arrays that are read."""


@triton.jit
def _store(y, offsets, value, N: tl.constexpr, STORE: tl.constexpr):
    tl.store(y + offsets, value.to(y.dtype.element_ty), mask=offsets < N, cache_modifier=STORE)


@triton.jit
def _load(x, offsets, N: tl.constexpr):
    x = tl.load(x + offsets, mask=offsets < N, eviction_policy="evict_first")
    return x.to(tl.float32)


@triton.jit
def _offsets(BLOCK: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def map_0(y, VALUE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr):
    value = tl.full((BLOCK,), VALUE, tl.float32)
    _store(y, _offsets(BLOCK), value, N, STORE)


@triton.jit
def map_1(x0, y, F: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr):
    at = _offsets(BLOCK)
    _store(y, at, F(_load(x0, at, N)), N, STORE)


@triton.jit
def map_2(x0, x1, y, F: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr):
    at = _offsets(BLOCK)
    a = _load(x0, at, N)
    b = _load(x1, at, N)
    _store(y, at, F(a, b), N, STORE)


@triton.jit
def map_3(
    x0, x1, x2, y, y1,
    F: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    at = _offsets(BLOCK)
    a = _load(x0, at, N)
    b = _load(x1, at, N)
    c = _load(x2, at, N)
    if y1 is None:
        _store(y, at, F(a, b, c), N, STORE)
    else:
        first, second = F(a, b, c)
        _store(y, at, first, N, STORE)
        _store(y1, at, second, N, STORE)


def stream(spec: Spec, f: Any) -> Prepared:
    """`f` is a `@triton.jit` function of one float32 block per array read.

    Where nothing is read it is the constant to write. Where three arrays are read and two written
    it returns both.
    """
    reads = {f"x{i}": tensor.name for i, tensor in enumerate(spec.io.reads)}
    writes = dict(zip(("y", "y1"), (tensor.name for tensor in spec.io.writes), strict=False))
    width = min(128 // tensor.dtype.bits for tensor in (*spec.io.reads, *spec.io.writes))
    elements = spec.io.writes[0].elements
    function = (map_0, map_1, map_2, map_3)[len(reads)]
    fixed: dict[str, Any] = {"N": elements, "STORE": ".cs" if spec.streaming else ""}
    fixed["F" if reads else "VALUE"] = f
    if len(reads) == 3 and len(writes) == 1:
        fixed["y1"] = None

    def plan(choice: Choice) -> Plan:
        warps, vectors = int(choice["warps"]), int(choice["vectors"])
        block = warps * 32 * max(1, vectors // max(len(reads), 1)) * width
        grid = (tiles(elements, block), 1, 1)
        return Plan([Kernel(function, reads | writes, fixed | {"BLOCK": block}, grid, warps)])

    return choose(spec, plan, _CONFIGURATIONS)
