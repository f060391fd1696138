"""Row reductions in Numba: row sums, and RMSNorm with or without a residual add.

1. A row stays in registers between its sum and its use: one warp per row while it is short, several
   rows to a block; one block per row beyond. 16-byte accesses where the row length allows, one
   element otherwise, still contiguous across a warp.
2. Loads of the row, and of the weight, are issued before the sum that waits for them.
3. A row too long for registers is walked twice: the second walk is the schedule's re-read.
4. Column sums of backward: a persistent grid, float32 partials in registers, one row of partials
   per block (or warp), and a second kernel that adds them in a fixed order. Too long a row takes
   one kernel for its dot product and one that owns chunks of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, int64

from ..dtypes import float32 as float32_dtype
from ..operation import Tensor
from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_assembly import SIMULATED
from .numba_device import WARP, ZERO, Memory, memory, row_sum, rsqrt

_BLOCK = 8 * WARP  # threads where a warp owns a row
_PER_THREAD, _PER_THREAD_BACKWARD = 16, 8  # elements; backward keeps three more arrays
_MOST_THREADS = 8 * WARP if SIMULATED else 1024
_RESIDENT_THREADS = 1024  # per multiprocessor, with the 64 registers backward needs
_SUM_COLUMNS, _SUM_ROWS = WARP, 4 if SIMULATED else 16  # block of the second kernel


@dataclass(frozen=True)
class Layout:
    """How a row is spread over threads: `vectors` accesses of `width` elements on each lane."""

    rows: int  # of the tensor
    columns: int
    lanes: int
    threads: int
    vectors: int
    access: Memory

    @property
    def rows_per_block(self) -> int:
        return self.threads // self.lanes

    @property
    def size(self) -> int:
        return self.vectors * self.access.width

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.rows_per_block)


def _layout(spec: Spec, per_thread: int) -> tuple[Layout, bool]:
    """(layout, whether a row fits in the registers of a block)."""
    reads = spec.io.reads[0]
    rows, columns = reads.shape
    vector = columns * spec.dtype.bits % 128 == 0
    access = memory(spec.dtype, spec.target.sm, vector=vector, streaming=spec.streaming)
    if columns <= WARP * per_thread:
        lanes, threads = WARP, _BLOCK
    else:
        lanes = min(_MOST_THREADS, max(2 * WARP, 1 << (-(-columns // per_thread) - 1).bit_length()))
        threads = lanes
    fits = columns <= lanes * per_thread
    step = lanes * access.width
    vectors = max(1, -(-columns // step) if fits else per_thread // access.width)
    return Layout(rows, columns, lanes, threads, vectors, access), fits


def row_sums(spec: Spec) -> Prepared:
    """sums = the float32 sum of each row of x."""
    layout, _ = _layout(spec, _PER_THREAD)
    kernel = _row_sums(layout)
    return prepare(spec, [_per_row(kernel, ["x", "sums"], layout)])


def rms_norm_forward(spec: Spec, eps: float) -> Prepared:
    """Operands x, weight, y, rstd; where the operation reads a residual, it and h."""
    layout, fits = _layout(spec, _PER_THREAD)
    fused = "residual" in spec.io.operands
    make = _rms_forward if fits else _rms_forward_long
    names = ["x", "residual" if fused else "x", "weight", "h" if fused else "y", "y", "rstd"]
    return prepare(spec, [_per_row(make(layout, eps, fused), names, layout)])


def rms_norm_backward(spec: Spec, normed: str) -> Prepared:
    """Operands dy, weight, rstd, dx, dweight, the input of the norm, and dh where it is read."""
    layout, fits = _layout(spec, _PER_THREAD_BACKWARD)
    fused = "dh" in spec.io.operands
    names = ["dy", "dh" if fused else "dy", normed, "weight", "rstd"]
    resident = max(1, _RESIDENT_THREADS // layout.threads)
    persistent = spec.target.multiprocessors * resident
    block = (layout.threads, 1)
    if fits:
        blocks = max(1, min(persistent, layout.blocks))
        partial = Tensor("partial", (blocks * layout.rows_per_block, layout.columns), float32_dtype)
        kernel = _rms_backward(layout, blocks, fused)
        operands = [*names, "dx", "partial"]
        kernels = [Kernel(kernel, operands, (blocks, 1), block, resident)]
        scratch = [partial]
    else:
        chunks = -(-layout.columns // (layout.size * layout.lanes))
        blocks = max(1, min(persistent // chunks, layout.rows))
        partial = Tensor("partial", (blocks, layout.columns), float32_dtype)
        dots = Tensor("dots", (layout.rows,), float32_dtype)
        kernels = [
            _per_row(_rms_dots(layout), ["dy", normed, "weight", "rstd", "dots"], layout),
            Kernel(
                _rms_backward_long(layout, blocks, fused),
                [*names, "dots", "dx", "partial"],
                (chunks, blocks),
                block,
                resident,
            ),
        ]
        scratch = [partial, dots]
    total = _column_sum(layout, partial.shape[0])
    grid = (-(-layout.columns // _SUM_COLUMNS), 1)
    last = Kernel(total, ["partial", "dweight"], grid, (_SUM_COLUMNS, _SUM_ROWS))
    return prepare(spec, [*kernels, last], scratch)


def _per_row(kernel: Callable[..., None], operands: list[str], layout: Layout) -> Kernel:
    return Kernel(kernel, operands, (layout.blocks, 1), (layout.threads, 1))


def _row_sums(layout: Layout) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    width, load, vectors, size = (
        layout.access.width, layout.access.load, layout.vectors, layout.size,
    )  # fmt: skip
    total_of = row_sum(lanes, layout.threads)
    step = lanes * width
    whole = step * vectors

    def row_sums(x: Any, sums: Any) -> None:
        values = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        row = int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x // lanes
        total = ZERO
        for start in range(0, n, whole):
            for v in range(vectors):
                column = start + v * step + lane * width
                for k in range(width):
                    values[v * width + k] = ZERO
                if row < m and column < n:
                    load(x, row * n + column, values, v * width)
            for k in range(size):
                total += values[k]
        total = total_of(total)
        if lane == 0 and row < m:
            sums[row] = total

    return row_sums


def _rms_forward(layout: Layout, eps: float, fused: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    access_round = access.round
    total_of = row_sum(lanes, layout.threads)
    step, epsilon, share = lanes * width, np.float32(eps), np.float32(1 / max(n, 1))

    def rms_forward(x: Any, residual: Any, weight: Any, h: Any, y: Any, rstd: Any) -> None:
        values = cuda.local.array(size, float32)
        other = cuda.local.array(size, float32)
        weights = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        row = int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x // lanes
        for v in range(vectors):
            column = v * step + lane * width
            for k in range(width):
                values[v * width + k] = ZERO
                other[v * width + k] = ZERO
                weights[v * width + k] = ZERO
            if row < m and column < n:
                load(x, row * n + column, values, v * width)
                if fused:
                    load(residual, row * n + column, other, v * width)
                load_kept(weight, column, weights, v * width)
        squares = ZERO
        if fused:
            for k in range(size):
                values[k] += other[k]
            for v in range(vectors):
                column = v * step + lane * width
                if row < m and column < n:
                    store(h, row * n + column, values, v * width)
                # The norm is of h as stored: rounded, and read back as it was rounded.
                access_round(values, v * width)
        for k in range(size):
            squares += values[k] * values[k]
        r = rsqrt(total_of(squares) * share + epsilon)
        if lane == 0 and row < m:
            rstd[row] = r
        for k in range(size):
            values[k] = values[k] * r * weights[k]
        for v in range(vectors):
            column = v * step + lane * width
            if row < m and column < n:
                store(y, row * n + column, values, v * width)

    return rms_forward


def _rms_forward_long(layout: Layout, eps: float, fused: bool) -> Callable[..., None]:
    n, access = layout.columns, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    access_round = access.round
    total_of = row_sum(layout.lanes, layout.threads)
    step, epsilon, share = layout.lanes * width, np.float32(eps), np.float32(1 / n)

    def rms_forward_long(x: Any, residual: Any, weight: Any, h: Any, y: Any, rstd: Any) -> None:
        values = cuda.local.array(width, float32)
        other = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        squares = ZERO
        for column in range(cuda.threadIdx.x * width, n, step):
            load_kept(x, row * n + column, values, 0)
            if fused:
                load_kept(residual, row * n + column, other, 0)
                for k in range(width):
                    values[k] += other[k]
                access_round(values, 0)
            for k in range(width):
                squares += values[k] * values[k]
        r = rsqrt(total_of(squares) * share + epsilon)
        if cuda.threadIdx.x == 0:
            rstd[row] = r
        for column in range(cuda.threadIdx.x * width, n, step):
            load(x, row * n + column, values, 0)
            if fused:
                load(residual, row * n + column, other, 0)
                for k in range(width):
                    values[k] += other[k]
                store(h, row * n + column, values, 0)
                access_round(values, 0)
            load_kept(weight, column, other, 0)
            for k in range(width):
                values[k] = values[k] * r * other[k]
            store(y, row * n + column, values, 0)

    return rms_forward_long


def _rms_backward(layout: Layout, blocks: int, fused: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    total_of = row_sum(lanes, layout.threads)
    step, share, tiles = lanes * width, np.float32(1 / max(n, 1)), layout.blocks

    def rms_backward(
        dy: Any, dh: Any, x: Any, weight: Any, rstd: Any, dx: Any, partial: Any
    ) -> None:
        d = cuda.local.array(size, float32)
        xhat = cuda.local.array(size, float32)
        weights = cuda.local.array(size, float32)
        dweight = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        own = cuda.threadIdx.x // lanes
        for v in range(vectors):
            for k in range(v * width, v * width + width):
                weights[k] = ZERO
                dweight[k] = ZERO
            if v * step + lane * width < n:
                load_kept(weight, v * step + lane * width, weights, v * width)
        for tile in range(cuda.blockIdx.x, tiles, blocks):
            row = int64(tile) * per_block + own
            for v in range(vectors):
                column = v * step + lane * width
                for k in range(v * width, v * width + width):
                    d[k] = ZERO
                    xhat[k] = ZERO
                if row < m and column < n:
                    load(dy, row * n + column, d, v * width)
                    load(x, row * n + column, xhat, v * width)
            r = rstd[row] if row < m else ZERO
            dot = ZERO
            for k in range(size):
                xhat[k] *= r
                dweight[k] += d[k] * xhat[k]
                d[k] *= weights[k]
                dot += d[k] * xhat[k]
            dot = total_of(dot) * share
            for v in range(vectors):
                column = v * step + lane * width
                for k in range(v * width, v * width + width):
                    d[k] = (d[k] - xhat[k] * dot) * r
                if row < m and column < n:
                    if fused:
                        load(dh, row * n + column, xhat, v * width)
                        for k in range(v * width, v * width + width):
                            d[k] += xhat[k]
                    store(dx, row * n + column, d, v * width)
        slot = int64(cuda.blockIdx.x) * per_block + own
        for v in range(vectors):
            column = v * step + lane * width
            if column < n:
                for k in range(width):
                    partial[slot * n + column + k] = dweight[v * width + k]

    return rms_backward


def _rms_dots(layout: Layout) -> Callable[..., None]:
    """dots = mean(dy · weight · xhat) of each row."""
    n, access = layout.columns, layout.access
    width, load = access.width, access.load_kept
    total_of = row_sum(layout.lanes, layout.threads)
    step, share = layout.lanes * width, np.float32(1 / n)

    def rms_dots(dy: Any, x: Any, weight: Any, rstd: Any, dots: Any) -> None:
        d = cuda.local.array(width, float32)
        values = cuda.local.array(width, float32)
        weights = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        dot = ZERO
        for column in range(cuda.threadIdx.x * width, n, step):
            load(dy, row * n + column, d, 0)
            load(x, row * n + column, values, 0)
            load(weight, column, weights, 0)
            for k in range(width):
                dot += d[k] * values[k] * weights[k]
        dot = total_of(dot)
        if cuda.threadIdx.x == 0:
            dots[row] = dot * rstd[row] * share

    return rms_dots


def _rms_backward_long(layout: Layout, blocks: int, fused: bool) -> Callable[..., None]:
    """One chunk of columns (x), every `blocks`-th row (y)."""
    m, n, vectors, size, access = (
        layout.rows, layout.columns, layout.vectors, layout.size, layout.access,
    )  # fmt: skip
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    step = layout.lanes * width
    whole = step * vectors

    def rms_backward_long(
        dy: Any, dh: Any, x: Any, weight: Any, rstd: Any, dots: Any, dx: Any, partial: Any
    ) -> None:
        d = cuda.local.array(size, float32)
        xhat = cuda.local.array(size, float32)
        weights = cuda.local.array(size, float32)
        dweight = cuda.local.array(size, float32)
        first = cuda.blockIdx.x * whole + cuda.threadIdx.x * width
        for v in range(vectors):
            for k in range(v * width, v * width + width):
                dweight[k] = ZERO
                weights[k] = ZERO
            if first + v * step < n:
                load_kept(weight, first + v * step, weights, v * width)
        for row in range(int64(cuda.blockIdx.y), m, blocks):
            r, dot = rstd[row], dots[row]
            for v in range(vectors):
                column = first + v * step
                if column < n:
                    load(dy, row * n + column, d, v * width)
                    load(x, row * n + column, xhat, v * width)
                    for k in range(v * width, v * width + width):
                        xhat[k] *= r
                        dweight[k] += d[k] * xhat[k]
                        d[k] = (d[k] * weights[k] - xhat[k] * dot) * r
                    if fused:
                        load(dh, row * n + column, xhat, v * width)
                        for k in range(v * width, v * width + width):
                            d[k] += xhat[k]
                    store(dx, row * n + column, d, v * width)
        for v in range(vectors):
            column = first + v * step
            if column < n:
                for k in range(width):
                    partial[int64(cuda.blockIdx.y) * n + column + k] = dweight[v * width + k]

    return rms_backward_long


def _column_sum(layout: Layout, rows: int) -> Callable[..., None]:
    n, store_one = layout.columns, layout.access.store_one

    def column_sum(partial: Any, out: Any) -> None:
        parts = cuda.shared.array((_SUM_ROWS, _SUM_COLUMNS), float32)
        column = cuda.blockIdx.x * _SUM_COLUMNS + cuda.threadIdx.x
        total = ZERO
        if column < n:
            for row in range(int64(cuda.threadIdx.y), rows, _SUM_ROWS):
                total += partial[row * n + column]
        parts[cuda.threadIdx.y, cuda.threadIdx.x] = total
        cuda.syncthreads()
        if cuda.threadIdx.y == 0 and column < n:
            for other in range(1, _SUM_ROWS):
                total += parts[other, cuda.threadIdx.x]
            store_one(out, column, total)

    return column_sum
