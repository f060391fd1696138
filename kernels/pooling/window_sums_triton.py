"""Means over windows of NCHW images in Triton, forward and backward, both as gathers.

As max_pool2d_triton.py: one program per block of a flat run of outputs; neighbours' windows overlap
in L1. A window's padding counts as zeros. In backward a lane owns a stride x stride cell of the
image and adds the gradients of the few windows that contain an element, in their order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..spec import Prepared, Spec
from .max_pool2d_triton import geometry, over_lanes, plane_and_place

LACKS = {"lp_pool2d": "of tier 3: CUDA C++ and torch"}


@triton.jit
def means(
    x, y,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    plane, further, place = plane_and_place(N, OUT_H * OUT_W, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image = x + plane * (HEIGHT * WIDTH)
    top = place // OUT_W * STRIDE - PADDING
    left = place % OUT_W * STRIDE - PADDING
    corner = further * (HEIGHT * WIDTH) + top * WIDTH + left
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(KERNEL):
        there_row = (top + i >= 0) & (top + i < HEIGHT)
        for j in tl.static_range(KERNEL):
            there = there_row & (left + j >= 0) & (left + j < WIDTH)
            value = tl.load(image + (corner + i * WIDTH + j), mask=there, other=0.0)
            total += value.to(tl.float32)
    mean = total * (1.0 / (KERNEL * KERNEL))
    tl.store(y + at, mean.to(y.dtype.element_ty), mask=at < N, cache_modifier=STORE)


@triton.jit
def means_backward(
    dy, dx,
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
    images = dx + plane * (HEIGHT * WIDTH)
    window = further * (OUT_H * OUT_W) + cell_row * OUT_W + cell_column
    row = cell_row * STRIDE - PADDING
    column = cell_column * STRIDE - PADDING
    element = further * (HEIGHT * WIDTH) + row * WIDTH + column
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
                        source = gradients + (window - (down * OUT_W + right))
                        total += tl.load(source, mask=seen, other=0.0).to(tl.float32)
            written = there & (row + r >= 0) & (row + r < HEIGHT)
            written = written & (column + c >= 0) & (column + c < WIDTH)
            mean = total * (1.0 / (KERNEL * KERNEL))
            tl.store(
                images + (element + r * WIDTH + c),
                mean.to(dx.dtype.element_ty),
                mask=written,
                cache_modifier=STORE,
            )


@triton.jit
def _start(window, LENGTH: tl.constexpr, WINDOWS: tl.constexpr):
    """First element of an adaptive window; of its successor, rounded up, the end."""
    return window * LENGTH // WINDOWS


@triton.jit
def _end(window, LENGTH: tl.constexpr, WINDOWS: tl.constexpr):
    return ((window + 1) * LENGTH + WINDOWS - 1) // WINDOWS


@triton.jit
def adaptive_means(
    x, y,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Windows have at most ROWS x COLUMNS elements."""
    plane, further, place = plane_and_place(N, OUT_H * OUT_W, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image = x + plane * (HEIGHT * WIDTH)
    top, bottom = _start(place // OUT_W, HEIGHT, OUT_H), _end(place // OUT_W, HEIGHT, OUT_H)
    left, right = _start(place % OUT_W, WIDTH, OUT_W), _end(place % OUT_W, WIDTH, OUT_W)
    corner = further * (HEIGHT * WIDTH) + top * WIDTH + left
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROWS):
        for j in range(COLUMNS):
            there = (top + i < bottom) & (left + j < right)
            value = tl.load(image + (corner + i * WIDTH + j), mask=there, other=0.0)
            total += value.to(tl.float32)
    mean = total / ((bottom - top) * (right - left)).to(tl.float32)
    tl.store(y + at, mean.to(y.dtype.element_ty), mask=at < N, cache_modifier=STORE)


@triton.jit
def adaptive_means_backward(
    dy, dx,
    N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """An element is in at most ROWS x COLUMNS windows."""
    plane, further, place = plane_and_place(N, HEIGHT * WIDTH, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gradients = dy + plane * (OUT_H * OUT_W)
    row, column = place // WIDTH, place % WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROWS):
        up = row * OUT_H // HEIGHT + i
        high = _end(up, HEIGHT, OUT_H) - _start(up, HEIGHT, OUT_H)
        for j in range(COLUMNS):
            left = column * OUT_W // WIDTH + j
            wide = _end(left, WIDTH, OUT_W) - _start(left, WIDTH, OUT_W)
            seen = (up < OUT_H) & (_start(up, HEIGHT, OUT_H) <= row)
            seen = seen & (left < OUT_W) & (_start(left, WIDTH, OUT_W) <= column)
            source = gradients + (further * (OUT_H * OUT_W) + up * OUT_W + left)
            gradient = tl.load(source, mask=seen, other=0.0).to(tl.float32)
            total += gradient / (high * wide).to(tl.float32)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=at < N, cache_modifier=STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "adaptive_avg_pool2d":
        return _adaptive(direction, spec)
    constants, lanes = geometry(direction, spec)
    function = means if direction == "forward" else means_backward
    return over_lanes(spec, function, constants, lanes)


def _adaptive(direction: str, spec: Spec) -> Prepared:
    height, width = spec.dims["height"], spec.dims["width"]
    out_h, out_w = spec.dims["out_height"], spec.dims["out_width"]
    lanes = spec.io.writes[0].elements
    if direction == "forward":
        function, rows, columns = adaptive_means, _most(height, out_h), _most(width, out_w)
    else:
        function, rows, columns = adaptive_means_backward, _most(out_h, height), _most(out_w, width)
    constants = {
        "N": lanes,
        "HEIGHT": height,
        "WIDTH": width,
        "OUT_H": out_h,
        "OUT_W": out_w,
        "ROWS": rows,
        "COLUMNS": columns,
        "STORE": ".cs" if spec.streaming else "",
    }
    return over_lanes(spec, function, constants, lanes)


def _most(length: int, windows: int) -> int:
    """Elements of the longest of `windows` that are spread over `length`."""
    return length // windows + (2 if length % windows else 0)
