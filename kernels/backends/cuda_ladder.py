"""Steps of kernel ladders in CUDA C++: how `include/ladder.cuh` and the `*_ladder.cu` are launched.

What a variant's name stands for is in the head of its `.cu`. Every step takes every shape: what a
technique cannot do goes as in the step before it, and `choice["path"]` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..ladder import Ladder
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import KIB
from .cuda import TYPES, Geometry, blocks_for, build, operands, vector_bytes
from .cuda_column_sums import SUM_COLUMNS, SUM_ROWS
from .cuda_elementwise import loads_per_thread
from .cuda_rows import nothing

FORWARD_OF_ROWS = Ladder("forward", ("naive", "shared", "vector", "registers"))
BACKWARD_OF_ROWS = Ladder("backward", ("naive", "shared", "vector", "registers"))

THREADS = 256  # kLadderThreads
_VECTOR = 16  # bytes
_MOST_KEPT = 128  # bytes of one matrix's row that a thread keeps
_MOST_SUMS = 32  # columns of a thread that are summed in registers
_TILE = 32 * KIB  # of an image, what a block copies to shared memory
_SHARES = 2  # blocks of a multiprocessor that walk over rows


@dataclass(frozen=True)
class RowStep:
    """How rows are worked on: by `team`, `rows` of them a block, `width` elements at once.

    vectors: of a row that each thread keeps; 0 where the row is read again.
    """

    team: str
    rows: int
    width: int
    vectors: int = 0

    @property
    def path(self) -> str:
        return "registers" if self.vectors else "again"

    def kernel(self, spec: Spec) -> str:
        name, element = spec.operation.name, TYPES[spec.dtype.name]
        if self.vectors:
            return f"{name}_registers<{element}, {self.width}, {self.vectors}>"
        return f"{name}_step<{element}, {self.team}, {self.width}>"


def row_step(spec: Spec, most_columns: int) -> RowStep:
    """What the variant of the spec is at this row length.

    most_columns: that a thread keeps. Raises CannotPrepare where a row has 2^31 columns.
    """
    columns = spec.dims["columns"]
    if columns >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    if spec.variant == "naive":
        return RowStep("OneThread", THREADS, 1)
    if spec.variant == "shared":
        return RowStep("OneBlock", 1, 1)
    width = _VECTOR * 8 // spec.dtype.bits
    vectors = -(-columns // (width * THREADS))
    kept = spec.variant == "registers" and columns % width == 0 and vectors * width <= most_columns
    return RowStep("OneBlock", 1, width, vectors if kept else 0)


def prepare_row_step(spec: Spec, source: Path, again: int, *scalars: numpy.generic) -> Prepared:
    """Kernels of one launch, that take the operands, rows, columns and `scalars`.

    again: bytes that a step reads beyond the traffic where it does not keep its row.
    """
    step = row_step(spec, _MOST_KEPT * 8 // spec.dtype.bits)
    (kernel,) = build(spec, source, step.kernel(spec))
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    geometry = Geometry(blocks_for(rows, step.rows), THREADS)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not rows or not columns:
            return nothing
        extents = numpy.int64(rows), numpy.int32(columns)
        return kernel.bind(stream, geometry, [*data, *extents, *scalars])

    schedule = None if step.vectors else spec.io.traffic + again
    return Prepared(bind, choice={"path": step.path}, schedule_bytes=schedule)


def prepare_layer_norm_step(spec: Spec, source: Path) -> Prepared:
    """The backward: dx by rows, then two sums by columns, or both in one walk over the rows."""
    step = row_step(spec, _MOST_SUMS)
    return (_sums_beside if step.vectors else _sums_apart)(spec, source, step)


def _sums_apart(spec: Spec, source: Path, step: RowStep) -> Prepared:
    """dy and x are read twice for dx, and again, with the statistics, for the sums."""
    tile = THREADS if spec.variant == "naive" else 32
    sums = f"layer_norm_columns<{TYPES[spec.dtype.name]}, {tile}>"
    by_rows, by_columns = build(spec, source, step.kernel(spec), sums)
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    dy, x, _, mean, rstd = spec.io.reads
    dx, *gradients = spec.io.writes

    def bind(tensors: Tensors, stream: Any) -> Launch:
        inputs = operands(tensors, (*spec.io.reads, dx))
        summed = operands(tensors, (dy, x, mean, rstd, *gradients))
        extents = numpy.int64(rows), numpy.int32(columns)
        runs: list[Callable[[], None]] = []
        if rows and columns:
            geometry = Geometry(blocks_for(rows, step.rows), THREADS)
            runs.append(by_rows.bind(stream, geometry, [*inputs, *extents]))
        if columns:
            geometry = Geometry(-(-columns // tile), THREADS)
            runs.append(by_columns.bind(stream, geometry, [*summed, *extents]))
        return _all(runs)

    again = 2 * (dy.traffic + x.traffic) + mean.traffic + rstd.traffic
    return Prepared(bind, choice={"path": step.path}, schedule_bytes=spec.io.traffic + again)


def _sums_beside(spec: Spec, source: Path, step: RowStep) -> Prepared:
    """Raises ValueError, when bound, for what does not begin on whole vectors."""
    column_sums = f"column_sums<{TYPES[spec.dtype.name]}, {SUM_COLUMNS}, {SUM_ROWS}>"
    by_rows, sums = build(spec, source, step.kernel(spec), column_sums)
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    shares = min(rows, _SHARES * spec.target.multiprocessors)
    dx, *gradients = spec.io.writes
    partials = [
        Tensor(f"partial_{one.name}", (max(shares, 1), columns), float32) for one in gradients
    ]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, (*spec.io.reads, dx, *partials))
        for name in ("dy", "x", "weight", "dx"):
            if tensors[name].data_ptr() % _VECTOR:
                raise ValueError(f"{name} must begin on {_VECTOR} bytes; copy the slice")
        totals = operands(tensors, gradients)
        runs: list[Callable[[], None]] = []
        if rows:
            extents = numpy.int64(rows), numpy.int32(columns)
            runs.append(by_rows.bind(stream, Geometry(shares, THREADS), [*data, *extents]))
        geometry = Geometry(-(-columns // SUM_COLUMNS), SUM_COLUMNS * SUM_ROWS)
        for total, partial in zip(totals, data[-2:], strict=True):
            counts = numpy.int32(shares), numpy.int32(columns)
            runs.append(sums.bind(stream, geometry, (total, partial, *counts)))
        return _all(runs)

    return Prepared(bind, partials, choice={"path": step.path})


def prepare_copy_step(spec: Spec, source: Path) -> Prepared:
    """y = x."""
    vector = vector_bytes(spec.target)
    width = 1 if spec.variant == "naive" else vector * 8 // spec.dtype.bits
    loads = loads_per_thread(spec.target, 1, vector) if spec.variant == "unrolled" else 1
    (kernel,) = build(spec, source, f"copy_step<{TYPES[spec.dtype.name]}, {width}, {loads}>")
    elements = spec.io.writes[0].elements
    geometry = Geometry(blocks_for(elements, THREADS * width * loads), THREADS)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        y, x = operands(tensors, (*spec.io.writes, *spec.io.reads))
        if not elements:
            return nothing
        return kernel.bind(stream, geometry, (y, x, numpy.int64(elements)))

    return Prepared(bind)


def prepare_max_pool_step(spec: Spec, source: Path) -> Prepared:
    """Forward of NCHW planes. Raises CannotPrepare where a band of windows is too large."""
    x, (y,) = spec.io.operands["x"], spec.io.writes
    height, width, out_h, out_w = *map(int, x.shape[2:]), *map(int, y.shape[2:])
    window = [spec.dims[name] for name in ("kernel", "stride", "padding")]
    element = TYPES[spec.dtype.name]
    if spec.variant == "naive":
        (kernel,) = build(spec, source, f"max_pool2d_naive<{element}>")
        geometry = Geometry(blocks_for(y.elements, THREADS), THREADS)
        first: tuple[numpy.generic, ...] = (numpy.int64(y.elements),)
    else:
        at_once = 1 if spec.variant == "shared" else _VECTOR * 8 // spec.dtype.bits
        (kernel,) = build(spec, source, f"max_pool2d_shared<{element}, {at_once}>")
        some, shared = _band(spec, height, width, out_h)
        bands = -(-out_h // some)
        planes = int(x.shape[0] * x.shape[1])
        geometry = Geometry(blocks_for(planes * bands, 1), THREADS, shared)
        first = numpy.int32(bands), numpy.int32(some)
    extents = [numpy.int32(n) for n in (height, width, out_h, out_w, *window)]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not y.elements:
            return nothing
        return kernel.bind(stream, geometry, [*data, *first, *extents])

    return Prepared(bind)


def _band(spec: Spec, height: int, width: int, out_h: int) -> tuple[int, int]:
    """(rows of windows of a block, bytes of shared memory that their elements take)."""
    kernel, stride = spec.dims["kernel"], spec.dims["stride"]
    row = width * spec.dtype.bits // 8
    some = max(1, min(out_h, (_TILE // row - kernel) // stride + 1))
    shared = min(height, (some - 1) * stride + kernel) * row + _VECTOR
    if shared > spec.target.shared_per_block:
        raise CannotPrepare(f"{kernel} rows of {row} bytes exceed the shared memory of a block")
    return some, shared


def _all(runs: list[Callable[[], None]]) -> Launch:
    def launch() -> None:
        for run in runs:
            run()

    return launch
