"""Residual add and RMSNorm on the host.

Forward keeps the row of h in a buffer of its thread, in its own dtype: it leaves for memory in
passing, and is read back from the cache to be scaled. Backward is that of rms_norm, with dh added
before dx leaves.
"""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    as_stored,
    at,
    load,
    load_some,
    source,
    store,
    store_some,
    target,
    to_line,
)
from ..backends.cpu_loops import share
from ..backends.cpu_math import fma, splat, total, zeros
from ..normalization.rms_norm_cpu import prepare_backward, reciprocal_root, scale_row
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

Lanes = Any


@inlined
def _add_some(
    x: Any, residual: Any, h: Any, buffer: Any, start: int, j: int, count: int, squares: Lanes
) -> Lanes:
    while count > 0:
        i = start + j
        value = as_stored(h, load_some(x, i, count) + load_some(residual, i, count))
        store_some(h, i, value, count)
        store_some(buffer, j, value, count)
        squares = fma(value, value, squares)
        j, count = j + LANES, count - LANES
    return squares


@inlined
def _add_row(x: Any, residual: Any, h: Any, buffer: Any, start: int, columns: int) -> Any:
    """h = x + residual over one row, also into the buffer; the mean of its squares."""
    head = min(to_line(h, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    s0, s1 = _add_some(x, residual, h, buffer, start, 0, head, zeros()), zeros()
    for j in range(head, whole, PAIR):
        i, k = start + j, start + j + LANES
        low = as_stored(h, load(x, i) + load(residual, i))
        high = as_stored(h, load(x, k) + load(residual, k))
        store(h, i, low, high)
        store(buffer, j, low, high)
        s0, s1 = fma(low, low, s0), fma(high, high, s1)
    s1 = _add_some(x, residual, h, buffer, start, whole, columns - whole, s1)
    return total(s0 + s1) / columns


def _forward(dtype: str, streaming: bool) -> Function:
    """(x, residual, weight, h, y, rstd, buffer, rows, columns, threads)."""

    def run(arguments: Any, thread: int) -> None:
        x, residual = source(arguments, 0, dtype), source(arguments, 1, dtype)
        weight = source(arguments, 2, dtype)
        h, y = target(arguments, 3, dtype, streaming), target(arguments, 4, dtype, streaming)
        saved = target(arguments, 5, "float32", False)
        rows, columns, threads = arguments[7], arguments[8], arguments[9]
        buffer = at(target(arguments, 6, dtype, False), thread * columns)
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start = row * columns
            rstd = reciprocal_root(_add_row(x, residual, h, buffer, start, columns))
            store_some(saved, row, splat(rstd), 1)
            row_of_h = at(buffer, -start)  # indexed as if it were all of h
            scale_row(row_of_h, weight, y, start, columns, rstd, x, residual)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "backward":
        return prepare_backward(spec, x="h", dh="dh")
    threads = spec.target.multiprocessors
    kernel = compiled(_forward(spec.dtype.name, spec.streaming))
    rows, columns = spec.io.reads[0].shape

    def bind(tensors: Tensors, stream: Any) -> Launch:
        names = ("x", "residual", "weight", "h", "y", "rstd", "buffer")
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, rows, columns], threads, tensors)

    return Prepared(bind=bind, scratch=[Tensor("buffer", (threads, columns), spec.dtype)])
