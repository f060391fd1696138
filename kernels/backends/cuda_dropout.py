"""Dropout in CUDA C++, alone or in a bias and a residual add: how `include/row_dropout.cuh` is
launched.

Blocks are tiles of columns times shares of the rows, as for a bias (`cuda_bias`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from .cuda import TYPES, Geometry, build, operands, reuse
from .cuda_bias import BiasPlan, bias_plan
from .cuda_column_sums import SUM_COLUMNS, SUM_ROWS
from .cuda_rows import nothing, sizes

_DRAWING = 16  # registers: counter, products, bits
_ABSENT = numpy.uint64(0)


def prepare_dropout(direction: str, spec: Spec, source: Path) -> Prepared:
    """Raises CannotPrepare where it does not compile or a row has 2^31 columns."""
    rows, columns, itemsize = spec.dims["rows"], spec.dims["columns"], spec.dtype.bits // 8
    if columns >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    summed = "dbias" in spec.io.operands
    more = _DRAWING + 16 * ("residual" in spec.io.operands)
    plan = bias_plan(rows, columns, itemsize, spec.target, backward=summed, more=more)
    fused = summed or "residual" in spec.io.operands
    form = f"{_mask(spec)}, {str(fused).lower()}"
    arguments = f"<{form}, {TYPES[spec.dtype.name]}, {plan.rows}, {reuse(spec)}>"
    return (_forward if direction == "forward" else _backward)(spec, source, arguments, plan)


def _mask(spec: Spec) -> str:
    mask = spec.io.operands.get("mask")
    if mask is None:
        return "Mask::kReplayed"
    return "Mask::kBytes" if mask.shape[-1] == spec.dims["columns"] else "Mask::kBits"


def _pointers(spec: Spec, tensors: Tensors, *names: str) -> list[Any]:
    """The tensors of these names, null for what this operation does not have."""
    given = spec.io.operands
    return [operands(tensors, [given[n]])[0] if n in given else _ABSENT for n in names]


def _geometry(plan: BiasPlan) -> Geometry:
    return Geometry(plan.tiles * plan.shares, plan.rows.threads, plan.rows.shared_bytes)


def _forward(spec: Spec, source: Path, arguments: str, plan: BiasPlan) -> Prepared:
    (kernel,) = build(spec, source, f"dropout_forward{arguments}")

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = _pointers(spec, tensors, "y", "mask", "x", "bias", "residual", "state")
        if not spec.io.writes[0].elements:
            return nothing
        rows, columns, shift, *past, _ = sizes(spec, plan.rows, tensors)
        extents = rows, columns, shift, *(past or [numpy.int32(0)])
        return kernel.bind(stream, _geometry(plan), [*data, *extents])

    return Prepared(bind, choice={"plan": str(plan.rows)})


def _backward(spec: Spec, source: Path, arguments: str, plan: BiasPlan) -> Prepared:
    dx, *dbias = spec.io.writes
    names = [f"dropout_backward{arguments}"]
    if dbias:
        names.append(f"column_sums<{TYPES[spec.dtype.name]}, {SUM_COLUMNS}, {SUM_ROWS}>")
    kernel, *sums = build(spec, source, *names)
    columns = spec.dims["columns"]
    partials = [Tensor("partial_dbias", (max(plan.shares, 1), columns), float32) for _ in dbias]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        output, dy, mask, state = _pointers(spec, tensors, "dx", "dy", "mask", "state")
        parts = operands(tensors, partials)
        launches = []
        if dx.elements:
            extents = sizes(spec, plan.rows, tensors)[:-1]
            partial = parts[0] if parts else _ABSENT
            data = output, partial, dy, mask, state
            launches.append(kernel.bind(stream, _geometry(plan), [*data, *extents]))
        for total in operands(tensors, dbias) if columns else ():
            counts = numpy.int32(plan.shares), numpy.int32(columns)
            geometry = Geometry(-(-columns // SUM_COLUMNS), SUM_COLUMNS * SUM_ROWS)
            launches.append(sums[0].bind(stream, geometry, (total, *parts, *counts)))

        def launch() -> None:
            for run in launches:
                run()

        return launch

    return Prepared(bind, partials, choice={"plan": str(plan.rows)})
