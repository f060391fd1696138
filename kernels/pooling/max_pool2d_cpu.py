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
    inside,
    interleaved_high,
    interleaved_low,
    lane,
    load_inside,
)
from ..backends.cpu_lanes import (
    LANES,
    PAIR,
    at,
    load,
    prefetch,
    source,
    store_some,
    target,
)
from ..backends.cpu_loops import AHEAD, share
from ..backends.cpu_math import (
    equals,
    splat,
    splat_int,
    where,
    zeros,
)
from ..backends.cpu_max_pool import one_row, pool_with_nan
from ..backends.cpu_pool import BUFFER_ELEMENTS, ahead, leave, leave_some
from ..dtypes import float32, uint8
from ..operation import Tensor, tensors
from ..spec import Launch, Prepared, Spec, Tensors


def _forward(dtype: str, streaming: bool, kernel: int, stride: int, padding: int) -> Function:
    """(x, y, offset, values, places, tops, rows, *extents): see `prepare`."""

    def run(arguments: Any, thread: int) -> None:
        x, y = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        offset = target(arguments, 2, "uint8", streaming)
        planes, height, width = arguments[7], arguments[8], arguments[9]
        out_h, out_w = arguments[10], arguments[11]
        some, room, across, threads = arguments[12], arguments[13], arguments[14], arguments[15]
        values = at(target(arguments, 3, "float32", False), thread * room)
        places = at(target(arguments, 4, "uint8", False), thread * room)
        tops = at(target(arguments, 5, "float32", False), thread * across)
        rows = at(target(arguments, 6, "float32", False), thread * across)
        for i in range(0, across, LANES):  # what is never written lies outside the image
            store_some(tops, i, splat(-inf), across - i)
            store_some(rows, i, splat(kernel * kernel), across - i)
        settings = kernel, stride, padding
        parts = (out_h + some - 1) // some
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * some
            end, start = min(begin + some, out_h), (plane * out_h + begin) * out_w
            image, done, placed = plane * height * width, 0, 0
            for row in range(begin, end):
                top, into = row * stride - padding, (row - begin) * out_w
                corner = image + top * width
                ahead(x, corner, stride * width)
                out = values, places, into, out_w
                if top >= 0 and top + kernel <= height:
                    void = one_row(x, corner, width, 0, kernel, settings, out, (tops, rows, across))
                else:
                    above, below_ = max(0, -top), min(kernel, height - top)
                    void = one_row(
                        x, corner, width, above, below_, settings, out, (tops, rows, across)
                    )
                if void:
                    for block in range(0, out_w, LANES):
                        column = block * stride - padding
                        best, place = pool_with_nan(
                            x, image, top, column, height, width, kernel, stride
                        )
                        store_some(values, into + block, best, LANES)
                        store_some(places, into + block, place, LANES)
                ready = (row - begin + 1) * out_w
                done = leave(values, y, start, done, ready)
                placed = leave(places, offset, start, placed, ready)
            count = (end - begin) * out_w
            leave_some(values, y, start, done, count - done)
            leave_some(places, offset, start, placed, count - placed)

    return run


@inlined
def _add_windows(
    sums: Any,
    dy: Any,
    offset: Any,
    start: int,
    q: int,
    phase: int,
    kr: int,
    extents: tuple[int, int],
    within: bool,
    settings: tuple[int, int, int],
) -> Any:
    """Add to 16 gradients what one row of windows gives them, from their kernel row `kr`.

    They are those of the columns (q + lane) · stride + phase; `start` is the element at which the
    row of windows starts, `extents` are its length and the elements of all rows, and `within` says
    that all 16 windows of each load are in the row. At its ends neighbouring rows are read too, and
    passed over; only where there are none do loads have to be masked, byte by byte where the
    processor knows no better.
    """
    kernel, stride, padding = settings
    out_w, elements = extents
    if phase == 0:
        prefetch(dy, start + q + AHEAD)
        prefetch(offset, start + q + AHEAD)
    for kc in range(kernel - 1, -1, -1):
        if (phase + padding - kc) % stride == 0:
            column = q + (phase + padding - kc) // stride
            i, here = start + column, splat_int(kr * kernel + kc)
            if within:
                gradient, place = load(dy, i), load(offset, i)
            elif i >= 0 and i + LANES <= elements:
                gradient, place = load(dy, i), load(offset, i)
                place = where(inside(column, out_w), place, splat_int(-1))
            else:
                gradient = load_inside(dy, start, column, out_w, False)
                place = load_inside(offset, start, column, out_w, False)
            sums += where(equals(place, here), gradient, zeros())
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
        extents, settings = (out_w, planes * out_h * out_w), (kernel, stride, padding)
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
                                a = _add_windows(
                                    *(a, dy, offset, start, q, phase, kr),
                                    *(extents, within, settings),
                                )
                                if stride == 2:
                                    b = _add_windows(
                                        *(b, dy, offset, start, q, 1, kr),
                                        *(extents, within, settings),
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
                done = leave(values, dx, first_element, done, into + width)
            count = (end - begin) * width
            leave_some(values, dx, first_element, done, count - done)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    threads, dims = spec.target.multiprocessors, spec.dims
    settings = (dims["kernel"], dims["stride"], dims["padding"])
    make = _forward if direction == "forward" else _backward
    kernel = compiled(make(spec.dtype.name, spec.streaming, *settings))
    out_h, out_w = spec.io.operands["y" if direction == "forward" else "dy"].shape[2:]
    width = out_w if direction == "forward" else dims["width"]
    rows = max(1, BUFFER_ELEMENTS // max(width, 1))
    room = rows * width + LANES * dims["stride"] + PAIR
    scratch = [Tensor("values", (threads, room), float32)]
    if direction == "forward":
        across = dims["width"] + 2 * dims["padding"] + (LANES + 1) * dims["stride"] + dims["kernel"]
        across += PAIR
        scratch.append(Tensor("places", (threads, room), uint8))
        scratch += tensors("tops rows", (threads, across), float32)
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
    if direction == "forward":
        extents.append(across)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, *extents], threads, tensors)

    return Prepared(bind=bind, scratch=scratch)
