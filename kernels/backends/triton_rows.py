"""Row reductions in Triton: row sums, and RMSNorm with or without a residual add.

1. A row that fits is one tile: read once, kept in registers, reduced, written. Short rows share a
   program, so that a program always has some 16 KB in flight.
2. A row too long for registers is walked in chunks, twice where its statistic is needed first: the
   second walk is the schedule's re-read.
3. Column sums of backward: a persistent grid whose programs sum their rows in float32 registers and
   write one row of partials each; a second kernel adds the partials in a fixed order. Where the
   row is too long for that, a first kernel leaves each row's dot product and a second one owns
   column chunks.
4. 64-bit row offsets; loads of data used once are evict-first, stores streaming; the weight and
   the partials, read by every program, keep the default policy.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..dtypes import float32
from ..operation import Tensor
from ..spec import Prepared, Spec
from .triton import Kernel, power_of_two, prepare, tiles

_TILE = 4096  # elements of one program's tile where rows are shorter
_LONGEST = 16384  # columns of one tile: 16 a thread with 1024 threads
_LONGEST_BACKWARD = 8192  # more is live there: 8 a thread
_CHUNK = 4096  # columns at a time where rows are longer
_PER_THREAD = 16  # elements of a tile
_RESIDENT_THREADS, _REGISTERS = 1024, 64  # of backward, per multiprocessor and per thread
_SUM_ROWS, _SUM_COLUMNS = 64, 32  # tile of the second kernel: whole 128-byte lines of float32


@triton.jit
def _tile_rows(ROWS: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def _raw(x, at, mask):
    return tl.load(x + at, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _once(x, at, mask):
    return _raw(x, at, mask).to(tl.float32)


@triton.jit
def _kept(x, at, mask):
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _put(y, at, value, mask, STORE: tl.constexpr):
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask, cache_modifier=STORE)


@triton.jit
def row_sum(x, sums, M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = _tile_rows(ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = (row < M)[:, None] & (column < N)[None, :]
        total += _once(x, row[:, None] * N + column[None, :], mask)
    tl.store(sums + row, tl.sum(total, 1), mask=row < M)


@triton.jit
def _residual_sum(x, residual, h, at, mask, STORE: tl.constexpr):
    """x, or h = x + residual as stored (rounded), which is written on the way."""
    value = _once(x, at, mask)
    if residual is not None:
        value = (value + _once(residual, at, mask)).to(h.dtype.element_ty)
        tl.store(h + at, value, mask=mask, cache_modifier=STORE)
        value = value.to(tl.float32)
    return value


@triton.jit
def rms_forward(
    x, residual, weight, h, y, rstd,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = _tile_rows(ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    w = _kept(weight, column, column < N)
    value = _residual_sum(x, residual, h, at, mask, STORE)
    r = tl.rsqrt(tl.sum(value * value, 1) / N + EPS)
    tl.store(rstd + row, r, mask=row < M)
    _put(y, at, value * r[:, None] * w[None, :], mask, STORE)


@triton.jit
def rms_forward_long(
    x, residual, weight, h, y, rstd,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = _kept(x, row * N + column, column < N)
        if residual is not None:
            value += _kept(residual, row * N + column, column < N)
            value = value.to(h.dtype.element_ty).to(tl.float32)
        squares += value * value
    r = tl.rsqrt(tl.sum(squares, 0) / N + EPS)
    tl.store(rstd + row, r)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < N
        value = _residual_sum(x, residual, h, row * N + column, mask, STORE)
        w = _kept(weight, column, mask)
        _put(y, row * N + column, value * r * w, mask, STORE)


@triton.jit
def rms_backward(
    dy, dh, x, weight, rstd, dx, partial,
    M: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    w = _kept(weight, column, column < N)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    row = _tile_rows(ROWS)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    next_d, next_x = _raw(dy, at, mask), _raw(x, at, mask)
    for _ in range(tl.program_id(0), (M + ROWS - 1) // ROWS, PROGRAMS):
        d, r = next_d.to(tl.float32), _kept(rstd, row, row < M)[:, None]
        xhat = next_x.to(tl.float32) * r
        own, own_mask = at, mask
        row += PROGRAMS * ROWS  # the next tile is under way while this one is reduced
        mask = (row < M)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        next_d, next_x = _raw(dy, at, mask), _raw(x, at, mask)
        dweight += d * xhat
        g = d * w[None, :]
        value = (g - xhat * (tl.sum(g * xhat, 1) / N)[:, None]) * r
        if dh is not None:
            value += _once(dh, own, own_mask)
        _put(dx, own, value, own_mask, STORE)
    tl.store(partial + tl.program_id(0) * N + column, tl.sum(dweight, 0), mask=column < N)


@triton.jit
def rms_row_dots(dy, x, weight, rstd, dots, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """dots = mean(dy · weight · xhat) of each row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < N
        d = _kept(dy, row * N + column, mask)
        total += d * _kept(weight, column, mask) * _kept(x, row * N + column, mask)
    tl.store(dots + row, tl.sum(total, 0) * tl.load(rstd + row) / N)


@triton.jit
def rms_backward_long(
    dy, dh, x, weight, rstd, dots, dx, partial,
    M: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One chunk of columns (axis 0), every PROGRAMS-th row (axis 1)."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    w = _kept(weight, column, mask)
    dweight = tl.zeros((BLOCK,), tl.float32)
    for index in range(tl.program_id(1), M, PROGRAMS):
        row = tl.cast(index, tl.int64)
        at = row * N + column
        d = _once(dy, at, mask)
        r = tl.load(rstd + row)
        xhat = _once(x, at, mask) * r
        dweight += d * xhat
        value = (d * w - xhat * tl.load(dots + row)) * r
        if dh is not None:
            value += _once(dh, at, mask)
        _put(dx, at, value, mask, STORE)
    tl.store(partial + tl.program_id(1) * N + column, dweight, mask=mask)


@triton.jit
def column_sum(
    partial, out,
    ROWS: tl.constexpr, N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK_ROWS, BLOCK), tl.float32)
    for start in range(0, ROWS, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        mask = (row < ROWS)[:, None] & (column < N)[None, :]
        total += _kept(partial, row[:, None] * N + column[None, :], mask)
    _put(out, column, tl.sum(total, 0), column < N, STORE)


def row_sums(spec: Spec) -> Prepared:
    """sums = the float32 sum of each row of x."""
    rows, columns = spec.io.reads[0].shape
    block = min(power_of_two(columns), _CHUNK)
    tile = {"M": rows, "N": columns, "ROWS": _rows_per_tile(block), "BLOCK": block}
    grid = (tiles(rows, tile["ROWS"]), 1, 1)
    kernel = Kernel(row_sum, {"x": "x", "sums": "sums"}, tile, grid, _warps(tile["ROWS"] * block))
    return prepare(spec, [kernel])


def rms_norm_forward(spec: Spec, eps: float) -> Prepared:
    """Operands x, weight, y, rstd; where the operation reads a residual, it and h."""
    rows, columns = spec.io.operands["x"].shape
    block, single = _row_block(columns, _LONGEST)
    per_tile = _rows_per_tile(block) if single else 1
    constants = {
        "M": rows,
        "N": columns,
        "EPS": eps,
        "ROWS": per_tile,
        "BLOCK": block,
        "STORE": _store(spec),
    }
    pointers, absent = _pointers(spec, ("x", "residual", "weight", "h", "y", "rstd"))
    function = rms_forward if single else rms_forward_long
    grid = (tiles(rows, per_tile), 1, 1)
    return prepare(
        spec, [Kernel(function, pointers, constants | absent, grid, _warps(per_tile * block))]
    )


def rms_norm_backward(spec: Spec, normed: str) -> Prepared:
    """Operands dy, weight, rstd, dx, dweight, the input of the norm, and dh where it is read."""
    columns = spec.io.operands["dy"].shape[1]
    block, single = _row_block(columns, _LONGEST_BACKWARD)
    kernels, scratch = (_backward if single else _backward_long)(spec, normed, block)
    partial = scratch[0]
    sums = {
        "ROWS": partial.shape[0],
        "N": columns,
        "BLOCK_ROWS": _SUM_ROWS,
        "BLOCK": _SUM_COLUMNS,
        "STORE": _store(spec),
    }
    total = Kernel(
        column_sum,
        {"partial": "partial", "out": "dweight"},
        sums,
        (tiles(columns, _SUM_COLUMNS), 1, 1),
        _warps(_SUM_ROWS * _SUM_COLUMNS),
    )
    return prepare(spec, [*kernels, total], scratch)


def _backward(spec: Spec, normed: str, block: int) -> tuple[list[Kernel], list[Tensor]]:
    rows, columns = spec.io.operands["dy"].shape
    per_tile = _rows_per_tile(block)
    warps = _backward_warps(spec, per_tile * block)
    programs = _programs(spec, warps, tiles(rows, per_tile))
    partial = Tensor("partial", (programs, columns), float32)
    constants = {
        "M": rows,
        "N": columns,
        "PROGRAMS": programs,
        "ROWS": per_tile,
        "BLOCK": block,
        "STORE": _store(spec),
    }
    pointers, absent = _pointers(spec, ("dy", "dh", "weight", "rstd", "dx"))
    pointers |= {"x": normed, "partial": "partial"}
    kernel = Kernel(rms_backward, pointers, constants | absent, (programs, 1, 1), warps, _REGISTERS)
    return [kernel], [partial]


def _backward_long(spec: Spec, normed: str, block: int) -> tuple[list[Kernel], list[Tensor]]:
    rows, columns = spec.io.operands["dy"].shape
    warps, chunks = _backward_warps(spec, block), tiles(columns, block)
    programs = max(1, _programs(spec, warps, rows * chunks) // chunks)
    partial = Tensor("partial", (programs, columns), float32)
    dots = Tensor("dots", (rows,), float32)
    sizes = {"M": rows, "N": columns, "BLOCK": block}
    pointers, absent = _pointers(spec, ("dy", "dh", "weight", "rstd", "dx"))
    pointers |= {"x": normed, "partial": "partial", "dots": "dots"}
    first = {name: pointers[name] for name in ("dy", "x", "weight", "rstd", "dots")}
    second = sizes | {"PROGRAMS": programs, "STORE": _store(spec)} | absent
    return [
        Kernel(rms_row_dots, first, sizes, (rows, 1, 1), warps),
        Kernel(rms_backward_long, pointers, second, (chunks, programs, 1), warps, _REGISTERS),
    ], [partial, dots]


def _pointers(spec: Spec, names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Any]]:
    """Operands under their own names; None for those this operation does not have."""
    there = {name: name for name in names if name in spec.io.operands}
    return there, {name: None for name in names if name not in there}


def _programs(spec: Spec, warps: int, most: int) -> int:
    """A persistent grid: what is resident at once, no more than `most`, at least one."""
    threads = min(spec.target.threads_per_multiprocessor, _RESIDENT_THREADS)
    resident = spec.target.multiprocessors * max(1, threads // (warps * 32))
    return max(1, min(resident, most))


def _row_block(columns: int, longest: int) -> tuple[int, bool]:
    """(columns of a tile, whether that is the whole row)."""
    whole = power_of_two(columns)
    return (whole, True) if whole <= longest else (_CHUNK, False)


def _rows_per_tile(block: int) -> int:
    return max(1, _TILE // block)


def _backward_warps(spec: Spec, elements: int) -> int:
    """One 16-byte vector of each array a thread: more is live than in forward."""
    return min(32, max(1, elements * spec.dtype.bits // (128 * 32)))


def _warps(elements: int) -> int:
    """Warps of a program whose tile has this many elements: a power of two, 1 to 32."""
    return min(32, max(1, elements // (_PER_THREAD * 32)))


def _store(spec: Spec) -> str:
    return ".cs" if spec.streaming else ""
