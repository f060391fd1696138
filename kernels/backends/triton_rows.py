"""Rows in Triton: tiles, sums over rows and columns, and the plans of what maps rows to rows.

1. A row that fits is one tile: read once, kept in registers, reduced, written. Short rows share a
   program, so that a program always has some 16 KB in flight.
2. A row too long for registers is walked in chunks, twice where its statistic is needed first: the
   second walk is the schedule's re-read. Where one function serves both, the first chunk is what
   stays in registers, and of a row that fits there are no more.
3. Sums by column: programs leave one row of float32 partials each; a second kernel adds them in a
   fixed order.
4. 64-bit row offsets; loads of data used once are evict-first, stores streaming; the weight and
   the partials, read by every program, keep the default policy.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, power_of_two, tiles

LONGEST = 16384  # columns of one tile: 16 a thread with 1024 threads
LONGEST_BACKWARD = 8192  # more is live there: 8 a thread
CHUNK = 4096  # columns at a time where rows are longer
REGISTERS = 64  # a thread of a persistent grid, so that _RESIDENT_THREADS fit
_RESIDENT_THREADS = 1024  # per multiprocessor
_SUM_ROWS, _SUM_COLUMNS = 64, 32  # tile of the sum of partials: whole 128-byte lines of float32

CONFIGURATIONS: tuple[Choice, ...] = (
    {"tile": 4096, "per_thread": 16},
    {"tile": 4096, "per_thread": 8},
    {"tile": 8192, "per_thread": 16},
    {"tile": 4096, "per_thread": 32},
)
"""tile: elements of one program where rows are shorter; per_thread: of those."""

BACKWARD_CONFIGURATIONS: tuple[Choice, ...] = (
    {"tile": 4096, "vectors": 1},
    {"tile": 8192, "vectors": 1},
    {"tile": 4096, "vectors": 2},
)
"""vectors: 16-byte vectors of each array a thread holds; more is live than in forward."""


@triton.jit
def tile_rows(ROWS: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def raw(x, at, mask):
    return tl.load(x + at, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def once(x, at, mask):
    return raw(x, at, mask).to(tl.float32)


@triton.jit
def kept(x, at, mask):
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def put(y, at, value, mask, STORE: tl.constexpr):
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask, cache_modifier=STORE)


@triton.jit
def row_sum(
    x, sums,
    M: tl.constexpr, N: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = (row < M)[:, None] & (column < N)[None, :]
        total += once(x, row[:, None] * N + column[None, :], mask)
    put(sums, row, tl.sum(total, 1) * SCALE, row < M, "")


@triton.jit
def column_sum(
    partial, out, other, other_out,
    ROWS: tl.constexpr, N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK_ROWS, BLOCK), tl.float32)
    total_other = tl.zeros((BLOCK_ROWS, BLOCK), tl.float32)
    for start in range(0, ROWS, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        mask = (row < ROWS)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        total += kept(partial, at, mask)
        if other is not None:
            total_other += kept(other, at, mask)
    put(out, column, tl.sum(total, 0), column < N, STORE)
    if other is not None:
        put(other_out, column, tl.sum(total_other, 0), column < N, STORE)


def row_sums(spec: Spec, scale: float = 1.0) -> Prepared:
    """What is written = scale · the float32 sum of each row of x; the rows are as many."""
    rows = spec.io.writes[0].elements
    pointers = {"x": spec.io.reads[0].name, "sums": spec.io.writes[0].name}
    columns = spec.io.reads[0].elements // max(rows, 1)

    def plan(choice: Choice) -> Plan:
        return Plan([sum_kernel(pointers, rows, columns, choice, scale)])

    return choose(spec, plan, CONFIGURATIONS)


def sum_kernel(
    pointers: Mapping[str, str], rows: int, columns: int, choice: Choice, scale: float = 1.0
) -> Kernel:
    block = min(power_of_two(columns), CHUNK)
    per_tile = rows_per_tile(block, choice)
    tile = {"M": rows, "N": columns, "SCALE": scale, "ROWS": per_tile, "BLOCK": block}
    grid = (tiles(rows, per_tile), 1, 1)
    return Kernel(row_sum, pointers, tile, grid, warps_of(per_tile * block, choice))


def row_map(
    spec: Spec,
    single: Any,
    constants: Mapping[str, Any],
    *,
    long: Any = None,
    backward: bool = False,
) -> Prepared:
    """Rows to rows: `single`, or `long` if there is one, where a row is walked in chunks of BLOCK.

    Their parameters are operands by name (None where the operation has no such operand), the
    constants, and M, N, ROWS, BLOCK and STORE. The rows are those of what is read first.
    """
    columns = spec.io.reads[0].shape[-1]
    rows = spec.io.reads[0].elements // max(columns, 1)
    block, whole = row_block(columns, LONGEST_BACKWARD if backward else LONGEST)
    function = single if whole or long is None else long
    fixed = {"M": rows, "N": columns, "BLOCK": block, "STORE": store(spec), **constants}
    names = [name for name in function.arg_names if name not in (*fixed, "ROWS")]
    pointers, absent = present(spec, names)

    def plan(choice: Choice) -> Plan:
        per_tile = rows_per_tile(block, choice) if whole else 1
        warps = (
            backward_warps(spec, per_tile * block, choice)
            if backward
            else warps_of(per_tile * block, choice)
        )
        grid = (tiles(rows, per_tile), 1, 1)
        return Plan([Kernel(function, pointers, fixed | absent | {"ROWS": per_tile}, grid, warps)])

    return choose(spec, plan, BACKWARD_CONFIGURATIONS if backward else CONFIGURATIONS)


def sum_of_partials(spec: Spec, sums: Mapping[str, str], rows: int, columns: int) -> Kernel:
    """sums: scratch of [rows, columns] -> the operand that is its sum by column; one or two."""
    names = [name for pair in sums.items() for name in pair]
    parameters = ("partial", "out", "other", "other_out")
    pointers = dict(zip(parameters, names, strict=False))
    constants = {
        "ROWS": rows,
        "N": columns,
        "BLOCK_ROWS": _SUM_ROWS,
        "BLOCK": _SUM_COLUMNS,
        "STORE": store(spec),
    } | {name: None for name in parameters if name not in pointers}
    grid = (tiles(columns, _SUM_COLUMNS), 1, 1)
    return Kernel(column_sum, pointers, constants, grid, _SUM_ROWS * _SUM_COLUMNS // (16 * 32))


def present(spec: Spec, names: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Operands under their own names; None for those this operation does not have."""
    there = {name: name for name in names if name in spec.io.operands}
    return there, {name: None for name in names if name not in there}


def resident(spec: Spec, warps: int, most: int) -> int:
    """A persistent grid: what is resident at once, no more than `most`, at least one."""
    threads = min(spec.target.threads_per_multiprocessor, _RESIDENT_THREADS)
    resident = spec.target.multiprocessors * max(1, threads // (warps * 32))
    return max(1, min(resident, most))


def row_block(columns: int, longest: int) -> tuple[int, bool]:
    """(columns of a tile, at least 8, and whether that is the whole row)."""
    whole = max(power_of_two(columns), 8)
    return (whole, True) if whole <= longest else (CHUNK, False)


def rows_per_tile(block: int, choice: Choice) -> int:
    return max(1, int(choice["tile"]) // block)


def backward_warps(spec: Spec, elements: int, choice: Choice) -> int:
    return min(32, max(1, elements * spec.dtype.bits // (128 * 32 * int(choice["vectors"]))))


def warps_of(elements: int, choice: Choice) -> int:
    """Warps of a program whose tile has this many elements: a power of two, 1 to 32."""
    return min(32, max(1, elements // (int(choice["per_thread"]) * 32)))


def store(spec: Spec) -> str:
    return ".cs" if spec.streaming else ""
