"""RMSNorm on the host.

A row is read from memory once, to sum its squares, and again from the cache to be scaled. Backward
adds dy · xhat to a row of float32 partial sums per thread, which one thread adds up in the order
of the threads: the same bytes for the same number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numba

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    load_one,
    load_some,
    prefetch,
    source,
    store,
    store_some,
    target,
    to_line,
)
from ..backends.cpu_loops import AHEAD, share
from ..backends.cpu_math import fma, splat, total, zeros
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from .rms_norm import EPS

Lanes = Any


@inlined
def mean_square(x: Any, start: int, columns: int) -> Any:
    """Mean of the squares of `columns` elements of x from `start` on."""
    whole = columns // (4 * LANES) * (4 * LANES)
    s0 = s1 = s2 = s3 = zeros()
    for i in range(start, start + whole, 4 * LANES):
        a, b = load(x, i), load(x, i + LANES)
        c, d = load(x, i + 2 * LANES), load(x, i + 3 * LANES)
        s0, s1, s2, s3 = fma(a, a, s0), fma(b, b, s1), fma(c, c, s2), fma(d, d, s3)
    for j in range(whole, columns, LANES):
        a = load_some(x, start + j, columns - j)
        s0 = fma(a, a, s0)
    return total((s0 + s1) + (s2 + s3)) / columns


@inlined
def reciprocal_root(mean: float) -> Any:
    return numba.float32(1.0 / math.sqrt(mean + EPS))


@inlined
def _scale_some(x: Any, weight: Any, y: Any, start: int, j: int, count: int, rstd: Lanes) -> None:
    while count > 0:
        value = load_some(x, start + j, count) * rstd * load_some(weight, j, count)
        store_some(y, start + j, value, count)
        j, count = j + LANES, count - LANES


@inlined
def scale_row(
    x: Any, weight: Any, y: Any, start: int, columns: int, rstd: float, soon: Any, also: Any
) -> None:
    """y = x · rstd · weight over one row.

    The next row of `soon` and `also` is asked for meanwhile, so that it arrives while this leaves.
    """
    factor = splat(rstd)
    head = min(to_line(y, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    _scale_some(x, weight, y, start, 0, head, factor)
    for j in range(head, whole, PAIR):
        i, k = start + j, j + LANES
        prefetch(soon, i + columns)
        prefetch(soon, i + LANES + columns)
        prefetch(also, i + columns)
        prefetch(also, i + LANES + columns)
        low = load(x, i) * factor * load(weight, j)
        store(y, i, low, load(x, i + LANES) * factor * load(weight, k))
    _scale_some(x, weight, y, start, whole, columns - whole, factor)


def _forward(dtype: str, streaming: bool) -> Function:
    """(x, weight, y, rstd, rows, columns, threads)."""

    def run(arguments: Any, thread: int) -> None:
        x, weight = source(arguments, 0, dtype), source(arguments, 1, dtype)
        y = target(arguments, 2, dtype, streaming)
        saved = target(arguments, 3, "float32", False)
        rows, columns, threads = arguments[4], arguments[5], arguments[6]
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            rstd = reciprocal_root(mean_square(x, row * columns, columns))
            store_some(saved, row, splat(rstd), 1)
            scale_row(x, weight, y, row * columns, columns, rstd, x, x)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    return _prepare_forward(spec) if direction == "forward" else prepare_backward(spec)


def _prepare_forward(spec: Spec) -> Prepared:
    kernel = compiled(_forward(spec.dtype.name, spec.streaming))
    rows, columns = spec.io.reads[0].shape

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in ("x", "weight", "y", "rstd")]
        return launcher(kernel, [*addresses, rows, columns], spec.target.multiprocessors, tensors)

    return Prepared(bind=bind)


@inlined
def accumulate(
    dy: Any, x: Any, weight: Any, partial: Any, start: int, columns: int, rstd: float
) -> Any:
    """Add dy · xhat of one row to `partial`; return the sum over the row of dy · weight · x."""
    factor = splat(rstd)
    s = zeros()
    for j in range(0, columns, LANES):
        count = columns - j
        a = load_some(dy, start + j, count) * load_some(x, start + j, count)
        s = fma(a, load_some(weight, j, count), s)
        store_some(partial, j, fma(a, factor, load_some(partial, j, count)), count)
    return total(s)


@inlined
def _gradient_some(
    dy: Any,
    x: Any,
    weight: Any,
    dh: Any,
    dx: Any,
    start: int,
    j: int,
    count: int,
    rstd: Lanes,
    slope: Lanes,
    fused: bool,
) -> None:
    while count > 0:
        i = start + j
        g = load_some(dy, i, count) * load_some(weight, j, count)
        value = fma(load_some(x, i, count), slope, g * rstd)
        if fused:
            value += load_some(dh, i, count)
        store_some(dx, i, value, count)
        j, count = j + LANES, count - LANES


@inlined
def gradient_row(
    dy: Any,
    x: Any,
    weight: Any,
    saved: Any,
    dh: Any,
    dx: Any,
    row: int,
    columns: int,
    product: float,
    fused: bool,
) -> None:
    """dx = (dy · weight - xhat · mean(dy · weight · xhat)) · rstd, and + dh if fused, over one row.

    `product` is the row's sum of dy · weight · x, so the second term is x times one number.
    """
    start, rstd = row * columns, load_one(saved, row)
    factor = splat(rstd)
    slope = splat(-product * rstd * rstd * rstd / columns)
    head = min(to_line(dx, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    _gradient_some(dy, x, weight, dh, dx, start, 0, head, factor, slope, fused)
    for j in range(head, whole, PAIR):
        i, k = start + j, j + LANES
        low = fma(load(x, i), slope, load(dy, i) * load(weight, j) * factor)
        high = load(dy, i + LANES) * load(weight, k) * factor
        high = fma(load(x, i + LANES), slope, high)
        if fused:
            prefetch(dh, i + AHEAD)
            prefetch(dh, i + LANES + AHEAD)
            low, high = low + load(dh, i), high + load(dh, i + LANES)
        store(dx, i, low, high)
    _gradient_some(dy, x, weight, dh, dx, start, whole, columns - whole, factor, slope, fused)


@inlined
def _step_some(
    dy: Any,
    x: Any,
    weight: Any,
    dh: Any,
    dx: Any,
    partial: Any,
    start: int,
    after: int,
    j: int,
    count: int,
    rstd: Lanes,
    slope: Lanes,
    rstd_after: Lanes,
    s: Lanes,
    fused: bool,
) -> Lanes:
    while count > 0:
        i, w = start + j, load_some(weight, j, count)
        value = fma(load_some(x, i, count), slope, load_some(dy, i, count) * w * rstd)
        if fused:
            value += load_some(dh, i, count)
        store_some(dx, i, value, count)
        a = load_some(dy, after + j, count) * load_some(x, after + j, count)
        s = fma(a, w, s)
        store_some(partial, j, fma(a, rstd_after, load_some(partial, j, count)), count)
        j, count = j + LANES, count - LANES
    return s


@inlined
def step(
    dy: Any,
    x: Any,
    weight: Any,
    saved: Any,
    dh: Any,
    dx: Any,
    partial: Any,
    row: int,
    columns: int,
    product: float,
    fused: bool,
) -> Any:
    """`gradient_row` of one row and `accumulate` of the next in one sweep.

    A core's reads from memory are its bottleneck; so that they never pause, one row arrives while
    the one before it leaves.
    """
    start, rstd = row * columns, load_one(saved, row)
    after, nxt = start + columns, splat(load_one(saved, row + 1))
    factor = splat(rstd)
    slope = splat(-product * rstd * rstd * rstd / columns)
    head = min(to_line(dx, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    s0 = _step_some(
        dy, x, weight, dh, dx, partial, start, after, 0, head, factor, slope, nxt, zeros(), fused
    )
    s1 = zeros()
    for j in range(head, whole, PAIR):
        i, k, m = start + j, j + LANES, after + j
        prefetch(dy, m + AHEAD)
        prefetch(x, m + AHEAD)
        prefetch(dy, m + LANES + AHEAD)
        prefetch(x, m + LANES + AHEAD)
        w, v = load(weight, j), load(weight, k)
        low = fma(load(x, i), slope, load(dy, i) * w * factor)
        high = fma(load(x, i + LANES), slope, load(dy, i + LANES) * v * factor)
        if fused:
            prefetch(dh, i + AHEAD)
            prefetch(dh, i + LANES + AHEAD)
            low, high = low + load(dh, i), high + load(dh, i + LANES)
        store(dx, i, low, high)
        a, b = load(dy, m) * load(x, m), load(dy, m + LANES) * load(x, m + LANES)
        s0, s1 = fma(a, w, s0), fma(b, v, s1)
        store(partial, j, fma(a, nxt, load(partial, j)), fma(b, nxt, load(partial, k)))
    s1 = _step_some(
        dy,
        x,
        weight,
        dh,
        dx,
        partial,
        start,
        after,
        whole,
        columns - whole,
        factor,
        slope,
        nxt,
        s1,
        fused,
    )
    return total(s0 + s1)


def _backward(dtype: str, streaming: bool, fused: bool) -> Function:
    """(dy, x, weight, rstd, dh, dx, partials, rows, columns, threads); dh is read if fused."""

    def run(arguments: Any, thread: int) -> None:
        dy, x = source(arguments, 0, dtype), source(arguments, 1, dtype)
        weight, saved = source(arguments, 2, dtype), source(arguments, 3, "float32")
        dh, dx = source(arguments, 4, dtype), target(arguments, 5, dtype, streaming)
        rows, columns, threads = arguments[7], arguments[8], arguments[9]
        partial = at(target(arguments, 6, "float32", False), thread * columns)
        clear(partial, columns)
        first, last = share(rows, thread, threads)
        if first < last:
            rstd = load_one(saved, first)
            product = accumulate(dy, x, weight, partial, first * columns, columns, rstd)
            for row in range(first, last - 1):
                product = step(dy, x, weight, saved, dh, dx, partial, row, columns, product, fused)
            gradient_row(dy, x, weight, saved, dh, dx, last - 1, columns, product, fused)

    return run


@inlined
def clear(partial: Any, columns: int) -> None:
    for j in range(0, columns, LANES):
        store_some(partial, j, zeros(), columns - j)


def _column_sums(dtype: str) -> Function:
    """(partials, sums, rows, columns, threads): the rows of partials added up in their order."""

    def run(arguments: Any, thread: int) -> None:
        partials = source(arguments, 0, "float32")
        sums = target(arguments, 1, dtype, False)
        rows, columns = arguments[2], arguments[3]
        for j in range(0, columns, LANES):
            value = zeros()
            for row in range(rows):
                value += load_some(partials, row * columns + j, columns - j)
            store_some(sums, j, value, columns - j)

    return run


def prepare_backward(spec: Spec, x: str = "x", dh: str | None = None) -> Prepared:
    """The gradient of the norm of operand `x`, plus operand `dh` if there is one."""
    threads = spec.target.multiprocessors
    gradient = compiled(_backward(spec.dtype.name, spec.streaming, dh is not None))
    sums = compiled(_column_sums(spec.dtype.name))
    rows, columns = spec.io.reads[0].shape
    partials = Tensor("partials", (threads, columns), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        names = ("dy", x, "weight", "rstd", dh or "dy", "dx", "partials")
        addresses = [tensors[name].data_ptr() for name in names]
        first = launcher(gradient, [*addresses, rows, columns], threads, tensors)
        parts = [tensors[name].data_ptr() for name in ("partials", "dweight")]
        second = launcher(sums, [*parts, threads, columns], 1, tensors)

        def launch() -> None:
            first()
            second()

        return launch

    return Prepared(bind=bind, scratch=[partials])
