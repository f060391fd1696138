"""Pooling of NHWC images in Numba CUDA, both ways as gathers.

One thread per 16 bytes of neighbouring channels of a pixel that is written; one channel where they
are not whole vectors. Windows are read through L1, where neighbours' overlap; the places of maxima
move as words of four bytes. Gradients are summed in the order of the windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from ..backends.numba import Kernel
from ..backends.numba import prepare as prepare_kernels
from ..backends.numba_codes import Codes, codes
from ..backends.numba_device import WARP, ZERO, Memory, memory
from ..spec import Prepared, Spec

_THREADS = 4 * WARP
_LOWEST = np.float32(-np.inf)


@dataclass(frozen=True)
class _Problem:
    """Extents, and what of them one thread is given."""

    channels: int
    height: int
    width: int
    out_h: int
    out_w: int
    kernel: int
    stride: int
    padding: int
    access: Memory
    codes: Codes


def prepare(direction: str, spec: Spec) -> Prepared:
    dims, forward = spec.dims, direction == "forward"
    vector = dims["channels"] * spec.dtype.bits % 128 == 0
    access = memory(spec.dtype, spec.target.sm, vector=vector, streaming=spec.streaming)
    _, out_h, out_w, _ = spec.io.operands["y" if forward else "dy"].shape
    problem = _Problem(
        dims["channels"],
        dims["height"],
        dims["width"],
        int(out_h),
        int(out_w),
        dims["kernel"],
        dims["stride"],
        dims["padding"],
        access,
        codes(access.width, streaming=spec.streaming),
    )
    pixels = (out_h * out_w if forward else dims["height"] * dims["width"]) * dims["images"]
    n = pixels * (dims["channels"] // access.width)
    if spec.operation.name == "max_pool2d_nhwc":
        make = _maximum if forward else _maximum_backward
    else:
        make = _mean if forward else _mean_backward
    names = [tensor.name for tensor in (*spec.io.reads, *spec.io.outputs)]
    grid = (-(-n // _THREADS), 1)
    return prepare_kernels(spec, [Kernel(make(problem, n), names, grid, (_THREADS, 1))])


def _maximum(problem: _Problem, n: int) -> Callable[..., None]:
    p, width = problem, problem.access.width
    height, columns, kernel, stride, padding = p.height, p.width, p.kernel, p.stride, p.padding
    load, store, store_codes = p.access.load_kept, p.access.store, p.codes.store
    channels, per_image, out_w = p.channels, p.out_h * p.out_w, p.out_w
    chunks = channels // width

    def max_pool(x: Any, y: Any, offset: Any) -> None:
        values = cuda.local.array(width, float32)
        best = cuda.local.array(width, float32)
        where = cuda.local.array(width, int32)
        at = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if at < n:
            pixel = at // chunks
            channel = (at % chunks) * width
            image, place = pixel // per_image, uint32(pixel % per_image)
            top = int64(place // out_w) * stride - padding
            left = int64(place % out_w) * stride - padding
            first = max(-top, 0) * kernel + max(-left, 0)
            for k in range(width):
                best[k] = _LOWEST
                where[k] = first  # where all are -inf
            for i in range(kernel):
                for j in range(kernel):
                    if 0 <= top + i < height and 0 <= left + j < columns:
                        source = (image * height + top + i) * columns + left + j
                        load(x, source * channels + channel, values, 0)
                        for k in range(width):
                            if values[k] > best[k] or values[k] != values[k]:
                                best[k] = values[k]
                                where[k] = i * kernel + j
            store(y, at * width, best, 0)
            store_codes(offset, at * width, where)

    return max_pool


def _mean(problem: _Problem, n: int) -> Callable[..., None]:
    p, width = problem, problem.access.width
    height, columns, kernel, stride, padding = p.height, p.width, p.kernel, p.stride, p.padding
    load, store = p.access.load_kept, p.access.store
    channels, per_image, out_w = p.channels, p.out_h * p.out_w, p.out_w
    chunks, share = channels // width, np.float32(1 / kernel**2)

    def mean_pool(x: Any, y: Any) -> None:
        values = cuda.local.array(width, float32)
        total = cuda.local.array(width, float32)
        at = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if at < n:
            pixel = at // chunks
            channel = (at % chunks) * width
            image, place = pixel // per_image, uint32(pixel % per_image)
            top = int64(place // out_w) * stride - padding
            left = int64(place % out_w) * stride - padding
            for k in range(width):
                total[k] = ZERO
            for i in range(kernel):
                for j in range(kernel):
                    if 0 <= top + i < height and 0 <= left + j < columns:
                        source = (image * height + top + i) * columns + left + j
                        load(x, source * channels + channel, values, 0)
                        for k in range(width):
                            total[k] += values[k]
            for k in range(width):
                total[k] *= share
            store(y, at * width, total, 0)

    return mean_pool


def _maximum_backward(problem: _Problem, n: int) -> Callable[..., None]:
    p, width = problem, problem.access.width
    columns, kernel, stride, padding = p.width, p.kernel, p.stride, p.padding
    load, store, load_codes = p.access.load_kept, p.access.store, p.codes.load
    channels, per_image, out_h, out_w = p.channels, p.height * p.width, p.out_h, p.out_w
    chunks, windows = channels // width, -(-kernel // stride)

    def max_pool_backward(dy: Any, offset: Any, dx: Any) -> None:
        values = cuda.local.array(width, float32)
        total = cuda.local.array(width, float32)
        where = cuda.local.array(width, int32)
        at = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if at < n:
            pixel = at // chunks
            channel = (at % chunks) * width
            image, place = pixel // per_image, uint32(pixel % per_image)
            row = int64(place // columns) + padding
            column = int64(place % columns) + padding
            for k in range(width):
                total[k] = ZERO
            for i in range(windows):
                r = row // stride - (windows - 1 - i)
                for j in range(windows):
                    c = column // stride - (windows - 1 - j)
                    inside = int32((row - r * stride) * kernel + column - c * stride)
                    held = row - r * stride < kernel and column - c * stride < kernel
                    if held and 0 <= r < out_h and 0 <= c < out_w:
                        source = ((image * out_h + r) * out_w + c) * channels + channel
                        load(dy, source, values, 0)
                        load_codes(offset, source, where)
                        for k in range(width):
                            if where[k] == inside:
                                total[k] += values[k]
            store(dx, at * width, total, 0)

    return max_pool_backward


def _mean_backward(problem: _Problem, n: int) -> Callable[..., None]:
    p, width = problem, problem.access.width
    columns, kernel, stride, padding = p.width, p.kernel, p.stride, p.padding
    load, store = p.access.load_kept, p.access.store
    channels, per_image, out_h, out_w = p.channels, p.height * p.width, p.out_h, p.out_w
    chunks, windows, share = channels // width, -(-kernel // stride), np.float32(1 / kernel**2)

    def mean_pool_backward(dy: Any, dx: Any) -> None:
        values = cuda.local.array(width, float32)
        total = cuda.local.array(width, float32)
        at = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if at < n:
            pixel = at // chunks
            channel = (at % chunks) * width
            image, place = pixel // per_image, uint32(pixel % per_image)
            row = int64(place // columns) + padding
            column = int64(place % columns) + padding
            for k in range(width):
                total[k] = ZERO
            for i in range(windows):
                r = row // stride - (windows - 1 - i)
                for j in range(windows):
                    c = column // stride - (windows - 1 - j)
                    held = row - r * stride < kernel and column - c * stride < kernel
                    if held and 0 <= r < out_h and 0 <= c < out_w:
                        source = ((image * out_h + r) * out_w + c) * channels + channel
                        load(dy, source, values, 0)
                        for k in range(width):
                            total[k] += values[k]
            for k in range(width):
                total[k] *= share
            store(dx, at * width, total, 0)

    return mean_pool_backward
