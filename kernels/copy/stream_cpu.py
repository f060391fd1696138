"""The copy family on the host: whole lines loaded, and stored past the cache."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_lanes import (
    LANES,
    load,
    load_some,
    source,
    store_some,
    target,
)
from ..backends.cpu_loops import prepare_elementwise, share
from ..backends.cpu_math import fma, splat, total, zeros
from ..spec import Launch, Prepared, Spec, Tensors
from .stream import FACTOR, FILL_VALUE

Lanes = Any


@inlined
def copied(x: Lanes) -> Lanes:
    return x


@inlined
def _scaled(x: Lanes) -> Lanes:
    return x * splat(FACTOR)


@inlined
def added(a: Lanes, b: Lanes) -> Lanes:
    return a + b


@inlined
def _triad(a: Lanes, b: Lanes) -> Lanes:
    return fma(splat(FACTOR), b, a)


@inlined
def filled() -> Lanes:
    return splat(FILL_VALUE)


_FUNCTIONS: dict[str, Function] = {
    "copy": copied,
    "scale": _scaled,
    "add": added,
    "triad": _triad,
    "fill": filled,
}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "read":
        return prepare_row_sums(spec)
    if spec.operation.name == "copy":
        return prepare_copy(spec)
    return prepare_elementwise(spec, _FUNCTIONS[spec.operation.name])


def prepare_copy(spec: Spec) -> Prepared:
    """Bits are moved as they are, so that every NaN arrives as it was."""
    return prepare_elementwise(spec, copied, "bits16" if spec.dtype.bits == 16 else "float32")


def _row_sums(dtype: str) -> Function:
    """(x, sums, rows, columns, threads); eight sums at once hide the latency of an addition.

    Nothing is asked for ahead: with so little to do a core keeps its loads in flight by itself.
    """

    def run(arguments: Any, thread: int) -> None:
        x = source(arguments, 0, dtype)
        sums = target(arguments, 1, "float32", False)
        rows, columns, threads = arguments[2], arguments[3], arguments[4]
        first, last = share(rows, thread, threads)
        for row in range(first, last):
            start, whole = row * columns, columns // (8 * LANES) * (8 * LANES)
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros()
            for i in range(start, start + whole, 8 * LANES):
                s0 += load(x, i)
                s1 += load(x, i + LANES)
                s2 += load(x, i + 2 * LANES)
                s3 += load(x, i + 3 * LANES)
                s4 += load(x, i + 4 * LANES)
                s5 += load(x, i + 5 * LANES)
                s6 += load(x, i + 6 * LANES)
                s7 += load(x, i + 7 * LANES)
            for j in range(whole, columns, LANES):
                s0 += load_some(x, start + j, columns - j)
            sum_of_row = total(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))
            store_some(sums, row, splat(sum_of_row), 1)

    return run


def prepare_row_sums(spec: Spec) -> Prepared:
    kernel = compiled(_row_sums(spec.dtype.name))
    rows, columns = spec.io.reads[0].shape

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in ("x", "sums")]
        return launcher(kernel, [*addresses, rows, columns], spec.target.multiprocessors, tensors)

    return Prepared(bind=bind)
