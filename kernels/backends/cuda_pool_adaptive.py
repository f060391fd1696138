"""Windows that spread evenly over NCHW planes in CUDA C++: what `include/pool_adaptive.cuh` needs.

Bytes loaded beyond the traffic: a plane that does not fit in shared memory is cut into bands, which
load the rows that two of them share twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..spec import CannotPrepare, Choice, Launch, Prepared, Spec, Tensors
from ..target import KIB, Target
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes

_THREADS = 256
_RESERVED = 2 * KIB  # shared memory a block takes beside what it asks for
_TILE = 16 * KIB  # of small planes that share a block
_SHORTEST_BAND = 8  # rows that a block writes where nothing fits in shared memory
_UNROLLED_ROWS = 64  # of dx
_UNROLLED_ELEMENTS = 160  # of x, that a thread adds up
_STORING = 64  # threads of a multiprocessor that keep its stores busy


@dataclass(frozen=True)
class Evenly:
    """One direction of a pooling; read, written: (rows, columns) of a plane. itemsize in bytes."""

    forward: bool
    planes: int
    read: tuple[int, int]
    written: tuple[int, int]
    itemsize: int

    @property
    def row_bytes(self) -> int:
        """Of a row that is read."""
        return self.read[1] * self.itemsize

    def held(self, rows: int) -> int:
        """Rows that are read for so many rows that are written, at most."""
        read, written = self.read[0], self.written[0]
        return min(rows * read // written + 2, read)

    def band(self, rows: int) -> int:
        """The longest band for which at most `rows` are read; below 1 where there is none."""
        return min((rows - 2) * self.written[0] // self.read[0], self.written[0])


@dataclass(frozen=True)
class Plan:
    """What the kernel is given: vectors of `bytes`, `columns` that a thread writes at once, planes
    in `bands` of `band_rows`, or `together` in a block. staged: what is read lies in shared memory;
    gathered: what is written, too. whole: a thread has the whole column of a plane."""

    bytes: int
    columns: int
    bands: int
    band_rows: int
    together: int
    blocks: int
    staged: bool
    gathered: bool
    whole: bool
    shared_bytes: int


def even_plan(one: Evenly, target: Target) -> Plan:
    """Raises CannotPrepare where no grid is large enough."""
    width = vector_bytes(target)
    margins = 4 * width  # of a run, which may begin and end within a vector
    most = target.shared_per_block - _RESERVED - 2 * margins
    fair = min(most, target.shared_per_multiprocessor // 3 - _RESERVED - 2 * margins)
    columns = 1 if one.forward else _vector(one.written[1] * one.itemsize, width) // one.itemsize
    plane = one.read[0] * one.row_bytes
    result = one.written[0] * one.written[1] * one.itemsize
    gathered = columns == 1 and plane + result <= fair
    if plane <= fair:
        plane += result * gathered
        together = max(1, min(_TILE // plane, one.planes // (4 * target.multiprocessors)))
        blocks = blocks_for(one.planes, together)
        shared = together * plane + margins * (1 + gathered)
        whole = _unrolls(one, columns, target)
        shape = 1, one.written[0], together, blocks
        return Plan(width, columns, *shape, True, gathered, whole, shared)
    band_rows = max(one.band(fair // one.row_bytes), 0) or one.band(most // one.row_bytes)
    staged = band_rows >= 1
    if not staged:
        band_rows = _SHORTEST_BAND
    bands = -(-one.written[0] // band_rows)
    shared = one.held(band_rows) * one.row_bytes + margins if staged else 0
    blocks = blocks_for(one.planes * bands, 1)
    return Plan(width, columns, bands, band_rows, 1, blocks, staged, False, False, shared)


def _vector(row_bytes: int, widest: int) -> int:
    """Bytes of the widest vector that rows are made of; an element where there is none."""
    return next((n for n in (widest, 16, 8, 4) if row_bytes % n == 0), 2)


def _unrolls(one: Evenly, columns: int, target: Target) -> bool:
    """Whether a thread has few rows, and there are threads enough with all of a column each.

    A quarter of the machine for sums, which wait for shared memory; stores wait for nothing.
    """
    across = one.written[1] // columns
    if one.forward:
        few = one.read[0] * -(-one.read[1] // across) <= _UNROLLED_ELEMENTS
        busy = target.threads_per_multiprocessor // 4
    else:
        few, busy = one.written[0] <= _UNROLLED_ROWS, _STORING
    return few and one.planes * across >= busy * target.multiprocessors


def prepare_adaptive(direction: str, spec: Spec, source: Path) -> Prepared:
    """Means over windows, or their gradient.

    Raises CannotPrepare where it does not compile, the image is too large, or no grid is.
    """
    (read,), (written,) = spec.io.reads, spec.io.writes
    forward = direction == "forward"
    _, _, height, width = (read if forward else written).shape
    _, _, out_height, out_width = (written if forward else read).shape
    if max(height, width) * max(out_height + 1, out_width + 1) >= 2**31:
        raise CannotPrepare("windows that differ are counted in 31 bits")
    planes = read.shape[0] * read.shape[1]
    item = spec.dtype.bits // 8
    image, windows = (height, width), (out_height, out_width)
    sizes_read, sizes_written = (image, windows) if forward else (windows, image)
    one = Evenly(forward, planes, sizes_read, sizes_written, item)
    plan = even_plan(one, spec.target)
    axes = f"EvenAxis<{height}, {out_height}>, EvenAxis<{width}, {out_width}>"
    kernel_name = "adaptive_means" if forward else "adaptive_gradients"
    sizes = [plan.bytes] if forward else [plan.columns, plan.bytes]
    flags = [str(flag).lower() for flag in (plan.staged, plan.gathered, plan.whole)]
    shape = ", ".join(map(str, [*sizes, reuse(spec), _THREADS, *flags]))
    (kernel,) = build(spec, source, f"{kernel_name}<{TYPES[spec.dtype.name]}, {axes}, {shape}>")
    counts = map(numpy.int32, (plan.bands, plan.band_rows, plan.together))
    numbers: list[numpy.generic] = [numpy.int64(planes), *counts]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        given, result = operands(tensors, (read, written))
        if result.data_ptr() % (plan.columns * item):
            wanted = f"{written.name} must begin on {plan.columns * item} bytes"
            raise ValueError(f"{wanted}; copy the slice")
        if not planes:
            return lambda: None
        geometry = Geometry(plan.blocks, _THREADS, plan.shared_bytes)
        return kernel.bind(stream, geometry, (given, result, *numbers))

    choice: Choice = {"bytes": plan.bytes, "columns": plan.columns, "whole": plan.whole}
    return Prepared(bind, choice=choice)
