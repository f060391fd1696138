"""Softmax of rows in Numba CUDA, and its logarithm.

A row stays in registers between its maximum, its sum and its use. One too long for that is walked
twice: each thread first keeps the largest it has seen and the sum of exponentials beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int64

from ..backends.numba import prepare as prepare_kernels
from ..backends.numba_device import ONE, ZERO, divide, exp, log, row_max, row_sum
from ..backends.numba_rows import PER_THREAD, Layout, layout_of, per_row
from ..spec import Prepared, Spec

LACKS = {
    name: f"{name} is of tier 2: in CUDA C++, Triton and torch"
    for name in ("scaled_masked_softmax", "causal_softmax")
}

_LOWEST = np.float32(-np.inf)


def prepare(direction: str, spec: Spec) -> Prepared:
    layout, fits = layout_of(spec, PER_THREAD)
    logarithm = spec.operation.name == "log_softmax"
    if direction == "forward":
        make, names = (_forward if fits else _forward_long), ["x", "y"]
    else:
        make, names = (_backward if fits else _backward_long), ["dy", "y", "dx"]
    return prepare_kernels(spec, [per_row(make(layout, logarithm), names, layout)])


def _forward(layout: Layout, logarithm: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, store = access.width, access.load, access.store
    total_of, most_of = row_sum(lanes, layout.threads), row_max(lanes, layout.threads)
    step = lanes * width

    def softmax(x: Any, y: Any) -> None:
        values = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        row = int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x // lanes
        for v in range(vectors):
            column = v * step + lane * width
            for k in range(v * width, v * width + width):
                values[k] = _LOWEST
            if row < m and column < n:
                load(x, row * n + column, values, v * width)
        most = _LOWEST
        for k in range(size):
            most = values[k] if values[k] > most else most
        most = most_of(most)
        total = ZERO
        for k in range(size):
            if logarithm:
                values[k] -= most
                total += exp(values[k])
            else:
                values[k] = exp(values[k] - most)
                total += values[k]
        total = total_of(total)
        factor = log(total) if logarithm else divide(ONE, total)
        for k in range(size):
            if logarithm:
                values[k] -= factor
            else:
                values[k] *= factor
        for v in range(vectors):
            column = v * step + lane * width
            if row < m and column < n:
                store(y, row * n + column, values, v * width)

    return softmax


def _forward_long(layout: Layout, logarithm: bool) -> Callable[..., None]:
    n, access = layout.columns, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    total_of = row_sum(layout.lanes, layout.threads)
    most_of = row_max(layout.lanes, layout.threads)
    step = layout.lanes * width

    def softmax_long(x: Any, y: Any) -> None:
        values = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        own, total = _LOWEST, ZERO
        for column in range(cuda.threadIdx.x * width, n, step):
            load_kept(x, row * n + column, values, 0)
            most = own
            for k in range(width):
                most = values[k] if values[k] > most else most
            total *= exp(own - most) if most > own else ONE
            for k in range(width):
                # Before anything but -inf was seen there is nothing to subtract.
                total += exp(values[k] - most) if most > _LOWEST else exp(values[k])
            own = most
        most = most_of(own)
        total = total_of(total * exp(own - most))
        factor = log(total) if logarithm else divide(ONE, total)
        for column in range(cuda.threadIdx.x * width, n, step):
            load(x, row * n + column, values, 0)
            for k in range(width):
                values[k] -= most
                values[k] = values[k] - factor if logarithm else exp(values[k]) * factor
            store(y, row * n + column, values, 0)

    return softmax_long


def _backward(layout: Layout, logarithm: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, store = access.width, access.load, access.store
    total_of = row_sum(lanes, layout.threads)
    step = lanes * width

    def softmax_backward(dy: Any, y: Any, dx: Any) -> None:
        d = cuda.local.array(size, float32)
        values = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        row = int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x // lanes
        for v in range(vectors):
            column = v * step + lane * width
            for k in range(v * width, v * width + width):
                d[k] = ZERO
                values[k] = ZERO
            if row < m and column < n:
                load(dy, row * n + column, d, v * width)
                load(y, row * n + column, values, v * width)
        along = ZERO
        for k in range(size):
            along += d[k] if logarithm else d[k] * values[k]
        along = total_of(along)
        for k in range(size):
            if logarithm:
                d[k] -= exp(values[k]) * along
            else:
                d[k] = (d[k] - along) * values[k]
        for v in range(vectors):
            column = v * step + lane * width
            if row < m and column < n:
                store(dx, row * n + column, d, v * width)

    return softmax_backward


def _backward_long(layout: Layout, logarithm: bool) -> Callable[..., None]:
    n, access = layout.columns, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    total_of = row_sum(layout.lanes, layout.threads)
    step = layout.lanes * width

    def softmax_backward_long(dy: Any, y: Any, dx: Any) -> None:
        d = cuda.local.array(width, float32)
        values = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        along = ZERO
        for column in range(cuda.threadIdx.x * width, n, step):
            load_kept(dy, row * n + column, d, 0)
            load_kept(y, row * n + column, values, 0)
            for k in range(width):
                along += d[k] if logarithm else d[k] * values[k]
        along = total_of(along)
        for column in range(cuda.threadIdx.x * width, n, step):
            load(dy, row * n + column, d, 0)
            load(y, row * n + column, values, 0)
            for k in range(width):
                if logarithm:
                    d[k] -= exp(values[k]) * along
                else:
                    d[k] = (d[k] - along) * values[k]
            store(dx, row * n + column, d, 0)

    return softmax_backward_long
