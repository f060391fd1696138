"""The softmax family in Triton, forward and backward, and forward with dropout behind it.

What a row does not have (beyond its end, masked, beyond the diagonal) is -inf on the way in: its
exponential is 0. A row of nothing but -inf is NaN, as -inf - (-inf) is; the maximum may overlook a
NaN, the sum does not. Long rows are walked twice, with a maximum and a sum per lane (the online
form).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_dropout import row_factors
from ..backends.triton_rows import put, row_map, tile_rows
from ..spec import Prepared, Spec
from .softmax import SCALE

_NONE = tl.constexpr(float("-inf"))


@triton.jit
def _own(row, N: tl.constexpr, CAUSAL: tl.constexpr):
    """Columns that take part: up to the diagonal of a square matrix, or all."""
    own = row * 0 + N
    if CAUSAL:
        own = row % N + 1
    return own


@triton.jit
def _load(x, at, column, own, N: tl.constexpr, other, POLICY: tl.constexpr, CAUSAL: tl.constexpr):
    """x of the columns before `own`, else `other`."""
    if CAUSAL:  # whole vectors, so that accesses are wide; what lies beyond the diagonal is dropped
        near = (column // 8 * 8 < own) & (column < N)
        value = tl.load(x + at, mask=near, other=other, eviction_policy=POLICY)
        value = tl.where(column < own, value.to(tl.float32), other)
    else:
        value = tl.load(x + at, mask=column < own, other=other, eviction_policy=POLICY)
        value = value.to(tl.float32)
    return value


@triton.jit
def _scores(
    x, mask, at, column, own, N: tl.constexpr, POLICY: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    value = _load(x, at, column, own, N, _NONE, POLICY, CAUSAL)
    if mask is not None:
        attended = tl.load(mask + at, mask=column < own, other=0, eviction_policy=POLICY)
        value = tl.where(attended != 0, value, _NONE)
    return value


@triton.jit
def forward(
    x, mask, state, y, lse,
    M: tl.constexpr, N: tl.constexpr, SCALE: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row * N + column
    own = tl.where(row < M, _own(row, N, CAUSAL), 0)
    value = _scores(x, mask, at, column, own, N, "evict_first", CAUSAL)
    top = tl.max(value, 1)[:, None]
    value = (value - top) * SCALE
    p = tl.exp(value)
    total = tl.sum(p, 1)[:, None]
    out = value - tl.log(total) if LOG else p * (1.0 / total)
    if state is not None:
        out *= row_factors(state, tile_rows(ROWS), 0, N, ROWS, BLOCK)
    if lse is not None:
        tl.store(lse + row, top + tl.log(total), mask=row < M)
    put(y, at, out, (row < M) & (column < N), STORE)


@triton.jit
def forward_long(
    x, mask, state, y, lse,
    M: tl.constexpr, N: tl.constexpr, SCALE: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = _own(row, N, CAUSAL)
    largest = tl.full((BLOCK,), _NONE, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = _scores(x, mask, row * N + column, column, own, N, "", CAUSAL)
        seen = largest
        largest = tl.maximum(seen, value)
        # While all is -inf, exponentials are relative to 0, and 0.
        base = tl.where(largest == _NONE, 0.0, largest)
        total = total * tl.exp((seen - base) * SCALE) + tl.exp((value - base) * SCALE)
    top = tl.max(largest, 0)
    base = tl.where(top == _NONE, 0.0, top)
    sum_ = tl.sum(total * tl.exp((largest - base) * SCALE), 0)
    if lse is not None:
        tl.store(lse + row, top + tl.log(sum_))
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = _scores(x, mask, row * N + column, column, own, N, "evict_first", CAUSAL)
        value = (value - top) * SCALE
        out = value - tl.log(sum_) if LOG else tl.exp(value) * (1.0 / sum_)
        if state is not None:
            drawn = row_factors(state, row + tl.arange(0, 1), start, N, 1, BLOCK)
            out *= tl.reshape(drawn, (BLOCK,))
        put(y, row * N + column, out, column < N, STORE)


@triton.jit
def _gradient(d, p, total, there, SCALE: tl.constexpr, LOG: tl.constexpr):
    dx = d - tl.exp(p) * total if LOG else (d - total) * p * SCALE
    return dx if LOG else tl.where(there, dx, 0.0)


@triton.jit
def _backward(
    dy, y, dx,
    M: tl.constexpr, N: tl.constexpr, SCALE: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row * N + column
    own = tl.where(row < M, _own(row, N, CAUSAL), 0)
    d = _load(dy, at, column, own, N, 0.0, "evict_first", CAUSAL)
    p = _load(y, at, column, own, N, 0.0, "evict_first", CAUSAL)
    sums = d if LOG else d * p
    for start in range(BLOCK, N, BLOCK):
        more = _load(dy, at + start, column + start, own, N, 0.0, "", CAUSAL)
        if not LOG:
            more *= _load(y, at + start, column + start, own, N, 0.0, "", CAUSAL)
        sums += more
    total = tl.sum(sums, 1)[:, None]
    put(dx, at, _gradient(d, p, total, column < own, SCALE, LOG), (row < M) & (column < N), STORE)
    for start in range(BLOCK, N, BLOCK):
        further = column + start
        d = _load(dy, at + start, further, own, N, 0.0, "evict_first", CAUSAL)
        p = _load(y, at + start, further, own, N, 0.0, "evict_first", CAUSAL)
        out = _gradient(d, p, total, further < own, SCALE, LOG)
        put(dx, at + start, out, (row < M) & (further < N), STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    name = spec.operation.name
    constants = {
        "SCALE": SCALE if name == "scaled_masked_softmax" else 1.0,
        "LOG": name == "log_softmax",
        "CAUSAL": name == "causal_softmax",
    }
    if direction == "forward":
        return row_map(spec, forward, constants, long=forward_long)
    return row_map(spec, _backward, constants, backward=True)
