"""Max-pooling of NCHW images in Triton, forward and backward, both as gathers.

1. One program per block of a flat run of outputs. Its first plane and the place in it are formed
   once in 64 bits; everything per element is 32-bit, with constant divisors.
2. Forward reads each window from global memory: neighbours' windows overlap in L1, so that DRAM
   sees each image once. Loads keep the default policy for that reason.
3. Backward asks, for each input element, the few windows that contain it whether their maximum was
   there: no atomics, no zeroing pass, sums in the order of the windows.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, tiles
from ..backends.triton import prepare as prepare_kernels
from ..spec import Prepared, Spec

_BLOCK, _WARPS = 1024, 8


@triton.jit
def _plane_and_place(PLANE: tl.constexpr, BLOCK: tl.constexpr):
    """(64-bit plane of the block's first element, then per element: planes further, place)."""
    base = tl.program_id(0).to(tl.int64) * BLOCK
    local = (base % PLANE).to(tl.int32) + tl.arange(0, BLOCK)
    return base // PLANE, local // PLANE, local % PLANE


@triton.jit
def forward(
    x, y, offset,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    plane, further, place = _plane_and_place(OUT_H * OUT_W, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image = x + plane * (HEIGHT * WIDTH)
    further *= HEIGHT * WIDTH
    top = place // OUT_W * STRIDE - PADDING
    left = place % OUT_W * STRIDE - PADDING
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    # Where every element is -inf the first one inside the image wins.
    where = tl.maximum(-top, 0) * KERNEL + tl.maximum(-left, 0)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            row = top + i
            column = left + j
            inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (at < N)
            value = tl.load(
                image + (further + row * WIDTH + column), mask=inside, other=float("-inf")
            ).to(tl.float32)
            wins = (value > best) | (value != value)
            best = tl.where(wins, value, best)
            where = tl.where(wins, i * KERNEL + j, where)
    tl.store(y + at, best.to(y.dtype.element_ty), mask=at < N, cache_modifier=STORE)
    tl.store(offset + at, where.to(tl.uint8), mask=at < N, cache_modifier=STORE)


@triton.jit
def backward(
    dy, offset, dx,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    plane, further, place = _plane_and_place(HEIGHT * WIDTH, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = plane * (OUT_H * OUT_W)
    further *= OUT_H * OUT_W
    row = place // WIDTH + PADDING
    column = place % WIDTH + PADDING
    WINDOWS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE  # that contain one element, per axis
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(WINDOWS):
        for j in tl.static_range(WINDOWS):
            out_row = row // STRIDE - (WINDOWS - 1 - i)
            out_column = column // STRIDE - (WINDOWS - 1 - j)
            inside_row = row - out_row * STRIDE
            inside_column = column - out_column * STRIDE
            there = (out_row >= 0) & (out_row < OUT_H) & (out_column >= 0) & (out_column < OUT_W)
            there = there & (inside_row < KERNEL) & (inside_column < KERNEL) & (at < N)
            source = further + out_row * OUT_W + out_column
            maximum = tl.load(offset + first + source, mask=there, other=255).to(tl.int32)
            gradient = tl.load(dy + first + source, mask=there, other=0.0).to(tl.float32)
            hit = there & (maximum == inside_row * KERNEL + inside_column)
            total += tl.where(hit, gradient, 0.0)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=at < N, cache_modifier=STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    written = spec.io.writes[0]
    pooled = spec.io.operands["offset"].shape
    constants = {
        "N": written.elements,
        "HEIGHT": spec.dims["height"],
        "WIDTH": spec.dims["width"],
        "OUT_H": pooled[2],
        "OUT_W": pooled[3],
        "KERNEL": spec.dims["kernel"],
        "STRIDE": spec.dims["stride"],
        "PADDING": spec.dims["padding"],
        "BLOCK": _BLOCK,
        "STORE": ".cs" if spec.streaming else "",
    }
    pointers = {name: name for name in spec.io.operands}
    function = forward if direction == "forward" else backward
    grid = (tiles(written.elements, _BLOCK), 1, 1)
    return prepare_kernels(spec, [Kernel(function, pointers, constants, grid, _WARPS)])
