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

from ..spec import Prepared, Spec
from .triton import Kernel, prepare, tiles

_THREADS = 256
_VECTORS = 4  # 16-byte loads in flight per thread, shared by the arrays that are read


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
    x0, x1, x2, y, F: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr
):
    at = _offsets(BLOCK)
    a = _load(x0, at, N)
    b = _load(x1, at, N)
    c = _load(x2, at, N)
    _store(y, at, F(a, b, c), N, STORE)


def stream(spec: Spec, f: Any) -> Prepared:
    """`f` is a `@triton.jit` function of one float32 block per array read.

    Where nothing is read it is the constant to write.
    """
    reads = [tensor.name for tensor in spec.io.reads]
    (written,) = spec.io.writes
    vectors = max(1, _VECTORS // max(len(reads), 1))
    block = _THREADS * vectors * (128 // written.dtype.bits)
    constants: dict[str, Any] = {
        "N": written.elements,
        "BLOCK": block,
        "STORE": ".cs" if spec.streaming else "",
    }
    constants["F" if reads else "VALUE"] = f
    pointers = {f"x{i}": name for i, name in enumerate(reads)} | {"y": written.name}
    function = (map_0, map_1, map_2, map_3)[len(reads)]
    grid = (tiles(written.elements, block), 1, 1)
    return prepare(spec, [Kernel(function, pointers, constants, grid, _THREADS // 32)])
