"""Elementwise streams in Numba: y = f(reads), element by element, in float32.

One block per contiguous piece; its threads load several vectors of every array before the first is
used. The last, partial block goes element by element. Offsets are 64-bit. Arrays of two types move
as many elements at a time as there are in 16 bytes of the wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import cuda, float32, int64

from ..spec import Prepared, Spec
from .numba import Kernel, prepare
from .numba_device import WARP, Memory, memory

_THREADS = 8 * WARP
_VECTORS = 4  # 16-byte loads in flight per thread, shared by the arrays that are read


def stream(spec: Spec, f: Any) -> Prepared:
    """`f` is a device function of one float32 per array read; without reads, the constant.

    Where three arrays are read it returns two numbers, for two outputs.
    """
    arrays = [*spec.io.reads, *spec.io.writes]
    reads, elements = len(spec.io.reads), spec.io.writes[0].elements
    width = min(128 // array.dtype.bits for array in arrays)
    accesses = [
        memory(a.dtype, spec.target.sm, vector=True, streaming=spec.streaming, width=width)
        for a in arrays
    ]
    vectors = max(1, _VECTORS // max(reads, 1))
    make = (_map_0, _map_1, _map_2, _map_3_to_2)[reads]
    kernel = make(f, accesses, elements, vectors)
    grid = (-(-elements // (_THREADS * vectors * width)), 1)
    names = [array.name for array in arrays]
    return prepare(spec, [Kernel(kernel, names, grid, (_THREADS, 1))])


def _map_0(value: Any, accesses: Sequence[Memory], n: int, vectors: int) -> Callable[..., None]:
    (access,) = accesses
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


def _map_1(f: Any, accesses: Sequence[Memory], n: int, vectors: int) -> Callable[..., None]:
    of_x, of_y = accesses
    width, load, store = of_x.width, of_x.load, of_y.store
    load_one, store_one = of_x.load_one, of_y.store_one
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


def _map_2(f: Any, accesses: Sequence[Memory], n: int, vectors: int) -> Callable[..., None]:
    of_a, of_b, of_y = accesses
    width, load_a, load_b, store = of_a.width, of_a.load, of_b.load, of_y.store
    one_a, one_b, store_one = of_a.load_one, of_b.load_one, of_y.store_one
    step, piece, size = _THREADS * width, _THREADS * width * vectors, width * vectors

    def map_2(a: Any, b: Any, y: Any) -> None:
        left = cuda.local.array(size, float32)
        right = cuda.local.array(size, float32)
        start = int64(cuda.blockIdx.x) * piece
        first = start + cuda.threadIdx.x * width
        if start + piece <= n:
            for v in range(vectors):
                load_a(a, first + v * step, left, v * width)
                load_b(b, first + v * step, right, v * width)
            for k in range(size):
                left[k] = f(left[k], right[k])
            for v in range(vectors):
                store(y, first + v * step, left, v * width)
        else:
            for i in range(start + cuda.threadIdx.x, n, _THREADS):
                store_one(y, i, f(one_a(a, i), one_b(b, i)))

    return map_2


def _map_3_to_2(f: Any, accesses: Sequence[Memory], n: int, vectors: int) -> Callable[..., None]:
    """All of one type."""
    access = accesses[0]
    width, load, store = access.width, access.load, access.store
    load_one, store_one = access.load_one, access.store_one
    step, piece, size = _THREADS * width, _THREADS * width * vectors, width * vectors

    def map_3_to_2(a: Any, b: Any, c: Any, y: Any, z: Any) -> None:
        of_a = cuda.local.array(size, float32)
        of_b = cuda.local.array(size, float32)
        of_c = cuda.local.array(size, float32)
        start = int64(cuda.blockIdx.x) * piece
        first = start + cuda.threadIdx.x * width
        if start + piece <= n:
            for v in range(vectors):
                load(a, first + v * step, of_a, v * width)
                load(b, first + v * step, of_b, v * width)
                load(c, first + v * step, of_c, v * width)
            for k in range(size):
                of_a[k], of_b[k] = f(of_a[k], of_b[k], of_c[k])
            for v in range(vectors):
                store(y, first + v * step, of_a, v * width)
                store(z, first + v * step, of_b, v * width)
        else:
            for i in range(start + cuda.threadIdx.x, n, _THREADS):
                p, q = f(load_one(a, i), load_one(b, i), load_one(c, i))
                store_one(y, i, p)
                store_one(z, i, q)

    return map_3_to_2
