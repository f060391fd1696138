"""RMSNorm in CUDA C++, with or without a residual add: how `include/row_rms.cuh` is launched.

Rows are kept in registers while they fit, forward then in shared memory, then in that of a cluster
where the device has them, then read again; backward goes from registers to tiles of columns, which
read dy and x twice. `choice["path"]` says which.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..long_rows import bytes_of_two_reads
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, build, operands, reuse
from .cuda_column_sums import prepare_backward, tile_plan
from .cuda_column_sums import tiling as tiling
from .cuda_rows import (
    BLOCK,
    MOST_LANES,
    RESERVED,
    WARP,
    RowPlan,
    cluster_plan,
    cut,
    lanes_and_vectors,
    longest_row,
    nothing,
    resident,
    sizes,
)


def forward_plan(
    columns: int,
    itemsize: int,
    target: Target,
    *,
    residual: bool,
    lanes_of_block: int = 1,
    more_registers: int = 0,
) -> tuple[str, RowPlan]:
    """Path ("registers", "shared" or "twice") and plan of forward.

    What becomes of y may take neighbouring lanes that share a block, and registers.
    """
    width, ragged = cut(columns, itemsize, target)
    vectors = longest_row(columns, width // itemsize, ragged)
    fit = lanes_and_vectors(vectors, width)
    if fit:
        lanes, each = max(fit[0], lanes_of_block), fit[1]
        threads = max(lanes, BLOCK) if lanes <= WARP else lanes
        # 32-byte accesses take 16 more, which the residual's 24 cover.
        registers = 48 if each * width <= 32 and (width == 16 or residual) else 64
        registers += 24 * residual + 16 * ragged + more_registers
        blocks = resident(threads, registers, 0, target)
        return "registers", RowPlan(width, threads, lanes, each, ragged, blocks)
    threads, each = MOST_LANES, 64 // width
    shared = vectors * width
    if shared > target.shared_per_block - RESERVED:
        return "twice", RowPlan(width, threads, threads, each, ragged, 1)
    blocks = min(resident(threads, 128 if ragged else 64, shared, target), 2)
    return "shared", RowPlan(width, threads, threads, each, ragged, blocks, shared)


def backward_plan(
    columns: int, itemsize: int, target: Target, *, residual: bool
) -> tuple[str, RowPlan]:
    """Path ("registers" or "tiles") and plan of backward."""
    width, ragged = cut(columns, itemsize, target)
    elements = width // itemsize
    fit = lanes_and_vectors(longest_row(columns, elements, ragged), width)
    if fit:
        lanes, each = fit
        threads = max(lanes, BLOCK) if lanes <= WARP else lanes
        shared = threads * each * elements * 4 if ragged or lanes < threads else 0
        if shared <= target.shared_per_block - RESERVED:
            registers = 80 if each * width <= 32 else 128
            registers += 16 * (ragged and registers < 128)
            blocks = resident(threads, registers, shared, target)
            return "registers", RowPlan(width, threads, lanes, each, ragged, blocks, shared)
    return "tiles", tile_plan(elements, width, ragged, target)


def prepare_rms(direction: str, spec: Spec, source: Path) -> Prepared:
    """`spec.operation` is rms_norm or add_rms_norm, whose `.cu` is `source`.

    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    if spec.dims["columns"] >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    return _forward(spec, source) if direction == "forward" else _backward(spec, source)


def _forward(spec: Spec, source: Path) -> Prepared:
    from ..normalization.rms_norm import EPS

    rows, columns = spec.dims["rows"], spec.dims["columns"]
    residual = "residual" in spec.io.operands
    path, plan = forward_plan(columns, spec.dtype.bits // 8, spec.target, residual=residual)
    if path == "twice":
        shared = cluster_plan(columns, spec.dtype.bits // 8, spec.target)
        path, plan = ("cluster", shared) if shared else (path, plan)
    arguments = f"{TYPES[spec.dtype.name]}, {plan}, {reuse(spec)}"
    if path == "registers":
        name = f"{spec.operation.name}_forward<{arguments}>"
    else:
        staged = str(path in {"shared", "cluster"}).lower()
        name = f"{spec.operation.name}_forward_steps<{arguments}, {staged}>"
    (kernel,) = build(spec, source, name)
    geometry = plan.geometry(rows, spec.target)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not rows or not columns:
            return nothing
        extents = sizes(spec, plan, tensors)
        return kernel.bind(stream, geometry, [*data, *extents, numpy.float32(EPS)])

    return Prepared(
        bind,
        choice={"path": path, "plan": str(plan)},
        schedule_bytes=bytes_of_two_reads(spec.io) if path == "twice" else None,
    )


def _backward(spec: Spec, source: Path) -> Prepared:
    columns, residual = spec.dims["columns"], "dh" in spec.io.operands
    path, plan = backward_plan(columns, spec.dtype.bits // 8, spec.target, residual=residual)
    return prepare_backward(spec, source, path, plan)
