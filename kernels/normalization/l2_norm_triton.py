"""Rows divided by their length in Triton: read once where a row fits, else twice."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_rows import kept, once, put, row_map, tile_rows
from ..spec import Prepared, Spec
from .l2_norm import EPS


@triton.jit
def _reciprocal(length, EPS: tl.constexpr):
    return 1.0 / tl.where(length < EPS, EPS, length)  # NaN is not below eps, and stays


@triton.jit
def _forward(
    x, y, norm,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    there = (row < M)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row[:, None] * N + column
    value = once(x, at, there & (column < N))
    squares = value * value
    for start in range(BLOCK, N, BLOCK):
        more = kept(x, at + start, there & (column + start < N))
        squares += more * more
    length = tl.sqrt(tl.sum(squares, 1))
    tl.store(norm + row, length, mask=row < M)
    r = _reciprocal(length, EPS)[:, None]
    put(y, at, value * r, there & (column < N), STORE)
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        put(y, at + start, once(x, at + start, mask) * r, mask, STORE)


@triton.jit
def _backward(
    dy, x, norm, dx,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    there = (row < M)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row[:, None] * N + column
    length = kept(norm, row, row < M)
    r = _reciprocal(length, EPS)[:, None]
    d = once(dy, at, there & (column < N))
    xhat = once(x, at, there & (column < N)) * r
    total = d * xhat
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        total += kept(dy, at + start, mask) * (kept(x, at + start, mask) * r)
    dot = tl.where(length < EPS, 0.0, tl.sum(total, 1))[:, None]
    put(dx, at, (d - xhat * dot) * r, there & (column < N), STORE)
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        d = once(dy, at + start, mask)
        xhat = once(x, at + start, mask) * r
        put(dx, at + start, (d - xhat * dot) * r, mask, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return row_map(spec, _forward, {"EPS": EPS})
    return row_map(spec, _backward, {"EPS": EPS}, backward=True)
