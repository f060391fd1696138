"""Normalization of rows on the host, forward: with or without a mean, with or without a residual.

A row is read from memory once, to be summed, and again from the cache to be scaled; meanwhile the
next one arrives. With a residual, the row of h is kept in a buffer of its thread, in its own
dtype: it leaves for memory in passing. With a mean, the variance is summed around it in a pass of
its own, so that it does not cancel.
"""

from __future__ import annotations

import math
from typing import Any

import numba

from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from .cpu import Function, compiled, inlined, launcher
from .cpu_lanes import (
    LANES,
    PAIR,
    as_stored,
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
from .cpu_loops import share
from .cpu_math import fma, splat, total, where_first, zeros

Lanes = Any


@inlined
def _term(value: Lanes, sums: Lanes, centred: bool) -> Lanes:
    """What a first pass adds up: the values where there is a mean, their squares where not."""
    return sums + value if centred else fma(value, value, sums)


@inlined
def _first_sum(x: Any, start: int, columns: int, centred: bool) -> Any:
    whole = columns // (4 * LANES) * (4 * LANES)
    s0 = s1 = s2 = s3 = zeros()
    for i in range(start, start + whole, 4 * LANES):
        s0 = _term(load(x, i), s0, centred)
        s1 = _term(load(x, i + LANES), s1, centred)
        s2 = _term(load(x, i + 2 * LANES), s2, centred)
        s3 = _term(load(x, i + 3 * LANES), s3, centred)
    for j in range(whole, columns, LANES):
        s0 = _term(load_some(x, start + j, columns - j), s0, centred)
    return total((s0 + s1) + (s2 + s3))


@inlined
def _squares_around(x: Any, start: int, columns: int, mean: float) -> Any:
    """Sum of (x - mean)² over a row."""
    centre = splat(mean)
    whole = columns // (4 * LANES) * (4 * LANES)
    s0 = s1 = s2 = s3 = zeros()
    for i in range(start, start + whole, 4 * LANES):
        a, b = load(x, i) - centre, load(x, i + LANES) - centre
        c, d = load(x, i + 2 * LANES) - centre, load(x, i + 3 * LANES) - centre
        s0, s1, s2, s3 = fma(a, a, s0), fma(b, b, s1), fma(c, c, s2), fma(d, d, s3)
    for j in range(whole, columns, LANES):
        a = load_some(x, start + j, columns - j) - centre
        a = where_first(columns - j, a, zeros())
        s0 = fma(a, a, s0)
    return total((s0 + s1) + (s2 + s3))


@inlined
def _add_some(
    x: Any,
    residual: Any,
    h: Any,
    buffer: Any,
    start: int,
    j: int,
    count: int,
    sums: Lanes,
    centred: bool,
) -> Lanes:
    while count > 0:
        i = start + j
        value = as_stored(h, load_some(x, i, count) + load_some(residual, i, count))
        store_some(h, i, value, count)
        store_some(buffer, j, value, count)
        sums = _term(value, sums, centred)
        j, count = j + LANES, count - LANES
    return sums


@inlined
def _add_row(
    x: Any, residual: Any, h: Any, buffer: Any, start: int, columns: int, centred: bool
) -> Any:
    """h = x + residual over one row, also into the buffer; its first sum."""
    head = min(to_line(h, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    s0 = _add_some(x, residual, h, buffer, start, 0, head, zeros(), centred)
    s1 = zeros()
    for j in range(head, whole, PAIR):
        i, k = start + j, start + j + LANES
        low = as_stored(h, load(x, i) + load(residual, i))
        high = as_stored(h, load(x, k) + load(residual, k))
        store(h, i, low, high)
        store(buffer, j, low, high)
        s0, s1 = _term(low, s0, centred), _term(high, s1, centred)
    s1 = _add_some(x, residual, h, buffer, start, whole, columns - whole, s1, centred)
    return total(s0 + s1)


@inlined
def _scaled(x: Lanes, weight: Lanes, bias: Lanes, mean: Lanes, rstd: Lanes, centred: bool) -> Lanes:
    if centred:
        return fma((x - mean) * rstd, weight, bias)
    return x * rstd * weight


@inlined
def _scale_some(
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    start: int,
    j: int,
    count: int,
    mean: Lanes,
    rstd: Lanes,
    centred: bool,
) -> None:
    while count > 0:
        w, b = load_some(weight, j, count), load_some(bias, j, count)
        value = _scaled(load_some(x, start + j, count), w, b, mean, rstd, centred)
        store_some(y, start + j, value, count)
        j, count = j + LANES, count - LANES


@inlined
def _scale_row(
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    start: int,
    columns: int,
    mean: float,
    rstd: float,
    soon: Any,
    also: Any,
    centred: bool,
) -> None:
    """y of one row; the next row of `soon` and `also` is asked for meanwhile."""
    middle, factor = splat(mean), splat(rstd)
    head = min(to_line(y, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    _scale_some(x, weight, bias, y, start, 0, head, middle, factor, centred)
    for j in range(head, whole, PAIR):
        i, k = start + j, j + LANES
        prefetch(soon, i + columns)
        prefetch(soon, i + LANES + columns)
        prefetch(also, i + columns)
        prefetch(also, i + LANES + columns)
        low = _scaled(load(x, i), load(weight, j), load(bias, j), middle, factor, centred)
        v, b = load(weight, k), load(bias, k)
        store(y, i, low, _scaled(load(x, i + LANES), v, b, middle, factor, centred))
    _scale_some(x, weight, bias, y, start, whole, columns - whole, middle, factor, centred)


def _forward(dtype: str, streaming: bool, eps: float, centred: bool, fused: bool) -> Function:
    """(x, residual, weight, bias, h, y, mean, rstd, buffer, rows, columns, threads).

    Those that a form lacks repeat another address.
    """

    def run(arguments: Any, thread: int) -> None:
        x, residual = source(arguments, 0, dtype), source(arguments, 1, dtype)
        weight, bias = source(arguments, 2, dtype), source(arguments, 3, dtype)
        h, y = target(arguments, 4, dtype, streaming), target(arguments, 5, dtype, streaming)
        means = target(arguments, 6, "float32", False)
        rstds = target(arguments, 7, "float32", False)
        rows, columns, threads = arguments[9], arguments[10], arguments[11]
        buffer = at(target(arguments, 8, dtype, False), thread * columns)
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start, mean = row * columns, numba.float32(0)
            if fused:
                first_sum = _add_row(x, residual, h, buffer, start, columns, centred)
                held = at(buffer, -start)  # indexed as if it were all of h
            else:
                first_sum, held = _first_sum(x, start, columns, centred), at(x, 0)
            if centred:
                mean = numba.float32(first_sum / columns)
                first_sum = _squares_around(held, start, columns, mean)
                store_some(means, row, splat(mean), 1)
            rstd = numba.float32(1.0 / math.sqrt(first_sum / columns + eps))
            store_some(rstds, row, splat(rstd), 1)
            _scale_row(held, weight, bias, y, start, columns, mean, rstd, x, residual, centred)

    return run


def prepare_norm_forward(spec: Spec, eps: float) -> Prepared:
    """Operands x, weight, y, rstd; with a mean it and bias, with a residual it and h."""
    threads, known = spec.target.multiprocessors, spec.io.operands
    centred, fused = "mean" in known, "residual" in known
    kernel = compiled(_forward(spec.dtype.name, spec.streaming, eps, centred, fused))
    rows, columns = spec.io.reads[0].shape
    names = ["x", "residual" if fused else "x", "weight", "bias" if centred else "weight"]
    names += ["h" if fused else "y", "y", "mean" if centred else "rstd", "rstd"]
    names.append("buffer" if fused else "y")

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, rows, columns], threads, tensors)

    scratch = [Tensor("buffer", (threads, columns), spec.dtype)] if fused else []
    return Prepared(bind=bind, scratch=scratch)
