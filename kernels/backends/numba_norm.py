"""Normalization of rows in Numba: with or without a mean, with or without a residual add.

1. Loads of the row, the weight and the bias are issued before the sums that need not wait.
2. The variance is summed around the mean, from registers, so that it does not cancel.
3. Backward keeps the sums by column in registers. Too long a row takes one kernel for its sums and
   one that owns chunks of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int64

from ..dtypes import float32 as float32_dtype
from ..operation import Tensor
from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_assembly import device
from .numba_device import ZERO, divide, row_sum, rsqrt
from .numba_rows import PER_THREAD, Layout, column_sum, layout_of, per_row

_PER_THREAD_BACKWARD = 8  # elements: dy, xhat, weight, and the sums by column
_RESIDENT_THREADS = 1024  # per multiprocessor, with the 64 registers backward needs


def norm_forward(spec: Spec, eps: float) -> Prepared:
    """Operands x, weight, y, rstd; with a mean it and bias, with a residual it and h."""
    layout, fits = layout_of(spec, PER_THREAD)
    known = spec.io.operands
    centred, fused = "mean" in known, "residual" in known
    make = _forward if fits else _forward_long
    names = ["x", "residual" if fused else "x", "weight", "bias" if centred else "weight"]
    names += ["h" if fused else "y", "y", "mean" if centred else "rstd", "rstd"]
    return prepare(spec, [per_row(make(layout, eps, centred, fused), names, layout)])


def norm_backward(spec: Spec, normed: str) -> Prepared:
    """Operands dy, weight, rstd, dx, dweight, the input of the norm; mean and dbias; dh if read."""
    layout, fits = layout_of(spec, _PER_THREAD_BACKWARD)
    known, n = spec.io.operands, layout.columns
    centred, fused = "mean" in known, "dh" in known
    mean = "mean" if centred else "rstd"
    names = ["dy", "dh" if fused else "dy", normed, "weight", mean, "rstd"]
    resident = max(1, _RESIDENT_THREADS // layout.threads)
    persistent = spec.target.multiprocessors * resident
    block = (layout.threads, 1)
    # A form without a mean has neither `across` nor `dbiases`: rstd stands there, and is not used.
    written = ["dx", "dweights", "dbiases" if centred else "rstd"]
    scratch = []
    if fits:
        blocks = max(1, min(persistent, layout.blocks))
        partials = blocks * layout.rows_per_block
        kernel = _backward(layout, blocks, centred, fused)
        kernels = [Kernel(kernel, [*names, *written], (blocks, 1), block, resident)]
    else:
        chunks = -(-n // (layout.size * layout.lanes))
        blocks = partials = max(1, min(persistent // chunks, layout.rows))
        sums = ["along", "across" if centred else "rstd"]
        scratch += [Tensor(name, (layout.rows,), float32_dtype) for name in sums[: 1 + centred]]
        each = ["dy", normed, "weight", mean, "rstd", *sums]
        kernels = [
            per_row(_sums_long(layout, centred), each, layout),
            Kernel(
                _backward_long(layout, blocks, centred, fused),
                [*names, *sums, *written],
                (chunks, blocks),
                block,
                resident,
            ),
        ]
    for out, partial in [("dweight", "dweights"), ("dbias", "dbiases")][: 1 + centred]:
        scratch.append(Tensor(partial, (partials, n), float32_dtype))
        kernels.append(column_sum(n, partials, partial, out, layout.access))
    return prepare(spec, kernels, scratch)


def _forward(layout: Layout, eps: float, centred: bool, fused: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    access_round = access.round
    total_of = row_sum(lanes, layout.threads)
    step, epsilon, share = lanes * width, np.float32(eps), np.float32(1 / max(n, 1))

    def norm_forward(
        x: Any, residual: Any, weight: Any, bias: Any, h: Any, y: Any, mean: Any, rstd: Any
    ) -> None:
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
        if fused:
            for k in range(size):
                values[k] += other[k]
            for v in range(vectors):
                column = v * step + lane * width
                if row < m and column < n:
                    store(h, row * n + column, values, v * width)
                # The norm is of h as stored: rounded, and read back as it was rounded.
                access_round(values, v * width)
        if centred:
            total = ZERO
            for k in range(size):
                total += values[k]
            middle = total_of(total) * share
            for v in range(vectors):
                column = v * step + lane * width
                if row < m and column < n:
                    load_kept(bias, column, other, v * width)
            for v in range(vectors):
                if v * step + lane * width < n:
                    for k in range(v * width, v * width + width):
                        values[k] -= middle
            if lane == 0 and row < m:
                mean[row] = middle
        squares = ZERO
        for k in range(size):
            squares += values[k] * values[k]
        r = rsqrt(total_of(squares) * share + epsilon)
        if lane == 0 and row < m:
            rstd[row] = r
        for k in range(size):
            values[k] = values[k] * r * weights[k]
            if centred:
                values[k] += other[k]
        for v in range(vectors):
            column = v * step + lane * width
            if row < m and column < n:
                store(y, row * n + column, values, v * width)

    return norm_forward


@device
def _merge(values: Any, width: Any, squares: Any, middle: Any, count: Any) -> Any:
    """(sum of squares around the mean, mean, count) with `width` values more: Chan et al."""
    own, of_own, more = ZERO, ZERO, float32(width)
    for k in range(width):
        own += values[k]
    own = divide(own, more)
    for k in range(width):
        of_own += (values[k] - own) * (values[k] - own)
    apart, part = own - middle, divide(more, count + more)
    squares += of_own + apart * apart * count * part
    return squares, middle + apart * part, count + more


def _forward_long(layout: Layout, eps: float, centred: bool, fused: bool) -> Callable[..., None]:
    n, access = layout.columns, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    access_round = access.round
    total_of = row_sum(layout.lanes, layout.threads)
    step, epsilon, share = layout.lanes * width, np.float32(eps), np.float32(1 / n)

    def norm_forward_long(
        x: Any, residual: Any, weight: Any, bias: Any, h: Any, y: Any, mean: Any, rstd: Any
    ) -> None:
        values = cuda.local.array(width, float32)
        other = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        squares, middle, count = ZERO, ZERO, ZERO
        for column in range(cuda.threadIdx.x * width, n, step):
            load_kept(x, row * n + column, values, 0)
            if fused:
                load_kept(residual, row * n + column, other, 0)
                for k in range(width):
                    values[k] += other[k]
                access_round(values, 0)
            if centred:
                squares, middle, count = _merge(values, width, squares, middle, count)
            else:
                for k in range(width):
                    squares += values[k] * values[k]
        if centred:
            own = middle
            middle = total_of(own * count) * share
            squares += count * (own - middle) * (own - middle)
            if cuda.threadIdx.x == 0:
                mean[row] = middle
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
                values[k] = (values[k] - middle) * r * other[k]
            if centred:
                load_kept(bias, column, other, 0)
                for k in range(width):
                    values[k] += other[k]
            store(y, row * n + column, values, 0)

    return norm_forward_long


def _backward(layout: Layout, blocks: int, centred: bool, fused: bool) -> Callable[..., None]:
    m, n, lanes, per_block = layout.rows, layout.columns, layout.lanes, layout.rows_per_block
    vectors, size, access = layout.vectors, layout.size, layout.access
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    total_of = row_sum(lanes, layout.threads)
    step, share, tiles = lanes * width, np.float32(1 / max(n, 1)), layout.blocks

    def norm_backward(
        dy: Any,
        dh: Any,
        x: Any,
        weight: Any,
        mean: Any,
        rstd: Any,
        dx: Any,
        dweights: Any,
        dbiases: Any,
    ) -> None:
        d = cuda.local.array(size, float32)
        xhat = cuda.local.array(size, float32)
        weights = cuda.local.array(size, float32)
        dweight = cuda.local.array(size, float32)
        dbias = cuda.local.array(size, float32)
        lane = cuda.threadIdx.x % lanes
        own = cuda.threadIdx.x // lanes
        for v in range(vectors):
            for k in range(v * width, v * width + width):
                weights[k] = ZERO
                dweight[k] = ZERO
                dbias[k] = ZERO
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
            middle, along, across = ZERO, ZERO, ZERO
            if centred and row < m:
                middle = mean[row]
            for k in range(size):
                # Beyond the row d is 0, and whatever xhat is there counts for nothing.
                xhat[k] = (xhat[k] - middle) * r
                dweight[k] += d[k] * xhat[k]
                if centred:
                    dbias[k] += d[k]
                d[k] *= weights[k]
                along += d[k] * xhat[k]
                if centred:
                    across += d[k]
            along = total_of(along) * share
            if centred:
                across = total_of(across) * share
            for v in range(vectors):
                column = v * step + lane * width
                for k in range(v * width, v * width + width):
                    d[k] = (d[k] - across - xhat[k] * along) * r
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
                    dweights[slot * n + column + k] = dweight[v * width + k]
                    if centred:
                        dbiases[slot * n + column + k] = dbias[v * width + k]

    return norm_backward


def _sums_long(layout: Layout, centred: bool) -> Callable[..., None]:
    """Means over each row of dy · weight · xhat, and of dy · weight."""
    n, access = layout.columns, layout.access
    width, load = access.width, access.load_kept
    total_of = row_sum(layout.lanes, layout.threads)
    step, share = layout.lanes * width, np.float32(1 / n)

    def norm_sums(
        dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, along: Any, across: Any
    ) -> None:
        d = cuda.local.array(width, float32)
        values = cuda.local.array(width, float32)
        weights = cuda.local.array(width, float32)
        row = int64(cuda.blockIdx.x)
        first, second, middle = ZERO, ZERO, ZERO
        if centred:
            middle = mean[row]
        for column in range(cuda.threadIdx.x * width, n, step):
            load(dy, row * n + column, d, 0)
            load(x, row * n + column, values, 0)
            load(weight, column, weights, 0)
            for k in range(width):
                first += d[k] * (values[k] - middle) * weights[k]
                if centred:
                    second += d[k] * weights[k]
        first = total_of(first)
        if centred:
            second = total_of(second)
        if cuda.threadIdx.x == 0:
            along[row] = first * rstd[row] * share
            if centred:
                across[row] = second * share

    return norm_sums


def _backward_long(layout: Layout, blocks: int, centred: bool, fused: bool) -> Callable[..., None]:
    """One chunk of columns (x), every `blocks`-th row (y)."""
    m, n, vectors, size, access = (
        layout.rows, layout.columns, layout.vectors, layout.size, layout.access,
    )  # fmt: skip
    width, load, load_kept, store = access.width, access.load, access.load_kept, access.store
    step = layout.lanes * width
    whole = step * vectors

    def norm_backward_long(
        dy: Any,
        dh: Any,
        x: Any,
        weight: Any,
        mean: Any,
        rstd: Any,
        along: Any,
        across: Any,
        dx: Any,
        dweights: Any,
        dbiases: Any,
    ) -> None:
        d = cuda.local.array(size, float32)
        xhat = cuda.local.array(size, float32)
        weights = cuda.local.array(size, float32)
        dweight = cuda.local.array(size, float32)
        dbias = cuda.local.array(size, float32)
        first = cuda.blockIdx.x * whole + cuda.threadIdx.x * width
        for v in range(vectors):
            for k in range(v * width, v * width + width):
                dweight[k] = ZERO
                dbias[k] = ZERO
                weights[k] = ZERO
            if first + v * step < n:
                load_kept(weight, first + v * step, weights, v * width)
        for row in range(int64(cuda.blockIdx.y), m, blocks):
            r, slope, offset, middle = rstd[row], along[row], ZERO, ZERO
            if centred:
                offset, middle = across[row], mean[row]
            for v in range(vectors):
                column = first + v * step
                if column < n:
                    load(dy, row * n + column, d, v * width)
                    load(x, row * n + column, xhat, v * width)
                    for k in range(v * width, v * width + width):
                        xhat[k] = (xhat[k] - middle) * r
                        dweight[k] += d[k] * xhat[k]
                        if centred:
                            dbias[k] += d[k]
                        d[k] = (d[k] * weights[k] - offset - xhat[k] * slope) * r
                    if fused:
                        load(dh, row * n + column, xhat, v * width)
                        for k in range(v * width, v * width + width):
                            d[k] += xhat[k]
                    store(dx, row * n + column, d, v * width)
        slot = int64(cuda.blockIdx.y) * n
        for v in range(vectors):
            column = first + v * step
            if column < n:
                for k in range(width):
                    dweights[slot + column + k] = dweight[v * width + k]
                    if centred:
                        dbiases[slot + column + k] = dbias[v * width + k]

    return norm_backward_long
