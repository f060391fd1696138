"""What Numba kernels are made of: 16-byte accesses, conversions, sums over a row.

1. Accesses are inline PTX, since Numba itself emits one generic access per element: four 32-bit
   words at a time, loads past L1 where data is used once, stores streaming.
2. 16-bit floats come as pairs in a word and are converted two at a time.
3. Every constant is float32; one float64 literal would pull the arithmetic into float64.

Numba's simulator knows neither inline PTX nor shuffles: there each piece is a scalar twin in
Python, chosen here, and what it shows is index logic alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, types

from ..dtypes import DType
from ..dtypes import float32 as float32_dtype
from .numba_assembly import (
    SIMULATED,
    device,
    load_element,
    load_words,
    pack_pair,
    store_element,
    store_words,
    unary,
    unpack_pair,
)

WARP = 4 if SIMULATED else 32  # a simulated thread costs a real one
ZERO, ONE = np.float32(0), np.float32(1)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Memory:
    """Accesses to arrays of one dtype, at element indices.

    width: elements of a vector; load and store move one, to and from `values[at:at + width]`.
    """

    width: int
    load: Any  # (array, index, values, at), used once
    load_kept: Any  # the same, of what other blocks read too
    store: Any  # (array, index, values, at)
    round: Any  # (values, at): a vector as it would be read back
    load_one: Any  # (array, index) -> float32, used once
    kept_one: Any  # the same, of what neighbours read too
    store_one: Any  # (array, index, float32)


def memory(
    dtype: DType, sm: int, *, vector: bool, streaming: bool, width: int | None = None
) -> Memory:
    """Accesses for `dtype`; `vector` False where rows do not keep to 16-byte boundaries.

    A `width` of 4 elements of 16 bits is 8 bytes: beside vectors of as many float32.
    """
    width = width or 128 // dtype.bits
    if SIMULATED:
        return _simulated(dtype, width if vector else 1)
    hint = ".cs" if streaming else ""
    scalar = _scalar(dtype, sm, hint)
    if not vector:
        return scalar
    words = width * dtype.bits // 32
    if words == 2:
        return _half_vector(dtype, sm, hint, scalar)
    once, kept = (
        _vector_load(dtype, load_words(f"ld.global.nc{how}.v4.u32"))
        for how in (".L1::no_allocate", "")
    )
    store = _vector_store(dtype, sm, store_words(f"st.global{hint}.v4.u32"))
    rounding = _vector_round(dtype, sm)
    return Memory(
        width, once, kept, store, rounding, scalar.load_one, scalar.kept_one, scalar.store_one
    )


def row_sum(lanes: int, threads: int) -> Any:
    """float32 -> its sum over the `lanes` threads of a row, on every one of them.

    lanes is a warp, several rows to a block, or `threads`. Every thread of the block must call it.
    """
    return _row_reduction(lanes, threads, _plus)


def row_max(lanes: int, threads: int) -> Any:
    """As `row_sum`, the largest; a NaN may be passed by."""
    return _row_reduction(lanes, threads, _larger)


@device
def _plus(a: Any, b: Any) -> Any:
    return a + b


@device
def _larger(a: Any, b: Any) -> Any:
    return a if a > b else b


def _row_reduction(lanes: int, threads: int, combine: Any) -> Any:
    if SIMULATED:
        return _simulated_row_reduction(lanes, threads, combine)

    @device
    def of_warp(value: Any) -> Any:
        for step in (16, 8, 4, 2, 1):
            value = combine(value, cuda.shfl_xor_sync(_MASK, value, step))
        return value

    if lanes == WARP:
        return of_warp
    warps = threads // WARP

    @device
    def of_block(value: Any) -> Any:
        parts = cuda.shared.array(warps, float32)
        value = of_warp(value)
        cuda.syncthreads()  # readers of an earlier one are done
        if cuda.threadIdx.x % 32 == 0:
            parts[cuda.threadIdx.x // 32] = value
        cuda.syncthreads()
        result = parts[0]
        for warp in range(1, warps):
            result = combine(result, parts[warp])
        return result

    return of_block


if SIMULATED:

    @device
    def exp(x: Any) -> Any:
        return np.float32(math.exp(x)) if not x >= 88 else np.float32(np.inf)

    @device
    def log(x: Any) -> Any:
        return np.float32(math.log(x)) if x > 0 else np.float32(np.nan)

    @device
    def rsqrt(x: Any) -> Any:
        return np.float32(1 / math.sqrt(x))

    @device
    def divide(x: Any, y: Any) -> Any:
        return np.float32(x) / np.float32(y)

else:
    from numba.cuda import libdevice

    @device
    def exp(x: Any) -> Any:
        return libdevice.fast_expf(x)

    @device
    def log(x: Any) -> Any:
        return libdevice.fast_logf(x)

    @device
    def rsqrt(x: Any) -> Any:
        return libdevice.rsqrtf(x)

    @device
    def divide(x: Any, y: Any) -> Any:
        return libdevice.fast_fdividef(x, y)


def _vector_load(dtype: DType, words: Any) -> Any:
    if dtype == float32_dtype:
        as_float = unary(types.float32, "mov.b32 $0, $1;", "=f,r")

        @device
        def load(array: Any, index: Any, values: Any, at: Any) -> None:
            a, b, c, d = words(array, index)
            values[at] = as_float(a)
            values[at + 1] = as_float(b)
            values[at + 2] = as_float(c)
            values[at + 3] = as_float(d)

        return load
    unpack = unpack_pair(dtype)

    @device
    def load_pairs(array: Any, index: Any, values: Any, at: Any) -> None:
        a, b, c, d = words(array, index)
        values[at], values[at + 1] = unpack(a)
        values[at + 2], values[at + 3] = unpack(b)
        values[at + 4], values[at + 5] = unpack(c)
        values[at + 6], values[at + 7] = unpack(d)

    return load_pairs


def _vector_store(dtype: DType, sm: int, words: Any) -> Any:
    if dtype == float32_dtype:
        as_word = unary(types.uint32, "mov.b32 $0, $1;", "=r,f")

        @device
        def store(array: Any, index: Any, v: Any, at: Any) -> None:
            a, b = as_word(v[at]), as_word(v[at + 1])
            words(array, index, a, b, as_word(v[at + 2]), as_word(v[at + 3]))

        return store
    pack = pack_pair(dtype, sm)

    @device
    def store_pairs(array: Any, index: Any, v: Any, at: Any) -> None:
        a, b = pack(v[at], v[at + 1]), pack(v[at + 2], v[at + 3])
        words(array, index, a, b, pack(v[at + 4], v[at + 5]), pack(v[at + 6], v[at + 7]))

    return store_pairs


def _half_vector(dtype: DType, sm: int, hint: str, scalar: Memory) -> Memory:
    """Four elements of 16 bits at a time."""
    unpack, pack = unpack_pair(dtype), pack_pair(dtype, sm)
    once, kept = (load_words(f"ld.global.nc{how}.v2.u32", 2) for how in (".L1::no_allocate", ""))
    words = store_words(f"st.global{hint}.v2.u32", 2)

    @device
    def load(array: Any, index: Any, values: Any, at: Any) -> None:
        a, b = once(array, index)
        values[at], values[at + 1] = unpack(a)
        values[at + 2], values[at + 3] = unpack(b)

    @device
    def load_kept(array: Any, index: Any, values: Any, at: Any) -> None:
        a, b = kept(array, index)
        values[at], values[at + 1] = unpack(a)
        values[at + 2], values[at + 3] = unpack(b)

    @device
    def store(array: Any, index: Any, v: Any, at: Any) -> None:
        words(array, index, pack(v[at], v[at + 1]), pack(v[at + 2], v[at + 3]))

    @device
    def rounded(v: Any, at: Any) -> None:
        v[at], v[at + 1] = unpack(pack(v[at], v[at + 1]))
        v[at + 2], v[at + 3] = unpack(pack(v[at + 2], v[at + 3]))

    return Memory(
        4, load, load_kept, store, rounded, scalar.load_one, scalar.kept_one, scalar.store_one
    )


def _vector_round(dtype: DType, sm: int) -> Any:
    if dtype == float32_dtype:

        @device
        def keep(v: Any, at: Any) -> None:
            pass

        return keep
    pack, unpack = pack_pair(dtype, sm), unpack_pair(dtype)

    @device
    def rounded(v: Any, at: Any) -> None:
        v[at], v[at + 1] = unpack(pack(v[at], v[at + 1]))
        v[at + 2], v[at + 3] = unpack(pack(v[at + 2], v[at + 3]))
        v[at + 4], v[at + 5] = unpack(pack(v[at + 4], v[at + 5]))
        v[at + 6], v[at + 7] = unpack(pack(v[at + 6], v[at + 7]))

    return rounded


def _scalar(dtype: DType, sm: int, hint: str) -> Memory:
    """One element at a time."""
    if dtype == float32_dtype:
        load_one = load_element(types.float32, "ld.global.nc.L1::no_allocate.f32", "f")
        kept_one = load_element(types.float32, "ld.global.nc.f32", "f")
        store_one = store_element(f"st.global{hint}.f32", "f")
    else:
        load_one = _half_load(dtype, "ld.global.nc.L1::no_allocate.u16")
        kept_one = _half_load(dtype, "ld.global.nc.u16")
        store_one = _half_store(dtype, sm, f"st.global{hint}.u16")

    @device
    def load(array: Any, index: Any, values: Any, at: Any) -> None:
        values[at] = load_one(array, index)

    @device
    def load_kept(array: Any, index: Any, values: Any, at: Any) -> None:
        values[at] = kept_one(array, index)

    @device
    def store(array: Any, index: Any, values: Any, at: Any) -> None:
        store_one(array, index, values[at])

    return Memory(
        1, load, load_kept, store, _scalar_round(dtype, sm), load_one, kept_one, store_one
    )


def _scalar_round(dtype: DType, sm: int) -> Any:
    if dtype == float32_dtype:
        return _vector_round(dtype, sm)
    pack, unpack = pack_pair(dtype, sm), unpack_pair(dtype)

    @device
    def rounded(v: Any, at: Any) -> None:
        v[at] = unpack(pack(v[at], ZERO))[0]

    return rounded


def _half_load(dtype: DType, instruction: str) -> Any:
    raw = load_element(types.uint16, instruction, "h")
    unpack = unpack_pair(dtype)

    @device
    def load_one(array: Any, index: Any) -> Any:
        return unpack(types.uint32(raw(array, index)))[0]

    return load_one


def _half_store(dtype: DType, sm: int, instruction: str) -> Any:
    raw = store_element(instruction, "h")
    pack = pack_pair(dtype, sm)

    @device
    def store_one(array: Any, index: Any, value: Any) -> None:
        raw(array, index, types.uint16(pack(value, ZERO) & 0xFFFF))

    return store_one


def _simulated(dtype: DType, width: int) -> Memory:
    """The same accesses in Python, on numpy arrays of what the kernel sees."""

    def load_one(array: Any, index: Any) -> Any:
        raw = array[index]
        if dtype.name == "float16":
            return np.float32(np.uint16(raw).view(np.float16))
        if dtype.name == "bfloat16":
            return (np.uint32(raw) << np.uint32(16)).view(np.float32)
        return np.float32(raw)

    def store_one(array: Any, index: Any, value: Any) -> None:
        value = np.float32(value)
        if dtype.name == "float16":
            array[index] = np.float16(value).view(np.uint16)
        elif dtype.name == "bfloat16":
            word = int(value.view(np.uint32))
            array[index] = (word + 0x7FFF + ((word >> 16) & 1)) >> 16 & 0xFFFF
        else:
            array[index] = value

    def load(array: Any, index: Any, values: Any, at: Any) -> None:
        assert index % width == 0, "a vector that is not aligned"
        for k in range(width):
            values[at + k] = load_one(array, index + k)

    def store(array: Any, index: Any, values: Any, at: Any) -> None:
        assert index % width == 0, "a vector that is not aligned"
        for k in range(width):
            store_one(array, index + k, values[at + k])

    def rounded(values: Any, at: Any) -> None:
        stored = np.zeros(1, np.float32 if dtype == float32_dtype else np.uint16)
        for k in range(at, at + width):
            store_one(stored, 0, values[k])
            values[k] = load_one(stored, 0)

    return Memory(width, load, load, store, rounded, load_one, load_one, store_one)


def _simulated_row_reduction(lanes: int, threads: int, combine: Any) -> Any:
    @device
    def reduced(value: Any) -> Any:
        parts = cuda.shared.array(threads, float32)
        cuda.syncthreads()
        parts[cuda.threadIdx.x] = value
        cuda.syncthreads()
        first = cuda.threadIdx.x // lanes * lanes
        result = parts[first]
        for k in range(1, lanes):
            result = combine(result, parts[first + k])
        return np.float32(result)

    return reduced
