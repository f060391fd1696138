"""Pooling of NHWC images on the host: 32 neighbouring channels of one pixel at a time.

Windows are read from the cache, into which the rows below are asked for meanwhile. Backward gathers
the windows that hold a pixel, in their order. Where pixels begin on lines they leave past the
cache, else through it.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_lanes import (
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
from ..backends.cpu_loops import share
from ..backends.cpu_math import below, either, either_nan, equals, splat, splat_int, where, zeros
from ..spec import Launch, Prepared, Spec, Tensors

Lanes = Any


@inlined
def _wins(value: Lanes, best: Lanes) -> Any:
    return either(below(best, value), either_nan(value, value))


@inlined
def _ask_below(x: Any, pixel: int, width: int, stride: int, channels: int, channel: int) -> None:
    """Ask for the stride x stride pixels from `pixel` on."""
    for r in range(stride):
        for c in range(stride):
            i = (pixel + r * width + c) * channels + channel
            prefetch(x, i)
            prefetch(x, i + LANES)


def _forward(
    dtype: str, streaming: bool, maximum: bool, kernel: int, stride: int, padding: int
) -> Function:
    """(x, y, offset, *extents): see `prepare`; offset repeats x where there is none."""

    def run(arguments: Any, thread: int) -> None:
        x, y = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        offset = target(arguments, 2, "uint8", False)
        images, height, width, channels = arguments[3], arguments[4], arguments[5], arguments[6]
        out_h, out_w, threads = arguments[7], arguments[8], arguments[9]
        whole = channels // PAIR * PAIR if to_line(y, 0) == 0 and channels % PAIR == 0 else 0
        factor = splat(1.0 / (kernel * kernel))
        first, last = share(images * out_h, thread, threads)
        for line in range(first, last):
            image, top = line // out_h, line % out_h * stride - padding
            r0, r1 = max(0, -top), min(kernel, height - top)
            for column in range(out_w):
                left = column * stride - padding
                c0, c1 = max(0, -left), min(kernel, width - left)
                corner = (image * height + top) * width + left
                into = (line * out_w + column) * channels
                nowhere = r0 * kernel + c0  # where all are -inf
                for channel in range(0, whole, PAIR):
                    low = high = splat(-inf) if maximum else zeros()
                    place = also = splat_int(nowhere)
                    _ask_below(x, corner + kernel * width, width, stride, channels, channel)
                    for r in range(r0, r1):
                        for c in range(c0, c1):
                            i = (corner + r * width + c) * channels + channel
                            a, b = load(x, i), load(x, i + LANES)
                            if maximum:
                                here = splat_int(r * kernel + c)
                                won, too = _wins(a, low), _wins(b, high)
                                low, place = where(won, a, low), where(won, here, place)
                                high, also = where(too, b, high), where(too, here, also)
                            else:
                                low, high = low + a, high + b
                    if maximum:
                        store(offset, into + channel, place, also)
                    else:
                        low, high = low * factor, high * factor
                    store(y, into + channel, low, high)
                for channel in range(whole, channels, LANES):
                    count = channels - channel
                    best = splat(-inf) if maximum else zeros()
                    at_best = splat_int(nowhere)
                    for r in range(r0, r1):
                        for c in range(c0, c1):
                            i = (corner + r * width + c) * channels + channel
                            value = load_some(x, i, count)
                            if maximum:
                                won = _wins(value, best)
                                best = where(won, value, best)
                                at_best = where(won, splat_int(r * kernel + c), at_best)
                            else:
                                best += value
                    if maximum:
                        store_some(offset, into + channel, at_best, count)
                    else:
                        best = best * factor
                    store_some(y, into + channel, best, count)

    return run


def _backward(
    dtype: str, streaming: bool, maximum: bool, kernel: int, stride: int, padding: int
) -> Function:
    """(dy, dx, offset, *extents): see `prepare`; offset repeats dy where there is none."""

    def run(arguments: Any, thread: int) -> None:
        dy, dx = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        offset = source(arguments, 2, "uint8")
        images, height, width, channels = arguments[3], arguments[4], arguments[5], arguments[6]
        out_h, out_w, threads = arguments[7], arguments[8], arguments[9]
        whole = channels // PAIR * PAIR if to_line(dx, 0) == 0 and channels % PAIR == 0 else 0
        factor = splat(1.0 / (kernel * kernel))
        first, last = share(images * height, thread, threads)
        for line in range(first, last):
            image, row = line // height, line % height + padding
            r0, r1 = max(0, (row - kernel + stride) // stride), min(out_h, row // stride + 1)
            for pixel in range(width):
                column = pixel + padding
                c0 = max(0, (column - kernel + stride) // stride)
                c1 = min(out_w, column // stride + 1)
                into = (line * width + pixel) * channels
                for channel in range(0, whole, PAIR):
                    low = high = zeros()
                    if column % stride == 0:
                        soon = (image * out_h + r1) * out_w + column // stride
                        _ask_below(dy, soon, out_w, 1, channels, channel)
                    for r in range(r0, r1):
                        for c in range(c0, c1):
                            i = ((image * out_h + r) * out_w + c) * channels + channel
                            a, b = load(dy, i), load(dy, i + LANES)
                            if maximum:
                                inside = (row - r * stride) * kernel + column - c * stride
                                here = splat_int(inside)
                                a = where(equals(load(offset, i), here), a, zeros())
                                b = where(equals(load(offset, i + LANES), here), b, zeros())
                            low, high = low + a, high + b
                    if not maximum:
                        low, high = low * factor, high * factor
                    store(dx, into + channel, low, high)
                for channel in range(whole, channels, LANES):
                    count = channels - channel
                    total = zeros()
                    for r in range(r0, r1):
                        for c in range(c0, c1):
                            i = ((image * out_h + r) * out_w + c) * channels + channel
                            value = load_some(dy, i, count)
                            if maximum:
                                inside = (row - r * stride) * kernel + column - c * stride
                                chosen = equals(load_some(offset, i, count), splat_int(inside))
                                value = where(chosen, value, zeros())
                            total += value
                    if not maximum:
                        total = total * factor
                    store_some(dx, into + channel, total, count)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    threads, dims, forward = spec.target.multiprocessors, spec.dims, direction == "forward"
    maximum = spec.operation.name == "max_pool2d_nhwc"
    make = _forward if forward else _backward
    settings = (dims["kernel"], dims["stride"], dims["padding"])
    kernel = compiled(make(spec.dtype.name, spec.streaming, maximum, *settings))
    read, written = spec.io.reads[0], spec.io.writes[0]
    out_h, out_w = (written if forward else read).shape[1:3]
    names = [read.name, written.name, "offset" if maximum else read.name]
    extents = [dims[name] for name in ("images", "height", "width", "channels")]
    extents += [out_h, out_w]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(kernel, [*addresses, *extents], threads, tensors)

    return Prepared(bind=bind)
