"""Max-pooling on the host: 16 windows at a time along the width of the image.

Rows are put together in a buffer of the thread, where lanes may run over the end of a row and
nothing needs to be aligned, and leave it in whole lines. Backward gathers: it visits each element
of dx once and asks the windows that hold it, in their order, whether it was their maximum. Columns
that are alike modulo the stride belong to consecutive windows, so those loads are contiguous.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_images import (
    evens,
    gather_inside,
    interleaved_high,
    interleaved_low,
    lane,
    load_inside,
    outside_left,
)
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    source,
    store,
    store_some,
    target,
    to_line,
)
from ..backends.cpu_loops import share
from ..backends.cpu_math import beats, equals, splat, splat_int, where, zeros
from ..dtypes import float32, uint8
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

_BUFFER_ELEMENTS = 4096  # of dx or y put together before they leave: they stay in the L1 cache


@inlined
def _leave(buffer: Any, y: Any, start: int, count: int) -> None:
    """Move `count` elements from the buffer to y, from element `start` on."""
    head = min(to_line(y, start), count)
    _leave_some(buffer, y, start, 0, head)
    whole = head + (count - head) // PAIR * PAIR
    for j in range(head, whole, PAIR):
        store(y, start + j, load(buffer, j), load(buffer, j + LANES))
    _leave_some(buffer, y, start, whole, count - whole)


@inlined
def _leave_some(buffer: Any, y: Any, start: int, j: int, count: int) -> None:
    while count > 0:
        store_some(y, start + j, load(buffer, j), count)
        j, count = j + LANES, count - LANES


@inlined
def _strided(x: Any, row: int, column: int, stride: int, width: int) -> Any:
    """Every `stride`-th of the columns from `column` on, -inf where outside the row."""
    if stride == 1:
        return load_inside(x, row, column, width, True)
    if stride == 2:
        return evens(
            load_inside(x, row, column, width, True),
            load_inside(x, row, column + LANES, width, True),
        )
    return gather_inside(x, row, column, stride, width, True)


@inlined
def _strided_within(x: Any, row: int, column: int, stride: int, width: int) -> Any:
    """As `_strided`, where all columns are known to be inside."""
    if stride == 1:
        return load(x, row + column)
    if stride == 2:
        return evens(load(x, row + column), load(x, row + column + LANES))
    return gather_inside(x, row, column, stride, width, True)


@inlined
def _pool_16(
    x: Any,
    plane: int,
    top: int,
    column: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
) -> tuple[Any, Any]:
    """Maximum and its place in 16 windows whose first rows are `top`, first columns from `column`.

    `plane` is the element the image starts at.
    """
    first, last = max(0, -top), min(kernel, height - top)
    best = splat(-inf)
    place = splat_int(first * kernel) + outside_left(column, stride)
    within = column >= 0 and column + kernel - 1 + LANES * stride <= width
    for r in range(first, last):
        row = plane + (top + r) * width
        for c in range(kernel):
            if within:
                value = _strided_within(x, row, column + c, stride, width)
            else:
                value = _strided(x, row, column + c, stride, width)
            larger = beats(value, best)
            best = where(larger, value, best)
            place = where(larger, splat_int(r * kernel + c), place)
    return best, place


def _forward(dtype: str, streaming: bool, kernel: int, stride: int, padding: int) -> Function:
    """(x, y, offset, values, places, *extents): see `_extents`."""

    def run(arguments: Any, thread: int) -> None:
        x, y = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        offset = target(arguments, 2, "uint8", streaming)
        planes, height, width, out_h, out_w = (
            arguments[5],
            arguments[6],
            arguments[7],
            arguments[8],
            arguments[9],
        )
        rows, room, threads = arguments[10], arguments[11], arguments[12]
        values = at(target(arguments, 3, "float32", False), thread * room)
        places = at(target(arguments, 4, "uint8", False), thread * room)
        parts = (out_h + rows - 1) // rows
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * rows
            end = min(begin + rows, out_h)
            for row in range(begin, end):
                for j in range(0, out_w, LANES):
                    best, place = _pool_16(
                        x,
                        plane * height * width,
                        row * stride - padding,
                        j * stride - padding,
                        height,
                        width,
                        kernel,
                        stride,
                        padding,
                    )
                    into = (row - begin) * out_w + j
                    store_some(values, into, best, LANES)
                    store_some(places, into, place, LANES)
            start, count = (plane * out_h + begin) * out_w, (end - begin) * out_w
            _leave(values, y, start, count)
            _leave(places, offset, start, count)

    return run


@inlined
def _gradient_16(
    dy: Any,
    offset: Any,
    plane: int,
    row: int,
    q: int,
    phase: int,
    out_h: int,
    out_w: int,
    kernel: int,
    stride: int,
    padding: int,
) -> Any:
    """Gradients of the columns (q + lane) · stride + phase of one row of the image."""
    sums = zeros()
    lowest, highest = q + (padding - kernel + 1) // stride, q + (stride - 1 + padding) // stride
    within = lowest >= 0 and highest + LANES <= out_w
    for kr in range(kernel - 1, -1, -1):
        below = row + padding - kr
        out_row = below // stride
        if below < 0 or below % stride != 0 or out_row >= out_h:
            continue
        start = plane + out_row * out_w
        for kc in range(kernel - 1, -1, -1):
            if (phase + padding - kc) % stride != 0:
                continue
            column = q + (phase + padding - kc) // stride
            if within:
                gradient, place = load(dy, start + column), load(offset, start + column)
            else:
                gradient = load_inside(dy, start, column, out_w, False)
                place = load_inside(offset, start, column, out_w, False)
            chosen = equals(place, splat_int(kr * kernel + kc))
            sums += where(chosen, gradient, zeros())
    return sums


def _backward(dtype: str, streaming: bool, kernel: int, stride: int, padding: int) -> Function:
    """(dy, offset, dx, values, *extents): see `_extents`."""

    def run(arguments: Any, thread: int) -> None:
        dy, offset = source(arguments, 0, dtype), source(arguments, 1, "uint8")
        dx = target(arguments, 2, dtype, streaming)
        planes, height, width, out_h, out_w = (
            arguments[4],
            arguments[5],
            arguments[6],
            arguments[7],
            arguments[8],
        )
        rows, room, threads = arguments[9], arguments[10], arguments[11]
        values = at(target(arguments, 3, "float32", False), thread * room)
        parts = (height + rows - 1) // rows
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * rows
            end, outputs = min(begin + rows, height), plane * out_h * out_w
            for row in range(begin, end):
                into = (row - begin) * width
                for q in range(0, (width + stride - 1) // stride, LANES):
                    if stride == 2:
                        a = _gradient_16(
                            dy, offset, outputs, row, q, 0, out_h, out_w, kernel, stride, padding
                        )
                        b = _gradient_16(
                            dy, offset, outputs, row, q, 1, out_h, out_w, kernel, stride, padding
                        )
                        store_some(values, into + 2 * q, interleaved_low(a, b), LANES)
                        store_some(values, into + 2 * q + LANES, interleaved_high(a, b), LANES)
                        continue
                    for phase in range(stride):
                        a = _gradient_16(
                            dy,
                            offset,
                            outputs,
                            row,
                            q,
                            phase,
                            out_h,
                            out_w,
                            kernel,
                            stride,
                            padding,
                        )
                        for k in range(LANES):
                            column = (q + k) * stride + phase
                            store_some(values, into + column, splat(lane(a, k)), 1)
            _leave(values, dx, (plane * height + begin) * width, (end - begin) * width)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    threads, dims = spec.target.multiprocessors, spec.dims
    settings = (dims["kernel"], dims["stride"], dims["padding"])
    make = _forward if direction == "forward" else _backward
    kernel = compiled(make(spec.dtype.name, spec.streaming, *settings))
    out_h, out_w = spec.io.operands["y" if direction == "forward" else "dy"].shape[2:]
    width = out_w if direction == "forward" else dims["width"]
    rows = max(1, _BUFFER_ELEMENTS // max(width, 1))
    room = rows * width + LANES * dims["stride"] + PAIR
    scratch = [Tensor("values", (threads, room), float32)]
    if direction == "forward":
        scratch.append(Tensor("places", (threads, room), uint8))
    names = [*spec.io.operands, *(tensor.name for tensor in scratch)]
    extents = [
        dims["images"] * dims["channels"],
        dims["height"],
        dims["width"],
        out_h,
        out_w,
        rows,
        room,
    ]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, *extents], threads, tensors)

    return Prepared(bind=bind, scratch=scratch)
