"""Elementwise streams in Numba: y = f(reads), element by element, in float32.

One block per contiguous piece; its threads load several vectors of every array before the first is
used. The last, partial block goes element by element. Offsets are 64-bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda, float32, int64

from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_device import WARP, Memory, memory

_THREADS = 8 * WARP
_VECTORS = 4  # 16-byte loads in flight per thread, shared by the arrays that are read


def stream(spec: Spec, f: Any) -> Prepared:
    """`f` is a device function of one float32 per array read; without reads, the constant."""
    reads = [tensor.name for tensor in spec.io.reads]
    (written,) = spec.io.writes
    access = memory(spec.dtype, spec.target.sm, vector=True, streaming=spec.streaming)
    vectors = max(1, _VECTORS // max(len(reads), 1))
    make = (_map_0, _map_1, _map_2)[len(reads)]
    kernel = make(f, access, written.elements, vectors)
    piece = _THREADS * vectors * access.width
    grid = (-(-written.elements // piece), 1)
    return prepare(spec, [Kernel(kernel, [*reads, written.name], grid, (_THREADS, 1))])


def _map_0(value: Any, access: Memory, n: int, vectors: int) -> Callable[..., None]:
    width, store, store_one = access.width, access.store, access.store_one
    step, piece = _THREADS * width, _THREADS * width * vectors

    def fill(y: Any) -> None:
        values = cuda.local.array(width, float32)
        start = int64(cuda.blockIdx.x) * piece
        if start + piece <= n:
            for k in range(width):
                values[k] = value
            for v in range(vectors):
                store(y, start + v * step + cuda.threadIdx.x * width, values, 0)
        else:
            for i in range(start + cuda.threadIdx.x, n, _THREADS):
                store_one(y, i, value)

    return fill


def _map_1(f: Any, access: Memory, n: int, vectors: int) -> Callable[..., None]:
    width, load, store = access.width, access.load, access.store
    load_one, store_one = access.load_one, access.store_one
    step, piece, size = _THREADS * width, _THREADS * width * vectors, width * vectors

    def map_1(x: Any, y: Any) -> None:
        values = cuda.local.array(size, float32)
        start = int64(cuda.blockIdx.x) * piece
        first = start + cuda.threadIdx.x * width
        if start + piece <= n:
            for v in range(vectors):
                load(x, first + v * step, values, v * width)
            for k in range(size):
                values[k] = f(values[k])
            for v in range(vectors):
                store(y, first + v * step, values, v * width)
        else:
            for i in range(start + cuda.threadIdx.x, n, _THREADS):
                store_one(y, i, f(load_one(x, i)))

    return map_1


def _map_2(f: Any, access: Memory, n: int, vectors: int) -> Callable[..., None]:
    width, load, store = access.width, access.load, access.store
    load_one, store_one = access.load_one, access.store_one
    step, piece, size = _THREADS * width, _THREADS * width * vectors, width * vectors

    def map_2(a: Any, b: Any, y: Any) -> None:
        left = cuda.local.array(size, float32)
        right = cuda.local.array(size, float32)
        start = int64(cuda.blockIdx.x) * piece
        first = start + cuda.threadIdx.x * width
        if start + piece <= n:
            for v in range(vectors):
                load(a, first + v * step, left, v * width)
                load(b, first + v * step, right, v * width)
            for k in range(size):
                left[k] = f(left[k], right[k])
            for v in range(vectors):
                store(y, first + v * step, left, v * width)
        else:
            for i in range(start + cuda.threadIdx.x, n, _THREADS):
                store_one(y, i, f(load_one(a, i), load_one(b, i)))

    return map_2
