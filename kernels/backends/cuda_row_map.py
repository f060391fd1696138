"""Rows that become rows in CUDA C++: how the skeleton `include/row_map.cuh` is launched.

Rows are kept in registers while they fit, then in shared memory, then in that of a cluster where
the device has them, then read again.
`choice["path"]` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from ..long_rows import bytes_of_two_reads
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, build, operands, reuse
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

Arguments = Callable[
    [Sequence[torch.Tensor], Sequence[numpy.generic]], Sequence[torch.Tensor | numpy.generic]
]
"""(operands of the direction in order, `sizes`) -> arguments of the kernel."""


def map_plan(
    columns: int,
    itemsize: int,
    target: Target,
    *,
    streams: int,
    parameters: int = 0,
    unpacked: bool = False,
    partial: bool = False,
    more: int = 0,
    single: bool = False,
) -> tuple[str, RowPlan]:
    """Path ("registers", "shared", "twice" or "once") and plan of `streams` matrices read together.

    parameters: vectors that all rows share, read with them. unpacked: what waits in registers is
    float32, whatever the matrices are. partial: rows are read up to any column. single: long rows
    take one sweep, and nothing of them waits. more: registers beyond all of these.
    """
    width, ragged = cut(columns, itemsize, target)
    vectors = longest_row(columns, width // itemsize, ragged)
    fit = lanes_and_vectors(vectors, width)
    if fit:
        lanes, each = fit
        threads = max(lanes, BLOCK) if lanes <= WARP else lanes
        waiting = each * width // itemsize if unpacked else each * width * streams // 4
        ahead = each * width * streams // 4 if each * width <= 32 and not ragged else 0
        spliced = 14 if itemsize == 2 else 10
        cutting = 16 + spliced * parameters if ragged else 8 * (partial or parameters > 0)
        # Registers of a vector of 32 bytes are neighbours; 16-bit elements are unpacked in passing.
        spare = 8 * each if width == 32 else 8 * max(0, each - 2) * (itemsize == 2)
        registers = 24 + 8 * streams + waiting + ahead + cutting + spare + more
        blocks = resident(threads, -(-registers // 8) * 8, 0, target)
        return "registers", RowPlan(width, threads, lanes, each, ragged, blocks)
    threads, each = MOST_LANES, max(1, 64 // width // streams)
    registers = 128 if ragged else 64
    if single:
        blocks = resident(threads, registers, 0, target)
        return "once", RowPlan(width, threads, threads, each, ragged, blocks)
    shared = vectors * width * streams
    if shared > target.shared_per_block - RESERVED:
        return "twice", RowPlan(width, threads, threads, each, ragged, 1)
    blocks = min(resident(threads, registers, shared, target), 2)
    return "shared", RowPlan(width, threads, threads, each, ragged, blocks, shared)


def prepare_map(
    spec: Spec,
    source: Path,
    kernel: str,
    arguments: Arguments,
    *options: str,
    streams: int,
    parameters: int = 0,
    unpacked: bool = False,
    partial: bool = False,
    more: int = 0,
    single: bool = False,
    in_place: Mapping[str, str] | None = None,
) -> Prepared:
    """`kernel`, or `<kernel>_steps`, of `source` over the rows of the direction's matrices.

    options: further template arguments. single: as in `map_plan`. in_place: as in `Prepared`.
    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    matrix = next(t for t in spec.io.operands.values() if len(t.shape) > 1)
    columns = int(matrix.shape[-1])
    rows = matrix.elements // max(columns, 1)
    if columns >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    path, plan = map_plan(
        columns,
        spec.dtype.bits // 8,
        spec.target,
        streams=streams,
        parameters=parameters,
        unpacked=unpacked,
        partial=partial,
        more=more,
        single=single,
    )
    if path == "twice":
        shared = cluster_plan(columns, spec.dtype.bits // 8, spec.target, streams)
        path, plan = ("cluster", shared) if shared else (path, plan)
    named = [TYPES[spec.dtype.name], str(plan), reuse(spec), *options]
    if path != "registers":
        kernel += "_steps"
        named.append(str(path in {"shared", "cluster"}).lower())
    over = in_place or {}
    defines = {"MEMBOUND_IN_PLACE": "1"} if over else {}
    (built,) = build(spec, source, f"{kernel}<{', '.join(named)}>", **defines)
    geometry = plan.geometry(rows, spec.target)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        known = {**tensors, **{output: tensors[read] for output, read in over.items()}}
        data = operands(known, spec.io.operands.values())
        if not rows or not columns:
            return nothing
        return built.bind(stream, geometry, arguments(data, sizes(spec, plan, known)))

    return Prepared(
        bind,
        in_place=over,
        choice={"path": path, "plan": str(plan)},
        schedule_bytes=bytes_of_two_reads(spec.io) if path == "twice" else None,
    )
