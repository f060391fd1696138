"""Pooling of NHWC images in Triton: maxima and means, forward and backward, as gathers.

A tile is pixels x channels: what depends on the pixel is formed once for its channels, which are
read and written in vectors. A block's first image and the place in it are formed in 64 bits; the
rest is 32-bit, with constant divisors.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, power_of_two, tiles
from ..backends.triton_rows import CONFIGURATIONS, present, rows_per_tile, warps_of
from ..spec import Choice, Prepared, Spec
from .max_pool2d_triton import float32, geometry

_CHANNELS = 256  # of one program


@triton.jit
def _pixels(N: tl.constexpr, PLANE: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """(64-bit first image, then per pixel: images further, place in its own, whether it exists)."""
    base = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS
    local = (base % PLANE).to(tl.int32) + tl.arange(0, ROWS)
    there = base + tl.arange(0, ROWS) < N
    return base // PLANE, local // PLANE, local % PLANE, there


@triton.jit
def _forward(
    x, y, offset,
    N: tl.constexpr, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Maxima and their places, or means where there is no offset."""
    CHUNKS: tl.constexpr = (C + BLOCK - 1) // BLOCK
    image, further, place, there = _pixels(N, OUT_H * OUT_W, ROWS, CHUNKS)
    channel = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    mask = there[:, None] & (channel < C)[None, :]
    source = x + image * (HEIGHT * WIDTH * C)
    top = place // OUT_W * STRIDE - PADDING
    left = place % OUT_W * STRIDE - PADDING
    best = tl.zeros((ROWS, BLOCK), tl.float32)
    inside = tl.zeros((ROWS, BLOCK), tl.int32)
    found = tl.zeros((ROWS, BLOCK), tl.int1)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            row, column = top + i, left + j
            seen = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
            element = ((further * HEIGHT + row) * WIDTH + column) * C
            seen = seen[:, None] & mask
            value = tl.load(source + (element[:, None] + channel[None, :]), mask=seen, other=0.0)
            value = float32(value)
            if offset is None:
                best += value
            else:
                wins = seen & ((value > best) | (value != value) | (found == 0))
                best = tl.where(wins, value, best)
                inside = tl.where(wins, i * KERNEL + j, inside)
                found = found | seen
    if offset is None:
        best *= 1.0 / (KERNEL * KERNEL)
    base = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS
    at = (base + tl.arange(0, ROWS))[:, None] * C + channel[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=mask, cache_modifier=STORE)
    if offset is not None:
        tl.store(offset + at, inside.to(tl.uint8), mask=mask, cache_modifier=STORE)


@triton.jit
def _backward(
    dy, offset, dx,
    N: tl.constexpr, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Each pixel of the image asks the windows that contain it."""
    CHUNKS: tl.constexpr = (C + BLOCK - 1) // BLOCK
    image, further, place, there = _pixels(N, HEIGHT * WIDTH, ROWS, CHUNKS)
    channel = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    mask = there[:, None] & (channel < C)[None, :]
    row = place // WIDTH + PADDING
    column = place % WIDTH + PADDING
    WINDOWS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE  # that contain one element, per axis
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for down in tl.static_range(WINDOWS - 1, -1, -1):
        for right in tl.static_range(WINDOWS - 1, -1, -1):
            up = row // STRIDE - down
            left = column // STRIDE - right
            i, j = row - up * STRIDE, column - left * STRIDE
            seen = (up >= 0) & (up < OUT_H) & (left >= 0) & (left < OUT_W)
            seen = (seen & (i < KERNEL) & (j < KERNEL))[:, None] & mask
            window = ((further * OUT_H + up) * OUT_W + left) * C
            source = image * (OUT_H * OUT_W * C) + (window[:, None] + channel[None, :])
            gradient = tl.load(dy + source, mask=seen, other=0.0).to(tl.float32)
            if offset is not None:
                maximum = tl.load(offset + source, mask=seen, other=255)
                gradient = tl.where(maximum == (i * KERNEL + j)[:, None], gradient, 0.0)
            total += gradient
    if offset is None:
        total *= 1.0 / (KERNEL * KERNEL)
    base = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS
    at = (base + tl.arange(0, ROWS))[:, None] * C + channel[None, :]
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=mask, cache_modifier=STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    written = spec.io.writes[0]
    channels = spec.dims["channels"]
    pixels = written.elements // max(channels, 1)
    block = min(power_of_two(channels), _CHANNELS)
    function = _forward if direction == "forward" else _backward
    sizes, _ = geometry(direction, spec)
    fixed = {name: sizes[name] for name in sizes if name in function.arg_names}
    fixed |= {"N": pixels, "C": channels, "BLOCK": block}
    pointers, absent = present(spec, ("x", "y", "dy", "dx", "offset"))
    absent = {name: value for name, value in absent.items() if name in function.arg_names}

    def plan(choice: Choice) -> Plan:
        per_tile = max(1, rows_per_tile(block, choice) // 4)  # windows are in flight too
        grid = (tiles(pixels, per_tile) * tiles(channels, block), 1, 1)
        constants = fixed | absent | {"ROWS": per_tile}
        warps = warps_of(per_tile * block * 2, choice)
        return Plan([Kernel(function, pointers, constants, grid, warps)])

    return choose(spec, plan, CONFIGURATIONS)
