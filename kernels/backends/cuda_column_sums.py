"""Backward of norms whose parameters have gradients: dx by rows, and sums over rows by columns.

Rows that fit in registers take one pass. Longer ones take two kernels: the first leaves the
projections of each row, the second owns tiles of columns and reads dy and x again. Blocks leave
float32 partial sums, which `column_sums` adds in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..long_rows import bytes_of_two_reads
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, build, operands, reuse
from .cuda_rows import BLOCK, RowPlan, grid, nothing, resident, sizes

SUM_COLUMNS, SUM_ROWS = 32, 32  # threads of column_sums: a line of 128 bytes, partials at once


def tile_plan(elements: int, width: int, ragged: bool, target: Target, sums: int = 1) -> RowPlan:
    """Plan of the second kernel where registers hold no row; `sums` is the number of outputs."""
    each = 32 // width
    shared = BLOCK * each * elements * 4 * sums if ragged else 0
    blocks = resident(BLOCK, 96, shared, target)
    return RowPlan(width, BLOCK, BLOCK, each, ragged, blocks, shared)


def tiling(
    rows: int, columns: int, itemsize: int, plan: RowPlan, target: Target
) -> tuple[int, int]:
    """(tiles of columns, shares of rows) of backward where registers do not hold a row."""
    tile = (plan.threads * plan.vectors - plan.ragged) * (plan.bytes // itemsize)
    tiles = -(-columns // tile)
    shares = max(1, target.multiprocessors * plan.blocks // tiles)
    return tiles, min(shares, rows)


def prepare_backward(
    spec: Spec, source: Path, path: str, plan: RowPlan, *, projections: int = 1
) -> Prepared:
    """Kernels `<operation>_backward`, or `_projections` and `_backward_tiles`, of `source`.

    They take what backward reads, `projected` (on the path "tiles"), dx, one `partials` per further
    output and `sizes`. A row has `projections` of them. Raises CannotPrepare where they do not
    compile.
    """
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    dx, *gradients = spec.io.writes
    arguments = f"{TYPES[spec.dtype.name]}, {plan}"
    stored = f"{arguments}, {reuse(spec)}"
    column_sums = f"column_sums<{TYPES[spec.dtype.name]}, {SUM_COLUMNS}, {SUM_ROWS}>"
    if path == "registers":
        names = [f"{spec.operation.name}_backward<{stored}>"]
        shares = blocks = grid(rows, plan, spec.target)
        scratch = []
    else:
        names = [
            f"{spec.operation.name}_projections<{arguments}>",
            f"{spec.operation.name}_backward_tiles<{stored}>",
        ]
        tiles, shares = tiling(rows, columns, spec.dtype.bits // 8, plan, spec.target)
        blocks = tiles * shares
        scratch = [Tensor("projected", (rows, projections), float32)]
    *kernels, sums = build(spec, source, *names, column_sums)
    partials = [
        Tensor(f"partial_{one.name}", (max(shares, 1), columns), float32) for one in gradients
    ]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        inputs = operands(tensors, spec.io.reads)
        outputs = operands(tensors, [dx, *partials])
        totals = operands(tensors, gradients)
        projected = operands(tensors, scratch)
        launches: list[Callable[[], None]] = []
        if not columns:
            return nothing
        extents = sizes(spec, plan, tensors)
        if rows and projected:
            geometry = Geometry(grid(rows, plan, spec.target), plan.threads)
            launches.append(kernels[0].bind(stream, geometry, (*inputs, *projected, *extents)))
        if rows:
            geometry = Geometry(blocks, plan.threads, plan.shared_bytes)
            launches.append(
                kernels[-1].bind(stream, geometry, [*inputs, *projected, *outputs, *extents])
            )
        geometry = Geometry(-(-columns // SUM_COLUMNS), SUM_COLUMNS * SUM_ROWS)
        for total, partial in zip(totals, outputs[1:], strict=True):
            summed = (total, partial, numpy.int32(shares), numpy.int32(columns))
            launches.append(sums.bind(stream, geometry, summed))

        def launch() -> None:
            for run in launches:
                run()

        return launch

    return Prepared(
        bind,
        [*scratch, *partials],
        choice={"path": path, "plan": str(plan)},
        schedule_bytes=bytes_of_two_reads(spec.io, "dh") if path == "tiles" else None,
    )
