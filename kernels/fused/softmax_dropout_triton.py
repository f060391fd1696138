"""Softmax and dropout in one Triton kernel; backward makes the softmax again from x and lse."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_dropout import row_factors
from ..backends.triton_rows import kept, once, put, row_map, tile_rows
from ..normalization.softmax_triton import forward, forward_long
from ..spec import Prepared, Spec


@triton.jit
def _backward(
    dy, x, lse, state, dx,
    M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    there = (row < M)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row[:, None] * N + column
    logarithm = kept(lse, row, row < M)[:, None]
    weight = tl.exp(once(x, at, there & (column < N)) - logarithm)
    d = once(dy, at, there & (column < N)) * row_factors(state, row, 0, N, ROWS, BLOCK)
    sums = weight * d
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        more = kept(dy, at + start, mask) * row_factors(state, row, start, N, ROWS, BLOCK)
        sums += tl.exp(kept(x, at + start, mask) - logarithm) * more
    total = tl.sum(sums, 1)[:, None]
    put(dx, at, (d - total) * weight, there & (column < N), STORE)
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        d = once(dy, at + start, mask) * row_factors(state, row, start, N, ROWS, BLOCK)
        weight = tl.exp(once(x, at + start, mask) - logarithm)
        put(dx, at + start, (d - total) * weight, mask, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        constants = {"SCALE": 1.0, "LOG": False, "CAUSAL": False}
        return row_map(spec, forward, constants, long=forward_long)
    return row_map(spec, _backward, {}, backward=True)
