"""Batch normalization of NHWC images in Triton: sums by column (channel) over rows (pixels).

A program has a chunk of columns and a share of the rows, and leaves what it found of them; shares
are merged in a fixed order. A lane has rows of its own, as many of them as its neighbours but for
the last: a division is one for all.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, power_of_two, tiles
from .triton_channel import merging, normalize, normalize_backward, over_images, same, scratch
from .triton_rows import (
    BACKWARD_CONFIGURATIONS,
    backward_warps,
    kept,
    resident,
    rows_per_tile,
    sum_of_partials,
)

_COLUMNS = 1024  # of one program


@triton.jit
def _rows_of(step, M: tl.constexpr, N: tl.constexpr, SHARE: tl.constexpr,
             ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(offsets, mask) of a tile of this program's share (axis 1) of its columns (axis 0)."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64) * SHARE + step * ROWS + tl.arange(0, ROWS)
    return row[:, None] * N + column[None, :], (row < M)[:, None] & (column < N)[None, :]


@triton.jit
def column_moments(
    x, means, deviations,
    M: tl.constexpr, N: tl.constexpr, SHARE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    middle = tl.zeros((ROWS, BLOCK), tl.float32)
    for step in range(SHARE // ROWS):
        at, mask = _rows_of(step, M, N, SHARE, ROWS, BLOCK)
        value = kept(x, at, mask)
        apart = tl.where(mask, value - middle, 0.0)
        middle += apart * (1.0 / (step + 1))
        squares += apart * tl.where(mask, value - middle, 0.0)
    own = tl.minimum(M - tl.program_id(1).to(tl.int64) * SHARE, SHARE).to(tl.int32)
    count = tl.maximum(own - tl.arange(0, ROWS) + ROWS - 1, 0) // ROWS
    count = count.to(tl.float32)[:, None]
    about = tl.sum(count * middle, 0) / own
    middle -= about[None, :]
    left = tl.sum(count * middle, 0) / own
    total = tl.sum(squares + count * middle * middle, 0) - left * left * own
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(1) * N + column
    tl.store(means + place, about + left, mask=column < N)
    tl.store(deviations + place, tl.where(total < 0.0, 0.0, total), mask=column < N)


@triton.jit
def column_dots(
    dy, x, mean, rstd, projections, sums,
    M: tl.constexpr, N: tl.constexpr, SHARE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of dy · xhat and of dy."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    middle = kept(mean, column, column < N)[None, :]
    dot = tl.zeros((ROWS, BLOCK), tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for step in range(SHARE // ROWS):
        at, mask = _rows_of(step, M, N, SHARE, ROWS, BLOCK)
        d = kept(dy, at, mask)
        dot += d * tl.where(mask, kept(x, at, mask) - middle, 0.0)
        total += d
    place = tl.program_id(1) * N + column
    projected = tl.sum(dot, 0) * kept(rstd, column, column < N)
    tl.store(projections + place, projected, mask=column < N)
    tl.store(sums + place, tl.sum(total, 0), mask=column < N)


def training(spec: Spec, eps: float, momentum: float) -> Prepared:
    """Operands x, weight, bias, running_mean, running_var, y, and those updated, mean, rstd."""
    constants = {"EPS": eps, "RUNNING": False, "RELU": False}

    def plan(choice: Choice) -> Plan:
        first, parts, share = _shares(spec, column_moments, "x means deviations", choice)
        last = over_images(
            spec, normalize, same("x weight bias mean rstd y"), constants, _FLAT, last=True
        )
        kernels = [first, merging(spec, eps, momentum, parts, share), last]
        return Plan(kernels, scratch(("means", "deviations"), parts * spec.dims["channels"]))

    return choose(spec, plan, BACKWARD_CONFIGURATIONS)


def backward(spec: Spec) -> Prepared:
    """Operands dy, x, weight, mean, rstd, dx, dweight, dbias."""
    channels = spec.dims["channels"]
    values = spec.io.operands["x"].elements // channels
    constants: dict[str, Any] = {"RELU": False, "VALUES": values, "bias": None}
    partials = {"projections": "dweight", "sums": "dbias"}

    def plan(choice: Choice) -> Plan:
        names = "dy x mean rstd projections sums"
        first, parts, _ = _shares(spec, column_dots, names, choice)
        total = sum_of_partials(spec, partials, parts, channels)
        given = same("dy x weight mean rstd dweight dbias dx")
        last = over_images(spec, normalize_backward, given, constants, _FLAT, last=True)
        return Plan([first, total, last], scratch(tuple(partials), parts * channels))

    return choose(spec, plan, BACKWARD_CONFIGURATIONS)


_FLAT: Choice = {"tile": 4096, "per_thread": 16}  # of the last kernel, which has no sums


def _shares(spec: Spec, function: Any, names: str, choice: Choice) -> tuple[Kernel, int, int]:
    """(launch, shares of the rows, rows of a share) of a kernel that sums by column."""
    columns = spec.dims["channels"]
    rows = spec.io.operands["x"].elements // columns
    block = min(power_of_two(columns), _COLUMNS)
    chunks, per_tile = tiles(columns, block), rows_per_tile(block, choice)
    warps = backward_warps(spec, per_tile * block, choice)
    walked = tiles(rows, per_tile)
    programs = max(1, resident(spec, warps, walked * chunks) // chunks)
    share = tiles(walked, programs) * per_tile
    parts = tiles(rows, share)
    sizes = {"M": rows, "N": columns, "SHARE": share, "ROWS": per_tile, "BLOCK": block}
    return Kernel(function, same(names), sizes, (chunks, parts, 1), warps), parts, share
