"""Rows divided by their length in Triton: one tile where a row fits, else two walks."""

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
    column = tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    value = once(x, at, mask)
    length = tl.sqrt(tl.sum(value * value, 1))
    tl.store(norm + row, length, mask=row < M)
    put(y, at, value * _reciprocal(length, EPS)[:, None], mask, STORE)


@triton.jit
def _forward_long(
    x, y, norm,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = kept(x, row * N + column, column < N)
        squares += value * value
    length = tl.sqrt(tl.sum(squares, 0))
    tl.store(norm + row, length)
    r = _reciprocal(length, EPS)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        at = row * N + column
        put(y, at, once(x, at, column < N) * r, column < N, STORE)


@triton.jit
def _backward(
    dy, x, norm, dx,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    length = kept(norm, row, row < M)
    r = _reciprocal(length, EPS)[:, None]
    d, xhat = once(dy, at, mask), once(x, at, mask) * r
    dot = tl.where(length < EPS, 0.0, tl.sum(d * xhat, 1))
    put(dx, at, (d - xhat * dot[:, None]) * r, mask, STORE)


@triton.jit
def _backward_long(
    dy, x, norm, dx,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(norm + row)
    r = _reciprocal(length, EPS)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        at = row * N + column
        total += kept(dy, at, column < N) * (kept(x, at, column < N) * r)
    dot = tl.where(length < EPS, 0.0, tl.sum(total, 0))
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        at = row * N + column
        value = once(dy, at, column < N) - once(x, at, column < N) * r * dot
        put(dx, at, value * r, column < N, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return row_map(spec, _forward, _forward_long, {"EPS": EPS})
    return row_map(spec, _backward, _backward_long, {"EPS": EPS}, backward=True)
