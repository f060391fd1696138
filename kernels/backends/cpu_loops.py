"""Loops that several `cpu` kernels share, specialised to what happens to an element."""

from __future__ import annotations

import hashlib
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
    raise NotImplementedError


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
    raise NotImplementedError


def _elementwise(reads: int, dtype: str, streaming: bool) -> Function:
    """(a, b, c, y, elements, threads); unused sources repeat another address and are not read."""

    def run(arguments: Any, thread: int) -> None:
        a = source(arguments, 0, dtype)
        b = source(arguments, 1, dtype)
        c = source(arguments, 2, dtype)
        y = target(arguments, 3, dtype, streaming)
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
                prefetch(a, i + AHEAD)
                prefetch(a, j + AHEAD)
            if reads > 1:
                prefetch(b, i + AHEAD)
                prefetch(b, j + AHEAD)
            if reads > 2:
                prefetch(c, i + AHEAD)
                prefetch(c, j + AHEAD)
            low = element(load(a, i), load(b, i), load(c, i))
            store(y, i, low, element(load(a, j), load(b, j), load(c, j)))
        if thread == threads - 1:
            done = head + units * PAIR
            edge(y, a, b, c, done, elements - done)

    return run


def prepare_elementwise(spec: Spec, function: Function, dtype: str) -> Prepared:
    """y = function(reads), all of one shape; `function` takes and returns lanes.

    `dtype` is how elements are loaded and stored: that of the spec, or "bits16".
    """
    lifts = (_of_0, _of_1, _of_2, _of_3)
    lifted = inlined(specialised(lifts[len(spec.io.reads)], element=function))
    loop = specialised(
        _elementwise(len(spec.io.reads), dtype, spec.streaming),
        element=lifted,
        edge=inlined(specialised(_edge, element=lifted)),
    )
    kernel = compiled(loop)
    (y,) = spec.io.writes
    names = [tensor.name for tensor in spec.io.reads]
    names += [y.name] * (3 - len(names)) + [y.name]
    extent = y.elements

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, extent], spec.target.multiprocessors, tensors)

    return Prepared(bind=bind)
