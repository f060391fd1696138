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
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < M)[:, None] & (column < N)
    at = row[:, None] * N + column
    weight = tl.exp(once(x, at, mask) - kept(lse, row, row < M)[:, None])
    d = once(dy, at, mask) * row_factors(state, row, 0, N, ROWS, BLOCK)
    total = tl.sum(weight * d, 1)[:, None]
    put(dx, at, (d - total) * weight, mask, STORE)


@triton.jit
def _backward_long(
    dy, x, lse, state, dx,
    M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(1)
    logarithm = tl.load(lse + row)[:, None]
    sums = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        at = row[:, None] * N + column
        d = kept(dy, at, column < N) * row_factors(state, row, start, N, 1, BLOCK)
        sums += tl.exp(kept(x, at, column < N) - logarithm) * d
    total = tl.sum(sums, 1)[:, None]
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        at = row[:, None] * N + column
        d = once(dy, at, column < N) * row_factors(state, row, start, N, 1, BLOCK)
        weight = tl.exp(once(x, at, column < N) - logarithm)
        put(dx, at, (d - total) * weight, column < N, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        constants = {"SCALE": 1.0, "LOG": False, "CAUSAL": False}
        return row_map(spec, forward, forward_long, constants)
    return row_map(spec, _backward, _backward_long, {}, backward=True)
