"""Max-pooling of NCHW images in Numba CUDA, forward and backward, both as gathers.

1. One thread per output in forward. A window's elements are read through L1, where neighbours'
   windows overlap; indices are clamped to the image, so that nothing is masked.
2. One thread per stride × stride cell of the image in backward: there every element's place in its
   windows is a constant. No atomics, no zeroing pass, sums in the order of the windows.
3. The first plane of a block and the place in it are 64-bit; per thread it is 32-bit from there.
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

_THREADS = 8 * WARP
_LOWEST = np.float32(-np.inf)


def prepare(direction: str, spec: Spec) -> Prepared:
    access = memory(spec.dtype, spec.target.sm, vector=False, streaming=spec.streaming)
    images, channels, out_h, out_w = spec.io.operands["offset"].shape
    planes, dims = images * channels, spec.dims
    if direction == "forward":
        kernel, lanes = _forward(dims, out_h, out_w, planes, access), planes * out_h * out_w
    else:
        cells_h = -(-(dims["height"] + dims["padding"]) // dims["stride"])
        cells_w = -(-(dims["width"] + dims["padding"]) // dims["stride"])
        kernel = _backward(dims, out_h, out_w, cells_h, cells_w, planes, access)
        lanes = planes * cells_h * cells_w
    grid = (-(-lanes // _THREADS), 1)
    return prepare_kernels(spec, [Kernel(kernel, list(spec.io.operands), grid, (_THREADS, 1))])


def _forward(
    dims: Mapping[str, int], out_h: int, out_w: int, planes: int, access: Memory
) -> Callable[..., None]:
    height, width, kernel = dims["height"], dims["width"], dims["kernel"]
    stride, padding = dims["stride"], dims["padding"]
    load, store = access.kept_one, access.store_one
    plane_size, n = out_h * out_w, planes * out_h * out_w

    def forward(x: Any, y: Any, offset: Any) -> None:
        start = int64(cuda.blockIdx.x) * _THREADS
        at = start + cuda.threadIdx.x
        if at < n:
            local = uint32(start % plane_size + cuda.threadIdx.x)
            place = local % plane_size
            image = (start // plane_size + local // plane_size) * (height * width)
            top = int64(place // out_w) * stride - padding
            left = int64(place % out_w) * stride - padding
            best = _LOWEST
            where = 0
            for i in range(kernel):
                row = min(max(top + i, 0), height - 1)
                for j in range(kernel):
                    # Beyond the image the nearest element is read again: it changes nothing.
                    column = min(max(left + j, 0), width - 1)
                    value = load(x, image + row * width + column)
                    if i + j == 0 or value > best or value != value:
                        best = value
                        where = (row - top) * kernel + column - left
            store(y, at, best)
            offset[at] = where

    return forward


def _backward(
    dims: Mapping[str, int],
    out_h: int,
    out_w: int,
    cells_h: int,
    cells_w: int,
    planes: int,
    access: Memory,
) -> Callable[..., None]:
    height, width, kernel = dims["height"], dims["width"], dims["kernel"]
    stride, padding = dims["stride"], dims["padding"]
    load, store = access.kept_one, access.store_one
    more = (kernel - 1) // stride  # windows that contain one element, per axis, less one
    plane_size, n = cells_h * cells_w, planes * cells_h * cells_w

    def backward(dy: Any, offset: Any, dx: Any) -> None:
        start = int64(cuda.blockIdx.x) * _THREADS
        if start + cuda.threadIdx.x < n:
            local = uint32(start % plane_size + cuda.threadIdx.x)
            place = local % plane_size
            plane = start // plane_size + local // plane_size
            cell_row = int64(place // cells_w)
            cell_column = int64(place % cells_w)
            window = plane * (out_h * out_w) + cell_row * out_w + cell_column
            for r in range(stride):
                row = cell_row * stride + r - padding
                for c in range(stride):
                    column = cell_column * stride + c - padding
                    total = ZERO
                    for i in range(more + 1):
                        down = more - i
                        for j in range(more + 1):
                            right = more - j
                            seen = 0 <= cell_row - down < out_h
                            seen = seen and 0 <= cell_column - right < out_w
                            inside_row = r + down * stride
                            inside_column = c + right * stride
                            if seen and inside_row < kernel and inside_column < kernel:
                                source = window - (down * out_w + right)
                                if offset[source] == inside_row * kernel + inside_column:
                                    total += load(dy, source)
                    if 0 <= row < height and 0 <= column < width:
                        store(dx, plane * (height * width) + row * width + column, total)

    return backward
