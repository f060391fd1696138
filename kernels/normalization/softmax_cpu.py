"""Softmax of rows on the host, and its logarithm.

A row is read from memory once, for its maximum; exp(x - max) goes into a buffer of the thread as it
is summed, and leaves from there, divided. The exponentials take as long as the memory does: so one
sweep makes those of a row while the row before leaves and the row after arrives. The logarithm
needs no buffer. A NaN passes by the maximum but not by the sum.
"""

from __future__ import annotations

import math
from math import inf
from typing import Any

import numba

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    load_some,
    prefetch,
    source,
    store,
    store_some,
    target,
    to_line,
)
from ..backends.cpu_loops import share
from ..backends.cpu_math import (
    exp_down,
    fma,
    highest,
    larger,
    splat,
    total,
    where_first,
    zeros,
)
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

Lanes = Any

LACKS = {
    name: f"{name} is of tier 2: in CUDA C++, Triton and torch"
    for name in ("scaled_masked_softmax", "causal_softmax")
}


@inlined
def _maximum(x: Any, start: int, columns: int) -> Any:
    whole = columns // (4 * LANES) * (4 * LANES)
    m0 = m1 = m2 = m3 = splat(-inf)
    for i in range(start, start + whole, 4 * LANES):
        m0, m1 = larger(m0, load(x, i)), larger(m1, load(x, i + LANES))
        m2, m3 = larger(m2, load(x, i + 2 * LANES)), larger(m3, load(x, i + 3 * LANES))
    for j in range(whole, columns, LANES):
        value = load_some(x, start + j, columns - j)
        m0 = larger(m0, where_first(columns - j, value, splat(-inf)))
    return highest(larger(larger(m0, m1), larger(m2, m3)))


@inlined
def _summed_some(
    x: Any, buffer: Any, start: int, j: int, count: int, most: Lanes, sums: Lanes, kept: bool
) -> Lanes:
    """Add exp(x - most) of `count` columns of a row to `sums`; each into the buffer if kept."""
    while count > 0:
        value = exp_down(load_some(x, start + j, count) - most)
        sums += where_first(count, value, zeros())
        if kept:
            store_some(buffer, j, value, count)
        j, count = j + LANES, count - LANES
    return sums


@inlined
def _leave(value: Lanes, a: Lanes, b: Lanes, logarithm: bool) -> Lanes:
    """Of exp(x - max): over their sum. Of x: less its maximum, less the logarithm of the sum."""
    return value - a - b if logarithm else value * a


@inlined
def _leave_some(
    held: Any, y: Any, start: int, j: int, count: int, a: Lanes, b: Lanes, logarithm: bool
) -> None:
    while count > 0:
        value = _leave(load_some(held, start + j, count), a, b, logarithm)
        store_some(y, start + j, value, count)
        j, count = j + LANES, count - LANES


@inlined
def _sweep(
    held: Any,
    y: Any,
    x: Any,
    buffer: Any,
    start: int,
    columns: int,
    leaving: tuple[float, float],
    most_after: float,
    more: bool,
    logarithm: bool,
) -> Any:
    """Let one row leave; if there are more, the sum of exponentials of the next."""
    a, b, most = splat(leaving[0]), splat(leaving[1]), splat(most_after)
    after = start + columns
    head = min(to_line(y, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    s0 = s1 = zeros()
    _leave_some(held, y, start, 0, head, a, b, logarithm)
    if more:
        s0 = _summed_some(x, buffer, after, 0, head, most, s0, not logarithm)
    for j in range(head, whole, PAIR):
        i, k = start + j, after + j
        low = _leave(load(held, i), a, b, logarithm)
        store(y, i, low, _leave(load(held, i + LANES), a, b, logarithm))
        if more:
            prefetch(x, k + columns)
            prefetch(x, k + LANES + columns)
            low, high = exp_down(load(x, k) - most), exp_down(load(x, k + LANES) - most)
            s0, s1 = s0 + low, s1 + high
            if not logarithm:
                store(buffer, j, low, high)
    _leave_some(held, y, start, whole, columns - whole, a, b, logarithm)
    if more:
        s1 = _summed_some(x, buffer, after, whole, columns - whole, most, s1, not logarithm)
    return total(s0 + s1)


@inlined
def _leaving(most: float, s: float, logarithm: bool) -> tuple[float, float]:
    if logarithm:
        return most, numba.float32(math.log(s))
    return numba.float32(1.0 / s), numba.float32(0)


def _forward(dtype: str, streaming: bool, logarithm: bool) -> Function:
    """(x, y, buffers, rows, columns, threads): two rows of buffers per thread."""

    def run(arguments: Any, thread: int) -> None:
        x, y = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        rows, columns, threads = arguments[3], arguments[4], arguments[5]
        full = at(target(arguments, 2, "float32", False), 2 * thread * columns)
        free = at(full, columns)
        first, last = share(rows, thread, threads)
        if first < last:
            most = _maximum(x, first * columns, columns)
            sums = _summed_some(
                x, full, first * columns, 0, columns, splat(most), zeros(), not logarithm
            )
            s = total(sums)
            for row in range(first, last):
                start, leaving = row * columns, _leaving(most, s, logarithm)
                more = row + 1 < last
                if more:
                    most = _maximum(x, start + columns, columns)
                if logarithm:
                    s = _sweep(x, y, x, free, start, columns, leaving, most, more, True)
                else:
                    held = at(full, -start)  # indexed as if it were all of y
                    s = _sweep(held, y, x, free, start, columns, leaving, most, more, False)
                full, free = free, full

    return run


@inlined
def _sum_term(dy: Lanes, y: Lanes, sums: Lanes, logarithm: bool) -> Lanes:
    return sums + dy if logarithm else fma(dy, y, sums)


@inlined
def _gradient(dy: Lanes, y: Lanes, along: Lanes, logarithm: bool) -> Lanes:
    """(dy - sum(dy · y)) y, or dy - exp(y) sum(dy)."""
    return fma(-exp_down(y), along, dy) if logarithm else (dy - along) * y


@inlined
def _row_sum(dy: Any, y: Any, start: int, columns: int, logarithm: bool) -> Any:
    whole = columns // (4 * LANES) * (4 * LANES)
    s0 = s1 = s2 = s3 = zeros()
    for i in range(start, start + whole, 4 * LANES):
        s0 = _sum_term(load(dy, i), load(y, i), s0, logarithm)
        s1 = _sum_term(load(dy, i + LANES), load(y, i + LANES), s1, logarithm)
        s2 = _sum_term(load(dy, i + 2 * LANES), load(y, i + 2 * LANES), s2, logarithm)
        s3 = _sum_term(load(dy, i + 3 * LANES), load(y, i + 3 * LANES), s3, logarithm)
    for j in range(whole, columns, LANES):
        i, count = start + j, columns - j
        s0 = _sum_term(load_some(dy, i, count), load_some(y, i, count), s0, logarithm)
    return total((s0 + s1) + (s2 + s3))


@inlined
def _gradient_some(
    dy: Any, y: Any, dx: Any, i: int, count: int, along: Lanes, logarithm: bool
) -> None:
    while count > 0:
        value = _gradient(load_some(dy, i, count), load_some(y, i, count), along, logarithm)
        store_some(dx, i, value, count)
        i, count = i + LANES, count - LANES


def _backward(dtype: str, streaming: bool, logarithm: bool) -> Function:
    """(dy, y, dx, rows, columns, threads)."""

    def run(arguments: Any, thread: int) -> None:
        dy, y = source(arguments, 0, dtype), source(arguments, 1, dtype)
        dx = target(arguments, 2, dtype, streaming)
        rows, columns, threads = arguments[3], arguments[4], arguments[5]
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start = row * columns
            along = splat(_row_sum(dy, y, start, columns, logarithm))
            head = min(to_line(dx, start), columns)
            whole = head + (columns - head) // PAIR * PAIR
            _gradient_some(dy, y, dx, start, head, along, logarithm)
            for i in range(start + head, start + whole, PAIR):
                j = i + LANES
                prefetch(dy, i + columns)
                prefetch(dy, j + columns)
                prefetch(y, i + columns)
                prefetch(y, j + columns)
                low = _gradient(load(dy, i), load(y, i), along, logarithm)
                store(dx, i, low, _gradient(load(dy, j), load(y, j), along, logarithm))
            _gradient_some(dy, y, dx, start + whole, columns - whole, along, logarithm)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, threads = direction == "forward", spec.target.multiprocessors
    make = _forward if forward else _backward
    logarithm = spec.operation.name == "log_softmax"
    kernel = compiled(make(spec.dtype.name, spec.streaming, logarithm))
    rows, columns = spec.io.reads[0].shape
    names = ["x", "y", "buffers"] if forward else ["dy", "y", "dx"]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, rows, columns], threads, tensors)

    scratch = [Tensor("buffers", (threads, 2, columns), float32)] if forward else []
    return Prepared(bind=bind, scratch=scratch)
