"""Layer normalization in CUDA C++, with or without a residual add: how `include/row_moments.cuh` is
launched.
"""

from __future__ import annotations

from pathlib import Path

import numpy

from ..normalization.layer_norm import EPS
from ..spec import CannotPrepare, Prepared, Spec
from ..target import Target
from .cuda_column_sums import prepare_backward, tile_plan
from .cuda_row_map import prepare_map
from .cuda_rows import (
    BLOCK,
    RESERVED,
    WARP,
    RowPlan,
    cut,
    lanes_and_vectors,
    longest_row,
    resident,
)

_SUMS = 2  # dweight and dbias


def backward_plan(
    columns: int, itemsize: int, target: Target, *, residual: bool = False
) -> tuple[str, RowPlan]:
    """Path ("registers" or "tiles") and plan of backward."""
    width, ragged = cut(columns, itemsize, target)
    if columns * itemsize > BLOCK * width:  # eight neighbours are hard to find among so many taken
        width = 16
    elements = width // itemsize
    # Two float32 sums for each of 16 columns are as many registers as a thread should give.
    fit = lanes_and_vectors(longest_row(columns, elements, ragged), width, 16 * itemsize)
    if fit:
        lanes, each = fit
        threads = max(lanes, BLOCK) if lanes <= WARP else lanes
        shared = threads * each * elements * 4 if ragged or lanes < threads else 0
        shared *= _SUMS if ragged else 1
        data = each * width * (3 if residual else 2) // 4
        sums = 0 if ragged else _SUMS * each * elements
        ahead = data if each * width <= 32 and not ragged and not residual else 0
        neighbours = 16 if residual and width == 32 else 0
        registers = 40 + data + sums + ahead + 40 * ragged + neighbours
        enough = registers * threads <= target.registers_per_multiprocessor
        if enough and shared <= target.shared_per_block - RESERVED:
            blocks = resident(threads, registers, shared, target)
            return "registers", RowPlan(width, threads, lanes, each, ragged, blocks, shared)
    return "tiles", tile_plan(elements, width, ragged, target, _SUMS)


def prepare_layer_norm(direction: str, spec: Spec, source: Path) -> Prepared:
    """`spec.operation` is layer_norm or add_layer_norm, whose `.cu` is `source`.

    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    residual = {"residual", "dh"} & spec.io.operands.keys()
    if direction == "forward":
        return prepare_map(
            spec,
            source,
            f"{spec.operation.name}_forward",
            lambda data, extents: [*data, *extents, numpy.float32(EPS)],
            streams=2 if residual else 1,
            parameters=2,
        )
    columns = spec.dims["columns"]
    if columns >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    path, plan = backward_plan(columns, spec.dtype.bits // 8, spec.target, residual=bool(residual))
    return prepare_backward(spec, source, path, plan, projections=2)
