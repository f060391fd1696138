"""Loops over matrices with one more operand per column, and sums over the rows."""

from __future__ import annotations

from typing import Any

from ..dtypes import float32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from .cpu import Function, compiled, inlined, launcher
from .cpu_lanes import LANES, PAIR, at, load, load_some, source, store, store_some, target, to_line
from .cpu_loops import ask, element, share, specialised
from .cpu_math import zeros


@inlined
def clear(partial: Any, columns: int) -> None:
    """A row of float32 partial sums, before the first."""
    for j in range(0, columns, LANES):
        store_some(partial, j, zeros(), columns - j)


def column_sums(dtype: str) -> Function:
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


def partial_sums(name: str, threads: int, columns: int) -> Tensor:
    """Scratch: a row for each thread."""
    return Tensor(name, (threads, columns), float32)


def _forward(dtype: str, streaming: bool) -> Function:
    """(x, bias, y, rows, columns, threads): y = element(x, bias)."""

    def run(arguments: Any, thread: int) -> None:
        x, bias = source(arguments, 0, dtype), source(arguments, 1, dtype)
        y = target(arguments, 2, dtype, streaming)
        rows, columns, threads = arguments[3], arguments[4], arguments[5]
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start = row * columns
            head = min(to_line(y, start), columns)
            whole = head + (columns - head) // PAIR * PAIR
            for j in range(0, head, LANES):
                value = element(load_some(x, start + j, head - j), load_some(bias, j, head - j))
                store_some(y, start + j, value, head - j)
            for j in range(head, whole, PAIR):
                i, k = start + j, j + LANES
                ask(x, i)
                low = element(load(x, i), load(bias, j))
                store(y, i, low, element(load(x, i + LANES), load(bias, k)))
            for j in range(whole, columns, LANES):
                count = columns - j
                value = element(load_some(x, start + j, count), load_some(bias, j, count))
                store_some(y, start + j, value, count)

    return run


@inlined
def _add_some(partial: Any, j: int, value: Any, count: int) -> None:
    store_some(partial, j, load_some(partial, j, count) + value, count)


def _sum_rows(dtype: str) -> Function:
    """(dy, partials, rows, columns, threads): partial sums of dy over the rows of a thread."""

    def run(arguments: Any, thread: int) -> None:
        dy = source(arguments, 0, dtype)
        rows, columns, threads = arguments[2], arguments[3], arguments[4]
        partial = at(target(arguments, 1, "float32", False), thread * columns)
        clear(partial, columns)
        whole = columns // PAIR * PAIR
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start = row * columns
            for j in range(0, whole, PAIR):
                i, k = start + j, j + LANES
                ask(dy, i)
                low = load(partial, j) + load(dy, i)
                store(partial, j, low, load(partial, k) + load(dy, i + LANES))
            for j in range(whole, columns, LANES):
                _add_some(partial, j, load_some(dy, start + j, columns - j), columns - j)

    return run


def gradient_some(
    dy: Any, x: Any, bias: Any, dx: Any, partial: Any, start: int, j: int, count: int
) -> None:
    """Stands for `_gradient_some`, specialised."""
    raise AssertionError("only a specialised loop runs")


def _gradient_some(
    dy: Any, x: Any, bias: Any, dx: Any, partial: Any, start: int, j: int, count: int
) -> None:
    while count > 0:
        i = start + j
        d = element(load_some(dy, i, count), load_some(x, i, count), load_some(bias, j, count))
        store_some(dx, i, d, count)
        _add_some(partial, j, d, count)
        j, count = j + LANES, count - LANES


def _backward(dtype: str, streaming: bool) -> Function:
    """(dy, x, bias, dx, partials, rows, columns, threads): dx = element(dy, x, bias)."""

    def run(arguments: Any, thread: int) -> None:
        dy, x = source(arguments, 0, dtype), source(arguments, 1, dtype)
        bias, dx = source(arguments, 2, dtype), target(arguments, 3, dtype, streaming)
        rows, columns, threads = arguments[5], arguments[6], arguments[7]
        partial = at(target(arguments, 4, "float32", False), thread * columns)
        clear(partial, columns)
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start = row * columns
            head = min(to_line(dx, start), columns)
            whole = head + (columns - head) // PAIR * PAIR
            gradient_some(dy, x, bias, dx, partial, start, 0, head)
            for j in range(head, whole, PAIR):
                i, k, m = start + j, j + LANES, start + j + LANES
                ask(dy, i)
                ask(x, i)
                low = element(load(dy, i), load(x, i), load(bias, j))
                high = element(load(dy, m), load(x, m), load(bias, k))
                store(dx, i, low, high)
                store(partial, j, load(partial, j) + low, load(partial, k) + high)
            gradient_some(dy, x, bias, dx, partial, start, whole, columns - whole)

    return run


def prepare_by_column(spec: Spec, function: Function) -> Prepared:
    """y = function(x, bias) of a matrix and a row; `function` takes and returns lanes."""
    kernel = compiled(specialised(_forward(spec.dtype.name, spec.streaming), element=function))
    rows, columns = spec.io.reads[0].shape

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in ("x", "bias", "y")]
        return launcher(kernel, [*addresses, rows, columns], spec.target.multiprocessors, tensors)

    return Prepared(bind=bind)


def prepare_by_column_backward(spec: Spec, function: Function | None) -> Prepared:
    """dx = function(dy, x, bias) and dbias, its sum over the rows; without a function that of dy.

    Each thread adds to a row of its own, which one thread adds up: the same bytes for the same
    number of threads.
    """
    dtype, threads = spec.dtype.name, spec.target.multiprocessors
    rows, columns = spec.io.reads[0].shape
    if function is None:
        kernel, names = compiled(_sum_rows(dtype)), ["dy", "partials"]
    else:
        some = inlined(specialised(_gradient_some, element=function))
        loop = _backward(dtype, spec.streaming)
        kernel = compiled(specialised(loop, element=function, gradient_some=some))
        names = ["dy", "x", "bias", "dx", "partials"]
    sums = compiled(column_sums(dtype))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        first = launcher(kernel, [*addresses, rows, columns], threads, tensors)
        parts = [tensors[name].data_ptr() for name in ("partials", "dbias")]
        second = launcher(sums, [*parts, threads, columns], 1, tensors)

        def launch() -> None:
            first()
            second()

        return launch

    return Prepared(bind=bind, scratch=[partial_sums("partials", threads, columns)])
