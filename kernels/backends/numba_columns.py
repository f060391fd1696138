"""Matrices with one more operand per column in Numba, and sums over the rows.

A thread owns a vector of columns: its operand and its sum stay in registers while it walks down
the rows, several of them in flight. A persistent grid of chunks of columns (x) by shares of the
rows (y) leaves one row of float32 partials per share; a second kernel adds them in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda, float32, int64

from ..dtypes import float32 as float32_dtype
from ..operation import Tensor
from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_device import WARP, ZERO, Memory, memory
from .numba_rows import column_sum

_THREADS = 8 * WARP
_RESIDENT_THREADS = 1024  # per multiprocessor
_IN_FLIGHT = 4  # rows that a thread loads before it uses the first
_FEWEST = 8  # rows of a share


def by_column(spec: Spec, f: Any) -> Prepared:
    """y = f(x, bias), a device function of two float32."""
    grid, threads, access = _grid(spec)
    rows, columns = spec.io.reads[0].shape
    kernel = _forward(f, access, rows, columns, threads, grid[1])
    return prepare(spec, [Kernel(kernel, ["x", "bias", "y"], grid, (threads, 1))])


def by_column_backward(spec: Spec, f: Any | None) -> Prepared:
    """dx = f(dy, x, bias) and dbias, its sum over the rows; without f the sum of dy."""
    grid, threads, access = _grid(spec)
    rows, columns = spec.io.reads[0].shape
    partials = Tensor("partials", (grid[1], columns), float32_dtype)
    if f is None:
        kernel, names = _sum_rows(access, rows, columns, threads, grid[1]), ["dy", "partials"]
    else:
        kernel = _backward(f, access, rows, columns, threads, grid[1])
        names = ["dy", "x", "bias", "dx", "partials"]
    return prepare(
        spec,
        [
            Kernel(kernel, names, grid, (threads, 1), max(1, _RESIDENT_THREADS // threads)),
            column_sum(columns, grid[1], "partials", "dbias", access),
        ],
        [partials],
    )


def _grid(spec: Spec) -> tuple[tuple[int, int], int, Memory]:
    """((chunks of columns, shares of the rows), threads, accesses)."""
    rows, columns = spec.io.reads[0].shape
    vector = columns * spec.dtype.bits % 128 == 0
    access = memory(spec.dtype, spec.target.sm, vector=vector, streaming=spec.streaming)
    across = max(1, -(-columns // access.width))
    threads = min(_THREADS, -(-across // WARP) * WARP)
    chunks = -(-across // threads)
    persistent = spec.target.multiprocessors * max(1, _RESIDENT_THREADS // threads)
    shares = max(1, min(-(-persistent // chunks), -(-rows // _FEWEST)))
    return (chunks, shares), threads, access


def _forward(
    f: Any, access: Memory, m: int, n: int, threads: int, shares: int
) -> Callable[..., None]:
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    flight, size = _IN_FLIGHT, _IN_FLIGHT * access.width

    def map_columns(x: Any, bias: Any, y: Any) -> None:
        values = cuda.local.array(size, float32)
        biases = cuda.local.array(width, float32)
        column = (cuda.blockIdx.x * threads + cuda.threadIdx.x) * width
        if column < n:
            load_kept(bias, column, biases, 0)
            for first in range(int64(cuda.blockIdx.y) * flight, m, shares * flight):
                for r in range(flight):
                    if first + r < m:
                        load(x, (first + r) * n + column, values, r * width)
                for r in range(flight):
                    if first + r < m:
                        for k in range(width):
                            values[r * width + k] = f(values[r * width + k], biases[k])
                        store(y, (first + r) * n + column, values, r * width)

    return map_columns


def _sum_rows(access: Memory, m: int, n: int, threads: int, shares: int) -> Callable[..., None]:
    width, load = access.width, access.load
    flight, size = _IN_FLIGHT, _IN_FLIGHT * access.width

    def sum_rows(dy: Any, partials: Any) -> None:
        values = cuda.local.array(size, float32)
        sums = cuda.local.array(width, float32)
        column = (cuda.blockIdx.x * threads + cuda.threadIdx.x) * width
        if column < n:
            for k in range(width):
                sums[k] = ZERO
            for first in range(int64(cuda.blockIdx.y) * flight, m, shares * flight):
                for r in range(flight):
                    if first + r < m:
                        load(dy, (first + r) * n + column, values, r * width)
                for r in range(flight):
                    if first + r < m:
                        for k in range(width):
                            sums[k] += values[r * width + k]
            for k in range(width):
                partials[int64(cuda.blockIdx.y) * n + column + k] = sums[k]

    return sum_rows


def _backward(
    f: Any, access: Memory, m: int, n: int, threads: int, shares: int
) -> Callable[..., None]:
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    flight, size = _IN_FLIGHT // 2, _IN_FLIGHT // 2 * access.width  # of two arrays

    def map_columns_backward(dy: Any, x: Any, bias: Any, dx: Any, partials: Any) -> None:
        d = cuda.local.array(size, float32)
        values = cuda.local.array(size, float32)
        biases = cuda.local.array(width, float32)
        sums = cuda.local.array(width, float32)
        column = (cuda.blockIdx.x * threads + cuda.threadIdx.x) * width
        if column < n:
            load_kept(bias, column, biases, 0)
            for k in range(width):
                sums[k] = ZERO
            for first in range(int64(cuda.blockIdx.y) * flight, m, shares * flight):
                for r in range(flight):
                    if first + r < m:
                        load(dy, (first + r) * n + column, d, r * width)
                        load(x, (first + r) * n + column, values, r * width)
                for r in range(flight):
                    if first + r < m:
                        for k in range(r * width, r * width + width):
                            d[k] = f(d[k], values[k], biases[k - r * width])
                            sums[k - r * width] += d[k]
                        store(dx, (first + r) * n + column, d, r * width)
            for k in range(width):
                partials[int64(cuda.blockIdx.y) * n + column + k] = sums[k]

    return map_columns_backward
