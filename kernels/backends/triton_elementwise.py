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

from collections.abc import Mapping
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


@triton.jit
def map_4(
    x0, x1, x2, x3, y, y1, y2, y3,
    F: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Three results; where there is a fourth array, it is the first result again."""
    at = _offsets(BLOCK)
    a = _load(x0, at, N)
    b = _load(x1, at, N)
    c = _load(x2, at, N)
    d = _load(x3, at, N)
    first, second, third = F(a, b, c, d)
    _store(y, at, first, N, STORE)
    _store(y1, at, second, N, STORE)
    _store(y2, at, third, N, STORE)
    if y3 is not None:
        _store(y3, at, first, N, STORE)


@triton.jit
def add_channels(
    x, bias, y,
    N: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    at = _offsets(BLOCK)
    base = tl.program_id(0).to(tl.int64) * BLOCK % (CHANNELS * PIXELS)
    channel = (base.to(tl.int32) + tl.arange(0, BLOCK)) // PIXELS % CHANNELS
    b = tl.load(bias + channel).to(tl.float32)
    _store(y, at, _load(x, at, N) + b, N, STORE)


@triton.jit
def spread_planes(
    dy, dx,
    N: tl.constexpr, PIXELS: tl.constexpr, SCALE: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    at = _offsets(BLOCK)
    base = tl.program_id(0).to(tl.int64) * BLOCK
    further = ((base % PIXELS).to(tl.int32) + tl.arange(0, BLOCK)) // PIXELS
    value = tl.load(dy + base // PIXELS + further, mask=at < N, other=0.0).to(tl.float32)
    _store(dx, at, value * SCALE, N, STORE)


def stream(spec: Spec, f: Any) -> Prepared:
    """`f` is a `@triton.jit` function of one float32 block per array read.

    Where nothing is read it is the constant to write. Where three arrays are read and two written
    it returns both, where four are read three values.
    """
    count = len(spec.io.reads)
    pointers = {f"x{i}": tensor.name for i, tensor in enumerate(spec.io.reads)}
    places = ("y", "y1", "y2", "y3")
    pointers |= dict(zip(places, (tensor.name for tensor in spec.io.writes), strict=False))
    function = (map_0, map_1, map_2, map_3, map_4)[count]
    constants: dict[str, Any] = {"F" if count else "VALUE": f}
    constants |= {name: None for name in places if name in function.arg_names}
    return flat(spec, function, pointers, constants)


def flat(
    spec: Spec, function: Any, pointers: Mapping[str, str], constants: Mapping[str, Any]
) -> Prepared:
    """`function` over a flat run of outputs, as above: it has N, BLOCK and STORE too."""
    arrays = [*spec.io.reads, *spec.io.writes]
    width = min(128 // array.dtype.bits for array in arrays)
    reads, elements = max(len(spec.io.reads), 1), spec.io.writes[0].elements
    fixed = {"N": elements, "STORE": ".cs" if spec.streaming else ""}
    fixed |= {name: value for name, value in constants.items() if name not in pointers}

    def plan(choice: Choice) -> Plan:
        warps, vectors = int(choice["warps"]), int(choice["vectors"])
        block = warps * 32 * max(1, vectors // reads) * width
        grid = (tiles(elements, block), 1, 1)
        return Plan([Kernel(function, pointers, fixed | {"BLOCK": block}, grid, warps)])

    return choose(spec, plan, _CONFIGURATIONS)
