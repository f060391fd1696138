"""Rows in Numba: how they are spread over threads, their sums, and sums by column.

1. A row stays in registers between its sum and its use: one warp per row while it is short, several
   rows to a block; one block per row beyond. 16-byte accesses where the row length allows, one
   element otherwise, still contiguous across a warp.
2. A row too long for registers is walked twice: the second walk is the schedule's re-read.
3. Column sums: float32 partials in registers of a persistent grid, one row of partials per block
   (or warp), and a second kernel that adds them in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda, float32, int64

from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_assembly import SIMULATED
from .numba_device import WARP, ZERO, Memory, memory, row_sum

_BLOCK = 8 * WARP  # threads where a warp owns a row
PER_THREAD = 16  # elements of a row; three such arrays leave 1024 threads their 64 registers
_MOST_THREADS = 8 * WARP if SIMULATED else 1024
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


def layout_of(spec: Spec, per_thread: int) -> tuple[Layout, bool]:
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
    layout, _ = layout_of(spec, PER_THREAD)
    kernel = _row_sums(layout)
    return prepare(spec, [per_row(kernel, ["x", "sums"], layout)])


def per_row(kernel: Callable[..., None], operands: list[str], layout: Layout) -> Kernel:
    """A launch with a block, or a warp of one, for each row."""
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


def column_sum(columns: int, rows: int, partial: str, out: str, access: Memory) -> Kernel:
    """out = the sums of the columns of `partial`, `rows` rows of float32, in a fixed order."""
    n, store_one = columns, access.store_one

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

    grid = (-(-columns // _SUM_COLUMNS), 1)
    return Kernel(column_sum, [partial, out], grid, (_SUM_COLUMNS, _SUM_ROWS))
