"""What depends on the column in Triton: y = F(x, bias), and sums of its gradient by column.

1. A program owns a chunk of columns, whose bias it loads once. Forward has one tile of rows.
2. Backward is a persistent grid along the rows: dx is written and summed in float32 registers in
   the same pass; a second kernel adds the partials in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from ..dtypes import float32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, power_of_two, tiles
from .triton_rows import (
    BACKWARD_CONFIGURATIONS,
    CONFIGURATIONS,
    REGISTERS,
    backward_warps,
    kept,
    once,
    present,
    put,
    resident,
    rows_per_tile,
    store,
    sum_of_partials,
    warps_of,
)

_COLUMNS = 1024  # of one program: 8 columns a thread are 16 bytes of 16-bit elements


@triton.jit
def map_columns(
    x, bias, y, F: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) % ((N + BLOCK - 1) // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.program_id(0) // ((N + BLOCK - 1) // BLOCK)
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    b = kept(bias, column, column < N)[None, :]
    put(y, at, F(once(x, at, mask), b), mask, STORE)


@triton.jit
def map_columns_backward(
    dy, x, bias, dx, partial, F: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One chunk of columns (axis 0), every PROGRAMS-th tile of rows (axis 1)."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    if bias is not None:
        b = kept(bias, column, column < N)[None, :]
    for tile in range(tl.program_id(1), (M + ROWS - 1) // ROWS, PROGRAMS):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        mask = (row < M)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        value = once(dy, at, mask)
        if bias is not None:
            value = F(value, once(x, at, mask), b)
            put(dx, at, value, mask, STORE)
        total += tl.where(mask, value, 0.0)
    place = tl.program_id(1) * N + column
    tl.store(partial + place, tl.sum(total, 0), mask=column < N)


def by_column(spec: Spec, f: Any) -> Prepared:
    """y = f(x, bias) of x of [rows, columns] and a bias per column."""
    rows, columns = spec.io.operands["x"].shape
    block = min(power_of_two(columns), _COLUMNS)
    pointers = {name: name for name in ("x", "bias", "y")}
    fixed = {"F": f, "M": rows, "N": columns, "BLOCK": block, "STORE": store(spec)}

    def plan(choice: Choice) -> Plan:
        per_tile = rows_per_tile(block, choice)
        grid = (tiles(rows, per_tile) * tiles(columns, block), 1, 1)
        warps = warps_of(per_tile * block, choice)
        return Plan([Kernel(map_columns, pointers, fixed | {"ROWS": per_tile}, grid, warps)])

    return choose(spec, plan, CONFIGURATIONS)


def by_column_backward(spec: Spec, f: Any) -> Prepared:
    """dx = f(dy, x, bias) and dbias = the sum of dx over the rows; without a bias, of dy."""
    return summed_by_column(spec, map_columns_backward, {"F": f})


def summed_by_column(spec: Spec, function: Any, constants: Mapping[str, Any]) -> Prepared:
    """`function` leaves dbias in `partial`, a row of each program along the rows.

    Its parameters are operands by name (None where the operation has no such operand), `partial`,
    the constants, and M, N, PROGRAMS, ROWS, BLOCK (at least 8) and STORE.
    """
    rows, columns = spec.io.operands["dy"].shape
    block = min(max(power_of_two(columns), 8), _COLUMNS)
    chunks = tiles(columns, block)
    fixed = {"M": rows, "N": columns, "BLOCK": block, "STORE": store(spec), **constants}
    given = {*fixed, "partial", "PROGRAMS", "ROWS"}
    pointers, absent = present(spec, [name for name in function.arg_names if name not in given])

    def plan(choice: Choice) -> Plan:
        per_tile = rows_per_tile(block, choice)
        warps = backward_warps(spec, per_tile * block, choice)
        most = tiles(rows, per_tile)
        programs = max(1, min(most, resident(spec, warps, most * chunks) // max(chunks, 1)))
        kernel = Kernel(
            function,
            pointers | {"partial": "partial"},
            fixed | absent | {"ROWS": per_tile, "PROGRAMS": programs},
            (chunks, programs, 1),
            warps,
            REGISTERS,
        )
        partial = Tensor("partial", (programs, columns), float32)
        last = sum_of_partials(spec, {"partial": "dbias"}, programs, columns)
        return Plan([kernel, last], [partial])

    return choose(spec, plan, BACKWARD_CONFIGURATIONS)
