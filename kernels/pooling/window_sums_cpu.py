"""Average pooling of NCHW images on the host: 16 windows at a time along the width.

Windows are separable: columns are summed over the rows of the windows into a buffer with zeros on
both sides, then neighbours in it. Backward gathers alike: rows of dy that reach a row of dx are
summed, then the windows that hold each column.
"""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, compiled, inlined, launcher
from ..backends.cpu import refuses as refuses
from ..backends.cpu_images import interleaved_high, interleaved_low, lane, load_inside
from ..backends.cpu_lanes import LANES, PAIR, at, load, source, store_some, target
from ..backends.cpu_loops import share
from ..backends.cpu_math import splat, zeros
from ..backends.cpu_pool import BUFFER_ELEMENTS, ahead, leave, leave_some, of_windows
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

LACKS = {
    "adaptive_avg_pool2d": "adaptive_avg_pool2d is of tier 2: in CUDA C++, Triton and torch",
    "lp_pool2d": "lp_pool2d is of tier 3: in CUDA C++ and torch",
}


@inlined
def _sum_rows(x: Any, first: int, width: int, rows: int, sums: Any) -> None:
    """Sums of the columns of `rows` rows of x, the first of which starts at element `first`."""
    for block in range(0, width, LANES):
        column = min(block, max(0, width - LANES))  # the last may overlap the one before
        value = zeros()
        for r in range(rows):
            row = first + r * width
            if width >= LANES:
                value += load(x, row + column)
            else:
                value += load_inside(x, row, 0, width, False)
        store_some(sums, column, value, min(width, LANES))


def _forward(dtype: str, streaming: bool, kernel: int, stride: int, padding: int) -> Function:
    """(x, y, values, sums, planes, height, width, out_h, out_w, rows, room, across, threads)."""
    factor = 1 / kernel**2

    def run(arguments: Any, thread: int) -> None:
        x, y = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        planes, height, width = arguments[4], arguments[5], arguments[6]
        out_h, out_w, some = arguments[7], arguments[8], arguments[9]
        room, across, threads = arguments[10], arguments[11], arguments[12]
        values = at(target(arguments, 2, "float32", False), thread * room)
        sums = at(target(arguments, 3, "float32", False), thread * across)
        for i in range(0, across, LANES):  # what `_sum_rows` never writes is padding
            store_some(sums, i, zeros(), across - i)
        inner = at(sums, padding)
        parts = (out_h + some - 1) // some
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * some
            end, start = min(begin + some, out_h), (plane * out_h + begin) * out_w
            image, done = plane * height * width, 0
            for row in range(begin, end):
                top = row * stride - padding
                ahead(x, image + top * width, stride * width)
                above, below = max(0, top), min(height, top + kernel)
                _sum_rows(x, image + above * width, width, below - above, inner)
                for block in range(0, out_w, LANES):
                    j = min(block, max(0, out_w - LANES))
                    total = of_windows(sums, j * stride, 0, stride, across)
                    for c in range(1, kernel):
                        total += of_windows(sums, j * stride, c, stride, across)
                    store_some(values, (row - begin) * out_w + j, total * splat(factor), LANES)
                done = leave(values, y, start, done, (row - begin + 1) * out_w)
            leave_some(values, y, start, done, (end - begin) * out_w - done)

    return run


@inlined
def _of_columns(sums: Any, q: int, phase: int, kernel: int, stride: int, padding: int) -> Any:
    """Sums over the windows that hold the columns (q + lane) · stride + phase."""
    total = zeros()
    for c in range(kernel - 1, -1, -1):
        if (phase + padding - c) % stride == 0:
            total += load(sums, q + (phase + padding - c) // stride)
    return total


def _backward(dtype: str, streaming: bool, kernel: int, stride: int, padding: int) -> Function:
    """(dy, dx, values, sums, planes, height, width, out_h, out_w, rows, room, across, threads)."""
    factor, before = 1 / kernel**2, kernel

    def run(arguments: Any, thread: int) -> None:
        dy, dx = source(arguments, 0, dtype), target(arguments, 1, dtype, streaming)
        planes, height, width = arguments[4], arguments[5], arguments[6]
        out_h, out_w, some = arguments[7], arguments[8], arguments[9]
        room, across, threads = arguments[10], arguments[11], arguments[12]
        values = at(target(arguments, 2, "float32", False), thread * room)
        sums = at(target(arguments, 3, "float32", False), thread * across)
        for i in range(0, across, LANES):  # what `_sum_rows` never writes: no window is there
            store_some(sums, i, zeros(), across - i)
        inner = at(sums, before)
        parts = (height + some - 1) // some
        groups = (width + stride - 1) // stride
        first, last = share(planes * parts, thread, threads)
        for part in range(first, last):
            plane, begin = part // parts, part % parts * some
            end, start = min(begin + some, height), (plane * height + begin) * width
            gradients, done = plane * out_h * out_w, 0
            for row in range(begin, end):
                above = max(0, (row + padding - kernel + stride) // stride)
                below = min(out_h, (row + padding) // stride + 1)
                if (row + padding) % stride == 0:
                    ahead(dy, gradients + below * out_w, out_w)
                _sum_rows(dy, gradients + above * out_w, out_w, max(0, below - above), inner)
                into = (row - begin) * width
                for block in range(0, groups, LANES):
                    q = min(block, max(0, groups - LANES))
                    for phase in range(0, stride, 2 if stride == 2 else 1):
                        a = _of_columns(inner, q, phase, kernel, stride, padding) * splat(factor)
                        if stride == 1:
                            store_some(values, into + q, a, LANES)
                        elif stride == 2:
                            b = _of_columns(inner, q, 1, kernel, stride, padding) * splat(factor)
                            store_some(values, into + 2 * q, interleaved_low(a, b), LANES)
                            store_some(values, into + 2 * q + LANES, interleaved_high(a, b), LANES)
                        else:
                            for k in range(LANES):
                                column = (q + k) * stride + phase
                                store_some(values, into + column, splat(lane(a, k)), 1)
                done = leave(values, dx, start, done, into + width)
            leave_some(values, dx, start, done, (end - begin) * width - done)

    return run


def prepare(direction: str, spec: Spec) -> Prepared:
    threads, dims = spec.target.multiprocessors, spec.dims
    kernel, stride, padding = (dims[name] for name in ("kernel", "stride", "padding"))
    forward = direction == "forward"
    make = _forward if forward else _backward
    function = compiled(make(spec.dtype.name, spec.streaming, kernel, stride, padding))
    (read,), (written,) = spec.io.reads, spec.io.writes
    out_h, out_w = (written if forward else read).shape[2:]
    width = out_w if forward else dims["width"]
    rows = max(1, BUFFER_ELEMENTS // max(width, 1))
    room = rows * width + LANES * stride + PAIR
    across = dims["width"] + 2 * padding + (LANES + 1) * stride + 2 * kernel + PAIR
    scratch = [
        Tensor("values", (threads, room), float32),
        Tensor("sums", (threads, across), float32),
    ]
    names = [read.name, written.name, "values", "sums"]
    extents = [dims["images"] * dims["channels"], dims["height"], dims["width"], out_h, out_w]
    extents += [rows, room, across]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        addresses = [tensors[name].data_ptr() for name in names]
        return launcher(function, [*addresses, *extents], threads, tensors)

    return Prepared(bind=bind, scratch=scratch)
