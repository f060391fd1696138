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
    odds,
    outside_left,
)
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    prefetch,
    source,
    store,
    store_some,
    target,
    to_line,
)
from ..backends.cpu_loops import AHEAD, share
from ..backends.cpu_math import (
    anywhere,
    below,
    either,
    either_nan,
    equals,
    splat,
    splat_int,
    where,
    zeros,
)
from ..dtypes import float32, uint8
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

_BUFFER_ELEMENTS = 4096  # of dx or y put together before they leave: they stay in the L1 cache


@inlined
def _leave(buffer: Any, y: Any, start: int, done: int, ready: int) -> int:
    """Move what makes whole lines of y out of the first `ready` elements of the buffer.

    Element 0 of the buffer belongs to element `start` of y; `done` elements have left before.
    Returns how many have now. A little at a time, so that memory takes it while others are made.
    """
    if done == 0:
        head = to_line(y, start)
        if ready < head:
            return 0
        _leave_some(buffer, y, start, 0, head)
        done = head
    while done + 2 * PAIR <= ready:  # whole lines, of bytes too: half a line costs as much
        for j in (done, done + PAIR):
            store(y, start + j, load(buffer, j), load(buffer, j + LANES))
        done += 2 * PAIR
    return done


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
def _strided_within(
    x: Any, row: int, column: int, c: int, stride: int, padding: int, width: int
) -> Any:
    """As `_strided` from `column` + `c` on, only beyond the left border if at all.

    Two neighbours share their loads.
    """
    i = row + column + c
    if c <= padding and column < 0:
        return _strided(x, row, column + c, stride, width)
    if stride == 1:
        return load(x, i)
    if stride == 2:
        if c == 0:
            return evens(load(x, i), load(x, i + LANES))
        return odds(load(x, i - 1), load(x, i - 1 + LANES))
    return gather_inside(x, row, column + c, stride, width, True)


@inlined
def _reach(kernel: int, stride: int) -> int:
    """Columns that `_strided_within` touches for the 16 windows of one vector."""
    if stride == 2:
        return PAIR + max(kernel - 2, 0)
    return (LANES - 1) * stride + kernel


@inlined
def _pool_within(
    x: Any, first: int, column: int, width: int, kernel: int, stride: int, padding: int
) -> tuple[Any, Any, bool]:
    """Maximum and its place in 16 windows that only the left border cuts; whether they hold a NaN.

    `first` is the element at which their first row starts. If there is a NaN the rest is void.
    """
    best, place = splat(-inf), splat_int(0)
    if column < 0:
        place = outside_left(column, stride)
    before, nan = best, either_nan(best, best)
    for r in range(kernel):
        for c in range(kernel):
            value = _strided_within(x, first + r * width, column, c, stride, padding, width)
            if (r * kernel + c) % 2 == 1:
                nan = either(nan, either_nan(before, value))
            before, larger = value, below(best, value)
            best = where(larger, value, best)
            place = where(larger, splat_int(r * kernel + c), place)
    return best, place, anywhere(either(nan, either_nan(before, before)))


@inlined
def _pool_anywhere(
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
    """As `_pool_within`, at the borders and with NaN: the last NaN wins, as in PyTorch."""
    first, last = max(0, -top), min(kernel, height - top)
    best, place = splat(-inf), splat_int(first * kernel) + outside_left(column, stride)
    for r in range(first, last):
        for c in range(kernel):
            value = _strided(x, plane + (top + r) * width, column + c, stride, width)
            wins = either(below(best, value), either_nan(value, value))
            best = where(wins, value, best)
            place = where(wins, splat_int(r * kernel + c), place)
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
        parts, reach = (out_h + rows - 1) // rows, _reach(kernel, stride)
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * rows
            end, start = min(begin + rows, out_h), (plane * out_h + begin) * out_w
            done = placed = 0
            for row in range(begin, end):
                for block in range(0, out_w, LANES):
                    j = min(block, max(0, out_w - LANES))  # the last may overlap the one before
                    image, top = plane * height * width, row * stride - padding
                    column, void = j * stride - padding, True
                    for r in range(stride):  # the rows of x that this row of y is the first to read
                        for k in range(0, LANES * stride, LANES):
                            prefetch(x, image + (top + r) * width + column + k + AHEAD)
                    best, place = splat(-inf), splat_int(0)
                    rows_within = top >= 0 and top + kernel <= height
                    if rows_within and column + reach <= width:
                        best, place, void = _pool_within(
                            x, image + top * width, column, width, kernel, stride, padding
                        )
                    if void:
                        best, place = _pool_anywhere(
                            x, image, top, column, height, width, kernel, stride, padding
                        )
                    into = (row - begin) * out_w + j
                    store_some(values, into, best, LANES)
                    store_some(places, into, place, LANES)
                ready = (row - begin + 1) * out_w
                done = _leave(values, y, start, done, ready)
                placed = _leave(places, offset, start, placed, ready)
            count = (end - begin) * out_w
            _leave_some(values, y, start, done, count - done)
            _leave_some(places, offset, start, placed, count - placed)

    return run


@inlined
def _window_row(
    sums: Any,
    dy: Any,
    offset: Any,
    start: int,
    q: int,
    phase: int,
    kr: int,
    out_w: int,
    within: bool,
    kernel: int,
    stride: int,
    padding: int,
) -> Any:
    """Add to 16 gradients what one row of windows gives them, from their kernel row `kr`.

    They are those of the columns (q + lane) · stride + phase; `start` is the element at which the
    row of windows starts.
    """
    if phase == 0:
        prefetch(dy, start + q + AHEAD)
        prefetch(offset, start + q + AHEAD)
    for kc in range(kernel - 1, -1, -1):
        if (phase + padding - kc) % stride == 0:
            column = q + (phase + padding - kc) // stride
            if within:
                gradient, place = load(dy, start + column), load(offset, start + column)
            else:
                gradient = load_inside(dy, start, column, out_w, False)
                place = load_inside(offset, start, column, out_w, False)
            chosen = equals(place, splat_int(kr * kernel + kc))
            sums = where(chosen, sums + gradient, sums)
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
        # The windows of the columns q · stride + phase lie at q + lowest to q + highest.
        lowest = -((kernel - 1 - padding) // stride)
        highest = (stride - 1 + padding) // stride
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * rows
            end, first_element = min(begin + rows, height), (plane * height + begin) * width
            done = 0
            for row in range(begin, end):
                into = (row - begin) * width
                over = (row + padding) % stride
                last_kr = over + (kernel - 1 - over) // stride * stride
                groups = (width + stride - 1) // stride
                for block in range(0, groups, LANES):
                    q = min(block, max(0, groups - LANES))
                    within = q + lowest >= 0 and q + highest + LANES <= out_w
                    for phase in range(0, stride, 2 if stride == 2 else 1):
                        a = b = zeros()
                        for kr in range(last_kr, -1, -stride):
                            out_row = (row + padding - kr) // stride
                            if out_row >= 0 and out_row < out_h:
                                start = (plane * out_h + out_row) * out_w
                                a = _window_row(
                                    a,
                                    dy,
                                    offset,
                                    start,
                                    q,
                                    phase,
                                    kr,
                                    out_w,
                                    within,
                                    kernel,
                                    stride,
                                    padding,
                                )
                                if stride == 2:
                                    b = _window_row(
                                        b,
                                        dy,
                                        offset,
                                        start,
                                        q,
                                        1,
                                        kr,
                                        out_w,
                                        within,
                                        kernel,
                                        stride,
                                        padding,
                                    )
                        if stride == 1:
                            store_some(values, into + q, a, LANES)
                        elif stride == 2:
                            store_some(values, into + 2 * q, interleaved_low(a, b), LANES)
                            store_some(values, into + 2 * q + LANES, interleaved_high(a, b), LANES)
                        else:
                            for k in range(LANES):
                                column = (q + k) * stride + phase
                                store_some(values, into + column, splat(lane(a, k)), 1)
                done = _leave(values, dx, first_element, done, into + width)
            count = (end - begin) * width
            _leave_some(values, dx, first_element, done, count - done)

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
