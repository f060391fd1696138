"""Average pooling of NCHW images in Numba CUDA, both ways as gathers.

One thread per element that is written. A window's elements are read through L1, where neighbours'
windows overlap; sums are float32, gradients in the order of the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import cuda, int64, uint32

from ..backends.numba import Kernel
from ..backends.numba import prepare as prepare_kernels
from ..backends.numba_device import WARP, ZERO, Memory, memory
from ..spec import Prepared, Spec

LACKS = {
    "adaptive_avg_pool2d": "adaptive_avg_pool2d is of tier 2: in CUDA C++, Triton and torch",
    "lp_pool2d": "lp_pool2d is of tier 3: in CUDA C++ and torch",
}

_THREADS = 8 * WARP


def prepare(direction: str, spec: Spec) -> Prepared:
    access = memory(spec.dtype, spec.target.sm, vector=False, streaming=spec.streaming)
    (read,), (written,) = spec.io.reads, spec.io.writes
    pooled = written if direction == "forward" else read
    make = _forward if direction == "forward" else _backward
    kernel = make(spec.dims, int(pooled.shape[2]), int(pooled.shape[3]), written.elements, access)
    grid = (-(-written.elements // _THREADS), 1)
    return prepare_kernels(spec, [Kernel(kernel, [read.name, written.name], grid, (_THREADS, 1))])


def _forward(
    dims: Mapping[str, int], out_h: int, out_w: int, n: int, access: Memory
) -> Callable[..., None]:
    height, width, kernel = dims["height"], dims["width"], dims["kernel"]
    stride, padding = dims["stride"], dims["padding"]
    load, store = access.kept_one, access.store_one
    plane_size, share = out_h * out_w, np.float32(1 / kernel**2)

    def mean_pool(x: Any, y: Any) -> None:
        start = int64(cuda.blockIdx.x) * _THREADS
        at = start + cuda.threadIdx.x
        if at < n:
            local = uint32(start % plane_size + cuda.threadIdx.x)
            place = local % plane_size
            image = (start // plane_size + local // plane_size) * (height * width)
            top = int64(place // out_w) * stride - padding
            left = int64(place % out_w) * stride - padding
            total = ZERO
            for i in range(kernel):
                for j in range(kernel):
                    if 0 <= top + i < height and 0 <= left + j < width:
                        total += load(x, image + (top + i) * width + left + j)
            store(y, at, total * share)

    return mean_pool


def _backward(
    dims: Mapping[str, int], out_h: int, out_w: int, n: int, access: Memory
) -> Callable[..., None]:
    height, width, kernel = dims["height"], dims["width"], dims["kernel"]
    stride, padding = dims["stride"], dims["padding"]
    load, store = access.kept_one, access.store_one
    plane_size, share = height * width, np.float32(1 / kernel**2)
    windows = -(-kernel // stride)  # that contain one element, per axis, at most

    def mean_pool_backward(dy: Any, dx: Any) -> None:
        start = int64(cuda.blockIdx.x) * _THREADS
        at = start + cuda.threadIdx.x
        if at < n:
            local = uint32(start % plane_size + cuda.threadIdx.x)
            place = local % plane_size
            gradients = (start // plane_size + local // plane_size) * (out_h * out_w)
            row = int64(place // width) + padding
            column = int64(place % width) + padding
            last_r, last_c = row // stride, column // stride
            total = ZERO
            for i in range(windows):
                r = last_r - (windows - 1 - i)
                if 0 <= r < out_h and row - r * stride < kernel:
                    for j in range(windows):
                        c = last_c - (windows - 1 - j)
                        if 0 <= c < out_w and column - c * stride < kernel:
                            total += load(dy, gradients + r * out_w + c)
            store(dx, at, total * share)

    return mean_pool_backward
