"""Normalization of rows on the host, backward: with or without a mean, and a gradient beside it.

With g = dy · weight and z = x - mean (x itself without a mean), a row needs its sums of g · z and,
with a mean, of g: dx = g · rstd - z · rstd³ · mean(g z) - rstd · mean(g), plus dh where the norm is
behind a residual. A core's reads from memory are its bottleneck; so that they never pause, one row
arrives, and is summed, while the one before it leaves. dy · z · rstd and dy are added to rows of
float32 partial sums per thread, which one thread adds up in the order of the threads: the same
bytes for the same number of threads.
"""

from __future__ import annotations

from typing import Any

from ..spec import Launch, Prepared, Spec, Tensors
from .cpu import Function, compiled, inlined, launcher
from .cpu_columns import clear, column_sums, partial_sums
from .cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    load_one,
    load_some,
    source,
    store,
    store_some,
    target,
    to_line,
)
from .cpu_loops import ask, share
from .cpu_math import fma, splat, total, zeros

Lanes = Any


@inlined
def _apart(x: Lanes, mean: Lanes, centred: bool) -> Lanes:
    return x - mean if centred else x


@inlined
def _add_to(partial: Any, j: int, value: Lanes, count: int) -> None:
    store_some(partial, j, load_some(partial, j, count) + value, count)


@inlined
def _sum_some(
    dy: Any,
    x: Any,
    weight: Any,
    dweight: Any,
    dbias: Any,
    start: int,
    j: int,
    count: int,
    mean: Lanes,
    rstd: Lanes,
    sums: tuple[Lanes, Lanes],
    centred: bool,
) -> tuple[Lanes, Lanes]:
    """Add `count` columns of a row to its sums (of g z, of g) and to the partial sums."""
    along, across = sums
    while count > 0:
        d, w = load_some(dy, start + j, count), load_some(weight, j, count)
        a = d * _apart(load_some(x, start + j, count), mean, centred)
        along = fma(a, w, along)
        _add_to(dweight, j, a * rstd, count)
        if centred:
            across = fma(d, w, across)
            _add_to(dbias, j, d, count)
        j, count = j + LANES, count - LANES
    return along, across


@inlined
def _slopes(sums: tuple[float, float], rstd: float, columns: int) -> tuple[Lanes, Lanes]:
    """What a row's z is multiplied by, and what is added."""
    along, across = sums
    return splat(-along * rstd * rstd * rstd / columns), splat(-across * rstd / columns)


@inlined
def _gradient(
    d: Lanes,
    x: Lanes,
    w: Lanes,
    mean: Lanes,
    rstd: Lanes,
    slopes: tuple[Lanes, Lanes],
    centred: bool,
) -> Lanes:
    slope, offset = slopes
    if centred:
        return fma(x - mean, slope, fma(d * w, rstd, offset))
    return fma(x, slope, d * w * rstd)


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
    mean: Lanes,
    rstd: Lanes,
    slopes: tuple[Lanes, Lanes],
    centred: bool,
    fused: bool,
) -> None:
    while count > 0:
        i = start + j
        d, w = load_some(dy, i, count), load_some(weight, j, count)
        value = _gradient(d, load_some(x, i, count), w, mean, rstd, slopes, centred)
        if fused:
            value += load_some(dh, i, count)
        store_some(dx, i, value, count)
        j, count = j + LANES, count - LANES


@inlined
def _step(
    streams: Any,
    means: Any,
    rstds: Any,
    row: int,
    columns: int,
    sums: tuple[float, float],
    more: bool,
    centred: bool,
    fused: bool,
) -> tuple[float, float]:
    """dx of one row and, if there are more, the sums of the next, in one sweep."""
    dy, x, weight, dh, dx, dweight, dbias = streams
    start, after = row * columns, (row + 1) * columns
    mean, rstd = splat(load_one(means, row)), splat(load_one(rstds, row))
    slopes = _slopes(sums, load_one(rstds, row), columns)
    head = min(to_line(dx, start), columns)
    whole = head + (columns - head) // PAIR * PAIR
    next_row = row + 1 if more else row
    mean_after, rstd_after = splat(load_one(means, next_row)), splat(load_one(rstds, next_row))
    _gradient_some(dy, x, weight, dh, dx, start, 0, head, mean, rstd, slopes, centred, fused)
    s0, t0 = zeros(), zeros()
    s1, t1 = zeros(), zeros()
    if more:
        s0, t0 = _sum_some(
            dy, x, weight, dweight, dbias, after, 0, head, mean_after, rstd_after, (s0, t0), centred
        )
    for j in range(head, whole, PAIR):
        i, k, m = start + j, j + LANES, after + j
        w, v = load(weight, j), load(weight, k)
        low = _gradient(load(dy, i), load(x, i), w, mean, rstd, slopes, centred)
        high = _gradient(load(dy, i + LANES), load(x, i + LANES), v, mean, rstd, slopes, centred)
        if fused:
            ask(dh, i)
            low, high = low + load(dh, i), high + load(dh, i + LANES)
        store(dx, i, low, high)
        if more:
            ask(dy, m)
            ask(x, m)
            d, e = load(dy, m), load(dy, m + LANES)
            a = d * _apart(load(x, m), mean_after, centred)
            b = e * _apart(load(x, m + LANES), mean_after, centred)
            s0, s1 = fma(a, w, s0), fma(b, v, s1)
            low = fma(a, rstd_after, load(dweight, j))
            store(dweight, j, low, fma(b, rstd_after, load(dweight, k)))
            if centred:
                t0, t1 = fma(d, w, t0), fma(e, v, t1)
                store(dbias, j, load(dbias, j) + d, load(dbias, k) + e)
    _gradient_some(
        dy, x, weight, dh, dx, start, whole, columns - whole, mean, rstd, slopes, centred, fused
    )
    if more:
        s1, t1 = _sum_some(
            dy,
            x,
            weight,
            dweight,
            dbias,
            after,
            whole,
            columns - whole,
            mean_after,
            rstd_after,
            (s1, t1),
            centred,
        )
    return total(s0 + s1), total(t0 + t1)


def _backward(dtype: str, streaming: bool, centred: bool, fused: bool) -> Function:
    """(dy, x, weight, mean, rstd, dh, dx, dweights, dbiases, rows, columns, threads).

    Those that a form lacks repeat another address.
    """

    def run(arguments: Any, thread: int) -> None:
        dy, x = source(arguments, 0, dtype), source(arguments, 1, dtype)
        weight, means = source(arguments, 2, dtype), source(arguments, 3, "float32")
        rstds, dh = source(arguments, 4, "float32"), source(arguments, 5, dtype)
        dx = target(arguments, 6, dtype, streaming)
        rows, columns, threads = arguments[9], arguments[10], arguments[11]
        dweight = at(target(arguments, 7, "float32", False), thread * columns)
        dbias = at(target(arguments, 8, "float32", False), thread * columns)
        clear(dweight, columns)
        clear(dbias, columns)
        first, last = share(rows, thread, threads)
        if first < last:
            mean, rstd = splat(load_one(means, first)), splat(load_one(rstds, first))
            s, t = _sum_some(
                dy,
                x,
                weight,
                dweight,
                dbias,
                first * columns,
                0,
                columns,
                mean,
                rstd,
                (zeros(), zeros()),
                centred,
            )
            sums = (total(s), total(t))
            streams = (dy, x, weight, dh, dx, dweight, dbias)
            for row in range(first, last - 1):
                sums = _step(streams, means, rstds, row, columns, sums, True, centred, fused)
            _step(streams, means, rstds, last - 1, columns, sums, False, centred, fused)

    return run


def prepare_norm_backward(spec: Spec, normed: str) -> Prepared:
    """The gradient of the norm of operand `normed`, plus operand dh where it is read."""
    threads, known = spec.target.multiprocessors, spec.io.operands
    centred, fused = "mean" in known, "dh" in known
    gradient = compiled(_backward(spec.dtype.name, spec.streaming, centred, fused))
    sums = compiled(column_sums(spec.dtype.name))
    rows, columns = spec.io.reads[0].shape
    partials = {"dweight": partial_sums("dweights", threads, columns)}
    if centred:
        partials["dbias"] = partial_sums("dbiases", threads, columns)
    names = ["dy", normed, "weight", "mean" if centred else "rstd", "rstd", "dh" if fused else "dy"]
    names += ["dx", "dweights", "dbiases" if centred else "dweights"]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        launches = [launcher(gradient, [*addresses, rows, columns], threads, tensors)]
        for written, partial in partials.items():
            parts = [tensors[name].data_ptr() for name in (partial.name, written)]
            launches.append(launcher(sums, [*parts, threads, columns], 1, tensors))

        def launch() -> None:
            for run in launches:
                run()

        return launch

    return Prepared(bind=bind, scratch=list(partials.values()))
