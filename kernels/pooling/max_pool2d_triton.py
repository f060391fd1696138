"""Max-pooling of NCHW images in Triton, forward and backward, both as gathers.

1. One program per block of a flat run of outputs. Its first plane and the place in it are formed
   once in 64 bits; everything per element is 32-bit, with constant divisors.
2. Forward reads each window from global memory: neighbours' windows overlap in L1, so that DRAM
   sees each image once. Loads keep the default policy for that reason. Indices are clamped to the
   image instead of masked: fewer instructions.
3. Backward asks, for each input element, the few windows that contain it whether their maximum was
   there: no atomics, no zeroing pass, sums in the order of the windows. A lane owns a stride ×
   stride cell of the image, in which every element's place in its windows is a constant.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, tiles
from ..spec import Choice, Prepared, Spec
from .max_pool2d import pooled

CONFIGURATIONS = (
    {"warps": 8, "each": 4},
    {"warps": 4, "each": 4},
    {"warps": 4, "each": 8},
    {"warps": 8, "each": 2},
)
"""each: lanes of the flat run that a thread has."""


def block_of(choice: Choice) -> tuple[int, int]:
    """(lanes of a program, its warps)."""
    warps = int(choice["warps"])
    return 32 * warps * int(choice["each"]), warps


@triton.jit
def plane_and_place(N: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):
    """(64-bit plane of the block's first lane, then per lane: planes further, place in its own).

    Lanes beyond N repeat the last one, so that what they read exists.
    """
    base = tl.program_id(0).to(tl.int64) * BLOCK
    last = tl.minimum(N - 1 - base, BLOCK - 1).to(tl.int32)
    local = (base % PLANE).to(tl.int32) + tl.minimum(tl.arange(0, BLOCK), last)
    return base // PLANE, local // PLANE, local % PLANE


@triton.jit
def float32(value):
    """As float32. bfloat16 by its bits: comparisons then stay in float32, not packed halves."""
    if value.dtype == tl.bfloat16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def _behind_bias(value, b, STORED: tl.constexpr):
    """relu(x + bias), the sum as its dtype stores it."""
    value = float32((value + b).to(STORED))
    return tl.where(value < 0.0, 0.0, value)


@triton.jit
def forward(
    x, bias, y, offset, CHANNELS: tl.constexpr,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    plane, further, place = plane_and_place(N, OUT_H * OUT_W, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image = x + plane * (HEIGHT * WIDTH)
    if bias is not None:
        b = tl.load(bias + (plane % CHANNELS + further) % CHANNELS).to(tl.float32)
    further *= HEIGHT * WIDTH
    top = place // OUT_W * STRIDE - PADDING
    left = place % OUT_W * STRIDE - PADDING
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = further  # the element that is the maximum, counted as `element` is
    for i in tl.static_range(KERNEL):
        # Outside the image the nearest element of the window is read again: it changes nothing.
        row = tl.minimum(tl.maximum(top + i, 0), HEIGHT - 1)
        for j in tl.static_range(KERNEL):
            column = tl.minimum(tl.maximum(left + j, 0), WIDTH - 1)
            element = further + row * WIDTH + column
            value = float32(tl.load(image + element))
            if bias is not None:
                value = _behind_bias(value, b, x.dtype.element_ty)
            if i + j == 0:
                best, where = value, element
            else:
                wins = (value > best) | (value != value)
                best = tl.where(wins, value, best)
                where = tl.where(wins, element, where)
    where -= further
    inside = (where // WIDTH - top) * KERNEL + (where % WIDTH - left)
    if bias is not None:
        inside = tl.where(best <= 0.0, 255, inside)  # clipped: nothing comes back
    tl.store(y + at, best.to(y.dtype.element_ty), mask=at < N, cache_modifier=STORE)
    tl.store(offset + at, inside.to(tl.uint8), mask=at < N, cache_modifier=STORE)


@triton.jit
def backward(
    dy, offset, dx, sums,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    CELLS_H: tl.constexpr, CELLS_W: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    plane, further, place = plane_and_place(N, CELLS_H * CELLS_W, BLOCK)
    there = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK) < N
    cell_row = place // CELLS_W
    cell_column = place % CELLS_W
    gradients = dy + plane * (OUT_H * OUT_W)
    maxima = offset + plane * (OUT_H * OUT_W)
    images = dx + plane * (HEIGHT * WIDTH)
    window = further * (OUT_H * OUT_W) + cell_row * OUT_W + cell_column
    row = cell_row * STRIDE - PADDING
    column = cell_column * STRIDE - PADDING
    element = further * (HEIGHT * WIDTH) + row * WIDTH + column
    if sums is not None:  # of the windows, that of their first cell; a block has two planes at most
        own = there & (cell_row < OUT_H) & (cell_column < OUT_W)
        own = own & (tl.load(maxima + window, mask=own, other=255) != 255)
        given = tl.load(gradients + window, mask=own, other=0.0).to(tl.float32)
        pair = sums + tl.program_id(0).to(tl.int64) * 2
        tl.store(pair, tl.sum(tl.where(further == 0, given, 0.0), 0))
        tl.store(pair + 1, tl.sum(tl.where(further == 1, given, 0.0), 0))
    # Windows that contain one element, per axis, less one.
    MORE: tl.constexpr = (KERNEL - 1) // STRIDE
    for r in tl.static_range(STRIDE):
        for c in tl.static_range(STRIDE):
            total = tl.zeros((BLOCK,), tl.float32)
            for down in tl.static_range(MORE, -1, -1):
                for right in tl.static_range(MORE, -1, -1):
                    if r + down * STRIDE < KERNEL and c + right * STRIDE < KERNEL:
                        up = cell_row - down
                        left = cell_column - right
                        seen = there & (up >= 0) & (up < OUT_H) & (left >= 0) & (left < OUT_W)
                        source = window - (down * OUT_W + right)
                        maximum = tl.load(maxima + source, mask=seen, other=255)
                        hit = maximum == (r + down * STRIDE) * KERNEL + c + right * STRIDE
                        gradient = tl.load(gradients + source, mask=seen, other=0.0)
                        total += tl.where(hit, gradient.to(tl.float32), 0.0)
            written = there & (row + r >= 0) & (row + r < HEIGHT)
            written = written & (column + c >= 0) & (column + c < WIDTH)
            tl.store(
                images + (element + r * WIDTH + c),
                total.to(dx.dtype.element_ty),
                mask=written,
                cache_modifier=STORE,
            )


def prepare(direction: str, spec: Spec) -> Prepared:
    constants, lanes = geometry(direction, spec)
    function = forward if direction == "forward" else backward
    plain: dict[str, Any] = {"bias": None, "CHANNELS": 1} if function is forward else {"sums": None}
    constants |= plain
    return over_lanes(spec, function, constants, lanes)


def over_lanes(spec: Spec, function: Any, constants: dict[str, Any], lanes: int) -> Prepared:
    """`function` of the operands over a flat run of `lanes`."""
    pointers = {name: name for name in spec.io.operands}

    def plan(choice: Choice) -> Plan:
        block, warps = block_of(choice)
        grid = (tiles(lanes, block), 1, 1)
        return Plan([Kernel(function, pointers, constants | {"BLOCK": block}, grid, warps)])

    return choose(spec, plan, CONFIGURATIONS)


def geometry(direction: str, spec: Spec) -> tuple[dict[str, Any], int]:
    """(compile-time constants of a window in images but for BLOCK, lanes: N)."""
    dims = spec.dims
    planes, height, width = dims["images"] * dims["channels"], dims["height"], dims["width"]
    kernel, stride, padding = dims["kernel"], dims["stride"], dims["padding"]
    out_h, out_w = (pooled(n, kernel, stride, padding) for n in (height, width))
    constants: dict[str, Any] = {
        "HEIGHT": height,
        "WIDTH": width,
        "OUT_H": out_h,
        "OUT_W": out_w,
        "KERNEL": kernel,
        "STRIDE": stride,
        "PADDING": padding,
        "STORE": ".cs" if spec.streaming else "",
    }
    if direction == "forward":
        lanes = planes * out_h * out_w
    else:
        cells_h, cells_w = tiles(height + padding, stride), tiles(width + padding, stride)
        constants |= {"CELLS_H": cells_h, "CELLS_W": cells_w}
        lanes = planes * cells_h * cells_w
    return constants | {"N": lanes}, lanes
