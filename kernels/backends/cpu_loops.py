"""Loops that several `cpu` kernels share, specialised to what happens to an element."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from ..spec import Launch, Prepared, Spec, Tensors
from .cpu import Function, compiled, inlined, launcher
from .cpu_lanes import (
    LANES,
    PAIR,
    load,
    load_some,
    prefetch,
    source,
    store,
    store_some,
    target,
    to_line,
)

AHEAD = 768
"""Elements between what is worked on and what is asked for: about a memory's latency at its speed.

Without it arithmetic and memory take turns: a core looks ahead some 500 instructions, which is no
more than a dozen lines.
"""


def specialised(function: Function, **bound: Function) -> Function:
    """`function` with the global names in `bound` replaced, under a name (and cache) of its own.

    Numba cannot cache a function that closes over another one; a global is no obstacle.
    """
    assert isinstance(function, FunctionType)
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **bound},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    names = ",".join(f"{f.__module__}.{f.__qualname__}" for f in bound.values())
    made.__qualname__ += f"-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
    return made


@inlined
def share(units: int, thread: int, threads: int) -> tuple[int, int]:
    """First and one past the last of `units` that `thread` works on."""
    return units * thread // threads, units * (thread + 1) // threads


def element(*operands: Any) -> Any:
    """Stands for the element function until a loop is specialised."""
    raise AssertionError("only a specialised loop runs")


def _of_0(a: Any, b: Any, c: Any) -> Any:
    return element()


def _of_1(a: Any, b: Any, c: Any) -> Any:
    return element(a)


def _of_2(a: Any, b: Any, c: Any) -> Any:
    return element(a, b)


def _of_3(a: Any, b: Any, c: Any) -> Any:
    return element(a, b, c)


def _edge(y: Any, a: Any, b: Any, c: Any, i: int, count: int) -> None:
    """Up to 31 elements from i on."""
    while count > 0:
        value = element(load_some(a, i, count), load_some(b, i, count), load_some(c, i, count))
        store_some(y, i, value, count)
        i, count = i + LANES, count - LANES


def edge(*operands: Any) -> None:
    """Stands for `_edge`, specialised."""
    raise AssertionError("only a specialised loop runs")


def _edge_of_2(y: Any, z: Any, a: Any, b: Any, c: Any, i: int, count: int) -> None:
    """Up to 31 elements of two outputs from i on."""
    while count > 0:
        p, q = element(load_some(a, i, count), load_some(b, i, count), load_some(c, i, count))
        store_some(y, i, p, count)
        store_some(z, i, q, count)
        i, count = i + LANES, count - LANES


@inlined
def ask(x: Any, i: int) -> None:
    """Ask for the 32 elements that will be worked on `AHEAD` elements after those at i."""
    prefetch(x, i + AHEAD)
    prefetch(x, i + LANES + AHEAD)


def _elementwise(reads: int, dtypes: Sequence[str], streaming: bool) -> Function:
    """(a, b, c, y, elements, threads); unused sources repeat another address and are not read."""
    of_a, of_b, of_c, of_y = dtypes

    def run(arguments: Any, thread: int) -> None:
        a = source(arguments, 0, of_a)
        b = source(arguments, 1, of_b)
        c = source(arguments, 2, of_c)
        y = target(arguments, 3, of_y, streaming)
        elements, threads = arguments[4], arguments[5]
        head = min(to_line(y, 0), elements)
        units = (elements - head) // PAIR
        first, last = share(units, thread, threads)
        if thread == 0:
            edge(y, a, b, c, 0, head)
        for unit in range(first, last):
            i = head + unit * PAIR
            j = i + LANES
            if reads > 0:
                ask(a, i)
            if reads > 1:
                ask(b, i)
            if reads > 2:
                ask(c, i)
            low = element(load(a, i), load(b, i), load(c, i))
            store(y, i, low, element(load(a, j), load(b, j), load(c, j)))
        if thread == threads - 1:
            done = head + units * PAIR
            edge(y, a, b, c, done, elements - done)

    return run


def _elementwise_of_2(dtype: str, streaming: bool) -> Function:
    """(a, b, c, y, z, elements, threads): two outputs, which stream if their lines coincide."""

    def run(arguments: Any, thread: int) -> None:
        a, b, c = (
            source(arguments, 0, dtype),
            source(arguments, 1, dtype),
            source(arguments, 2, dtype),
        )
        y, z = target(arguments, 3, dtype, streaming), target(arguments, 4, dtype, streaming)
        elements, threads = arguments[5], arguments[6]
        together = to_line(y, 0) == to_line(z, 0)
        head = min(to_line(y, 0), elements)
        units = (elements - head) // PAIR
        first, last = share(units, thread, threads)
        if thread == 0:
            edge(y, z, a, b, c, 0, head)
        for unit in range(first, last):
            i = head + unit * PAIR
            j = i + LANES
            ask(a, i)
            ask(b, i)
            ask(c, i)
            low, low_z = element(load(a, i), load(b, i), load(c, i))
            high, high_z = element(load(a, j), load(b, j), load(c, j))
            store(y, i, low, high)
            if together:
                store(z, i, low_z, high_z)
            else:
                store_some(z, i, low_z, LANES)
                store_some(z, j, high_z, LANES)
        if thread == threads - 1:
            done = head + units * PAIR
            edge(y, z, a, b, c, done, elements - done)

    return run


def prepare_elementwise(spec: Spec, function: Function, dtype: str | None = None) -> Prepared:
    """y = function(reads), all of one shape; `function` takes and returns lanes.

    It may return two vectors for two outputs of three inputs, all of one type. `dtype` is how
    elements are loaded and stored where that is not their own: "bits16".
    """
    reads, writes = spec.io.reads, spec.io.writes
    lifted = inlined(specialised((_of_0, _of_1, _of_2, _of_3)[len(reads)], element=function))
    names = [tensor.name for tensor in reads]
    names += [writes[0].name] * (3 - len(names)) + [tensor.name for tensor in writes]
    dtypes = [dtype or spec.io.operands[name].dtype.name for name in names]
    loop, rest = (
        (_elementwise(len(reads), dtypes, spec.streaming), _edge)
        if len(writes) == 1
        else (_elementwise_of_2(dtypes[0], spec.streaming), _edge_of_2)
    )
    kernel = compiled(
        specialised(loop, element=lifted, edge=inlined(specialised(rest, element=lifted)))
    )
    extent = writes[0].elements

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, extent], spec.target.multiprocessors, tensors)

    return Prepared(bind=bind)
