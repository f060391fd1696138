"""RMSNorm and layer normalization of rows in Triton, with or without a residual add.

1. Layer normalization is RMSNorm with a mean: `mean` and `bias` are None where there is none. Each
   mean is corrected by the mean of what it leaves: a constant row has no deviations.
2. Backward is a persistent grid whose programs sum their rows by column in float32 registers. Where
   the row is too long for that, a first kernel leaves each row's means and a second one owns
   column chunks.
3. Where y becomes codes, these are of y as its dtype would store it, as in the steps.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..dtypes import float32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, tiles
from .triton_codes import put_codes
from .triton_rows import (
    BACKWARD_CONFIGURATIONS,
    LONGEST_BACKWARD,
    REGISTERS,
    backward_warps,
    kept,
    once,
    present,
    put,
    raw,
    resident,
    row_block,
    row_map,
    rows_per_tile,
    store,
    sum_of_partials,
    tile_rows,
)


@triton.jit
def _residual_sum(x, residual, h, at, mask, STORE: tl.constexpr):
    """x, or h = x + residual as stored (rounded), which is written on the way."""
    value = once(x, at, mask)
    if residual is not None:
        value = (value + once(residual, at, mask)).to(h.dtype.element_ty)
        tl.store(h + at, value, mask=mask, cache_modifier=STORE)
        value = value.to(tl.float32)
    return value


@triton.jit
def _not_negative(x):
    return tl.where(x < 0.0, 0.0, x)  # NaN stays, which tl.maximum would turn into 0


@triton.jit
def _put(
    value, y, q, scale, scales, x, row, start,
    M: tl.constexpr, N: tl.constexpr, FORMAT: tl.constexpr, SCALES: tl.constexpr,
    SM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """y, or codes of it where there is none."""
    if q is None:
        column = start + tl.arange(0, BLOCK)
        mask = (row < M)[:, None] & (column < N)[None, :]
        put(y, row[:, None] * N + column[None, :], value, mask, STORE)
    else:
        value = value.to(x.dtype.element_ty).to(tl.float32)
        put_codes(value, q, scale, scales, row, start, M, N, FORMAT, SCALES, SM, ROWS, BLOCK, STORE)


@triton.jit
def norm_forward(
    x, residual, weight, bias, h, y, mean, rstd, q, scale, scales,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    FORMAT: tl.constexpr, SCALES: tl.constexpr, SM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    w = kept(weight, column, column < N)[None, :]
    value = _residual_sum(x, residual, h, at, mask, STORE)
    if mean is None:
        r = tl.rsqrt(tl.sum(value * value, 1) / N + EPS)
        y_value = value * r[:, None] * w
    else:
        about = tl.sum(value, 1) / N
        value = tl.where(mask, value - about[:, None], 0.0)
        left = tl.sum(value, 1) / N
        variance = _not_negative(tl.sum(value * value, 1) / N - left * left)
        r = tl.rsqrt(variance + EPS)
        tl.store(mean + row, about + left, mask=row < M)
        b = kept(bias, column, column < N)[None, :]
        y_value = (value - left[:, None]) * r[:, None] * w + b
    if rstd is not None:
        tl.store(rstd + row, r, mask=row < M)
    _put(
        y_value, y, q, scale, scales, x, row, 0,
        M, N, FORMAT, SCALES, SM, ROWS, BLOCK, STORE,
    )  # fmt: skip


@triton.jit
def norm_forward_long(
    x, residual, weight, bias, h, y, mean, rstd, q, scale, scales,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    FORMAT: tl.constexpr, SCALES: tl.constexpr, SM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Each lane has a mean and squared deviations of its own (Welford), merged at the end."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    middle = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = kept(x, row * N + column, column < N)
        if residual is not None:
            value += kept(residual, row * N + column, column < N)
            value = value.to(h.dtype.element_ty).to(tl.float32)
        if mean is None:
            squares += value * value
        else:
            apart = tl.where(column < N, value - middle, 0.0)
            count += tl.where(column < N, 1.0, 0.0)
            middle += apart / tl.maximum(count, 1.0)
            squares += apart * tl.where(column < N, value - middle, 0.0)
    if mean is None:
        about = 0.0
        r = tl.rsqrt(tl.sum(squares, 0) / N + EPS)
    else:
        about = tl.sum(count * middle, 0) / N
        middle -= about
        left = tl.sum(count * middle, 0) / N
        total = tl.sum(squares + count * middle * middle, 0) / N
        r = tl.rsqrt(_not_negative(total - left * left) + EPS)
        about += left
        tl.store(mean + row, about)
    if rstd is not None:
        tl.store(rstd + row, r)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < N
        value = _residual_sum(x, residual, h, row * N + column, mask, STORE)
        value = (value - about) * r * kept(weight, column, mask)
        if bias is not None:
            value += kept(bias, column, mask)
        _put(
            value[None, :], y, q, scale, scales, x, row + tl.arange(0, 1), start,
            M, N, FORMAT, SCALES, SM, ROWS, BLOCK, STORE,
        )  # fmt: skip


@triton.jit
def norm_backward(
    dy, dh, x, weight, mean, rstd, dx, partial, partial_bias,
    M: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    w = kept(weight, column, column < N)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    row = tile_rows(ROWS)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    next_d, next_x = raw(dy, at, mask), raw(x, at, mask)
    for _ in range(tl.program_id(0), (M + ROWS - 1) // ROWS, PROGRAMS):
        d, r = next_d.to(tl.float32), kept(rstd, row, row < M)[:, None]
        xhat = next_x.to(tl.float32)
        if mean is not None:
            xhat -= kept(mean, row, row < M)[:, None]
        xhat *= r
        own, own_mask = at, mask
        row += PROGRAMS * ROWS  # the next tile is under way while this one is reduced
        mask = (row < M)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        next_d, next_x = raw(dy, at, mask), raw(x, at, mask)
        dweight += d * xhat
        g = d * w[None, :]
        value = g - xhat * (tl.sum(g * xhat, 1) / N)[:, None]
        if mean is not None:
            dbias += d
            value -= (tl.sum(g, 1) / N)[:, None]
        value *= r
        if dh is not None:
            value += once(dh, own, own_mask)
        put(dx, own, value, own_mask, STORE)
    place = tl.program_id(0) * N + column
    tl.store(partial + place, tl.sum(dweight, 0), mask=column < N)
    if mean is not None:
        tl.store(partial_bias + place, tl.sum(dbias, 0), mask=column < N)


@triton.jit
def norm_row_means(
    dy, x, weight, mean, rstd, dots, averages,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dots = mean(g · xhat), averages = mean(g) of each row, g = dy · weight."""
    row = tl.program_id(0).to(tl.int64)
    about = 0.0
    if mean is not None:
        about = tl.load(mean + row)
    dot = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < N
        g = kept(dy, row * N + column, mask) * kept(weight, column, mask)
        dot += g * (kept(x, row * N + column, mask) - about)
        total += g
    tl.store(dots + row, tl.sum(dot, 0) * tl.load(rstd + row) / N)
    if mean is not None:
        tl.store(averages + row, tl.sum(total, 0) / N)


@triton.jit
def norm_backward_long(
    dy, dh, x, weight, mean, rstd, dots, averages, dx, partial, partial_bias,
    M: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One chunk of columns (axis 0), every PROGRAMS-th row (axis 1)."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    w = kept(weight, column, mask)
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for index in range(tl.program_id(1), M, PROGRAMS):
        row = tl.cast(index, tl.int64)
        at = row * N + column
        d = once(dy, at, mask)
        r = tl.load(rstd + row)
        xhat = once(x, at, mask)
        if mean is not None:
            xhat -= tl.load(mean + row)
        xhat *= r
        dweight += d * xhat
        value = d * w - xhat * tl.load(dots + row)
        if mean is not None:
            dbias += d
            value -= tl.load(averages + row)
        value *= r
        if dh is not None:
            value += once(dh, at, mask)
        put(dx, at, value, mask, STORE)
    tl.store(partial + tl.program_id(1) * N + column, dweight, mask=mask)
    if mean is not None:
        tl.store(partial_bias + tl.program_id(1) * N + column, dbias, mask=mask)


def forward(spec: Spec, eps: float, code: str = "", scales: str = "") -> Prepared:
    """Operands x, weight, y, rstd; bias and mean of a layer_norm; residual and h where they are.

    code, scales: where there are q, scale and scales in place of y, as `put_codes` has them.
    """
    constants = {"EPS": eps, "FORMAT": code, "SCALES": scales, "SM": spec.target.sm}
    return row_map(spec, norm_forward, constants, long=norm_forward_long)


def backward(spec: Spec, normed: str) -> Prepared:
    """Operands dy, weight, rstd, dx, dweight, the input of the norm; mean and dbias; dh."""
    columns = spec.io.operands["dy"].shape[1]
    block, single = row_block(columns, LONGEST_BACKWARD)
    sums = {"partial": "dweight"}
    if "dbias" in spec.io.operands:
        sums["partial_bias"] = "dbias"

    def plan(choice: Choice) -> Plan:
        make = _backward if single else _backward_long
        kernels, programs, rows = make(spec, normed, list(sums), block, choice)
        partials = [Tensor(name, (programs, columns), float32) for name in sums]
        last = sum_of_partials(spec, sums, programs, columns)
        return Plan([*kernels, last], [*partials, *rows])

    return choose(spec, plan, BACKWARD_CONFIGURATIONS)


def _backward(
    spec: Spec, normed: str, sums: list[str], block: int, choice: Choice
) -> tuple[list[Kernel], int, list[Tensor]]:
    rows, columns = spec.io.operands["dy"].shape
    per_tile = rows_per_tile(block, choice)
    warps = backward_warps(spec, per_tile * block, choice)
    programs = resident(spec, warps, tiles(rows, per_tile))
    constants = {"M": rows, "N": columns, "PROGRAMS": programs, "ROWS": per_tile}
    pointers, absent = _operands(spec, normed, sums)
    kernel = Kernel(
        norm_backward,
        pointers,
        constants | {"BLOCK": block, "STORE": store(spec)} | absent,
        (programs, 1, 1),
        warps,
        REGISTERS,
    )
    return [kernel], programs, []


def _backward_long(
    spec: Spec, normed: str, sums: list[str], block: int, choice: Choice
) -> tuple[list[Kernel], int, list[Tensor]]:
    rows, columns = spec.io.operands["dy"].shape
    warps, chunks = backward_warps(spec, block, choice), tiles(columns, block)
    programs = max(1, resident(spec, warps, rows * chunks) // chunks)
    pointers, absent = _operands(spec, normed, sums)
    means = ["dots", "averages"][: len(sums)]
    pointers |= {name: name for name in means}
    absent |= {name: None for name in ("dots", "averages") if name not in means}
    sizes = {"M": rows, "N": columns, "BLOCK": block}
    second = {"PROGRAMS": programs, "STORE": store(spec)}
    grids = (rows, 1, 1), (chunks, programs, 1)
    return (
        [
            _kernel(norm_row_means, pointers, sizes | absent, grids[0], warps, None),
            _kernel(
                norm_backward_long, pointers, sizes | second | absent, grids[1], warps, REGISTERS
            ),
        ],
        programs,
        [Tensor(name, (rows,), float32) for name in means],
    )


def _kernel(
    function: Any,
    pointers: dict[str, str],
    constants: dict[str, Any],
    grid: tuple[int, int, int],
    warps: int,
    registers: int | None,
) -> Kernel:
    """With what `function` takes, of what there is."""
    taken = function.arg_names
    return Kernel(
        function,
        {name: operand for name, operand in pointers.items() if name in taken},
        {name: value for name, value in constants.items() if name in taken},
        grid,
        warps,
        registers,
    )


def _operands(spec: Spec, normed: str, sums: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    pointers, absent = present(spec, ("dy", "dh", "weight", "mean", "rstd", "dx"))
    if "partial_bias" not in sums:
        absent["partial_bias"] = None
    return pointers | {"x": normed} | {name: name for name in sums}, absent
