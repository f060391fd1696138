"""y = f(x + bias) in CUDA C++: how `include/row_bias.cuh` is launched.

A block is a tile of columns times a share of the rows. Plans are pure functions of a shape and a
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, build, operands, reuse
from .cuda_column_sums import SUM_COLUMNS, SUM_ROWS
from .cuda_rows import (
    BLOCK,
    WARP,
    RowPlan,
    cut,
    lanes_and_vectors,
    nothing,
    resident,
    sizes,
)


@dataclass(frozen=True)
class BiasPlan:
    """rows: how they are spread over threads; tiles of columns × shares of rows are the blocks."""

    rows: RowPlan
    tiles: int
    shares: int


def bias_plan(
    rows: int, columns: int, itemsize: int, target: Target, *, backward: bool, more: int = 0
) -> BiasPlan:
    """Rows that a block can hold are one tile; 32 to 64 bytes a thread, 32 in backward.

    more: registers of a thread beyond those for x, the bias and, in backward, dy and sums.
    """
    width, ragged = cut(columns, itemsize, target)
    elements, most = width // itemsize, 32 if backward else 64
    fit = lanes_and_vectors(-(-columns // elements) + ragged, width, most)
    lanes, each = fit if fit and fit[1] * width <= most else (BLOCK, 32 // width)
    threads = BLOCK if lanes <= WARP else lanes
    # Forward holds packed vectors beside its sums: with 8 fewer it spills on sm_80 to sm_90.
    registers = more + (32 if backward else 40) + each * width // 4 * (1 + backward)
    registers += ragged * (52 if itemsize == 2 else 36)  # a vector is spliced by words, or halves
    registers += each * elements * (backward and not ragged)
    shared = threads * each * elements * 4 if backward and (ragged or lanes < threads) else 0
    blocks = resident(threads, -(-registers // 8) * 8, shared, target)
    plan = RowPlan(width, threads, lanes, each, ragged, blocks, shared)

    tiles = -(-columns // ((lanes * each - ragged) * elements))
    groups = -(-rows // plan.rows)
    turns = -(-groups // max(1, target.multiprocessors * blocks // max(tiles, 1)))
    return BiasPlan(plan, tiles, -(-groups // max(turns, 1)))


def prepare_bias(direction: str, spec: Spec, source: Path, functor: str) -> Prepared:
    """Forward reads x and bias; backward reads dy, x and bias, or dy alone if it is linear.

    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    if spec.dims["columns"] >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    itemsize = spec.dtype.bits // 8
    backward = direction == "backward"
    plan = bias_plan(
        spec.dims["rows"], spec.dims["columns"], itemsize, spec.target, backward=backward
    )
    types = f"{functor}, {TYPES[spec.dtype.name]}, {plan.rows}, {reuse(spec)}"
    return (_backward if backward else _forward)(spec, source, types, plan)


def _geometry(plan: BiasPlan) -> Geometry:
    return Geometry(plan.tiles * plan.shares, plan.rows.threads, plan.rows.shared_bytes)


def _forward(spec: Spec, source: Path, types: str, plan: BiasPlan) -> Prepared:
    (kernel,) = build(spec, source, f"bias_forward<{types}>")

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, (*spec.io.writes, *spec.io.reads))
        if not data[0].numel():
            return nothing
        extents = sizes(spec, plan.rows, tensors)[:-1]
        return kernel.bind(stream, _geometry(plan), [*data, *extents])

    return Prepared(bind, choice={"plan": str(plan.rows)})


def _backward(spec: Spec, source: Path, types: str, plan: BiasPlan) -> Prepared:
    *dx, dbias = spec.io.writes
    columns = dbias.elements
    column_sums = f"column_sums<{TYPES[spec.dtype.name]}, {SUM_COLUMNS}, {SUM_ROWS}>"
    kernel, sums = build(spec, source, f"bias_backward<{types}>", column_sums)
    partial = Tensor("partial_dbias", (max(plan.shares, 1), columns), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        total, partials = operands(tensors, (dbias, partial))
        given = operands(tensors, (*dx, *spec.io.reads))
        if not columns:
            return nothing
        counts = numpy.int32(plan.shares), numpy.int32(columns)
        geometry = Geometry(-(-columns // SUM_COLUMNS), SUM_COLUMNS * SUM_ROWS)
        add = sums.bind(stream, geometry, (total, partials, *counts))
        if not plan.shares:
            return add
        extents = sizes(spec, plan.rows, tensors)[:-1]
        # A linear one has neither dx nor x nor bias: dy stands in for the pointers nobody follows,
        # and 0 for where a bias would begin.
        extents += (numpy.int32(0),) * (not dx)
        output, dy, x, bias = given if dx else [given[0]] * 4
        data = (output, partials, dy, x, bias)
        first = kernel.bind(stream, _geometry(plan), [*data, *extents])

        def launch() -> None:
            first()
            add()

        return launch

    return Prepared(bind, [partial], choice={"plan": str(plan.rows)})
