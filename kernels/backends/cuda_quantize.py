"""Quantization in CUDA C++: how include/quantize.cuh and rms_quantize.cuh are launched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from .cuda_elementwise import THREADS, loads_per_thread
from .cuda_rms import forward_plan
from .cuda_rows import cut, grid, nothing, sizes

_NULL = numpy.uint64(0)


def prepare_run(
    spec: Spec,
    source: Path,
    kernel: str,
    options: Sequence[str],
    before: Sequence[str],
    after: Sequence[str] = (),
    numbers: Sequence[numpy.generic] = (),
) -> Prepared:
    """`kernel` over the one run of elements that the widest operands are.

    options: template arguments before width, loads and stores; element types of the widest operands
    follow. The kernel takes operands `before`, the number of elements, `numbers`, operands `after`.
    Raises CannotPrepare where it does not compile or no grid is large enough.
    """
    widest = [t for t in spec.io.operands.values() if t.dtype == spec.dtype and len(t.shape) > 1]
    elements = max(t.elements for t in widest)
    runs = [t for t in widest if t.elements == elements]
    types = [TYPES[t.dtype.name] for t in runs if t.name in after] or [TYPES[spec.dtype.name]]
    width = vector_bytes(spec.target)
    # Codes fill half of an access, or less.
    loads = loads_per_thread(spec.target, len(types), width if after else width // 2)
    arguments = [*options, str(width), str(loads), reuse(spec), *types]
    (built,) = build(spec, source, f"{kernel}<{', '.join(arguments)}>")
    blocks = blocks_for(elements, THREADS * loads * (width * 8 // spec.dtype.bits))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = dict(
            zip(spec.io.operands, operands(tensors, spec.io.operands.values()), strict=True)
        )
        if not elements:
            return nothing
        passed = [data[name] for name in before], [data[name] for name in after]
        return built.bind(
            stream,
            Geometry(blocks, THREADS),
            (*passed[0], numpy.int64(elements), *numbers, *passed[1]),
        )

    return Prepared(bind)


def _by_name(spec: Spec, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Every operand, checked. Raises ValueError naming one that is not as stated."""
    stated = spec.io.operands
    return dict(zip(stated, operands(tensors, stated.values()), strict=True))


def prepare_norm(spec: Spec, source: Path) -> Prepared:
    """A norm whose y becomes codes, of `source`; scaled by blocks where the operation has scales.

    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    from ..normalization.rms_norm import EPS
    from ..quantization.quantize import NV_BLOCK

    rows, columns = spec.dims["rows"], spec.dims["columns"]
    if columns >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    residual, by_block = "residual" in spec.io.operands, "scales" in spec.io.operands
    itemsize = spec.dtype.bits // 8
    width, _ = cut(columns, itemsize, spec.target)
    path, plan = forward_plan(
        columns,
        itemsize,
        spec.target,
        residual=residual,
        lanes_of_block=NV_BLOCK * itemsize // width if by_block else 1,
        more_registers=16,
    )
    kernel = "norm_by_nv_block" if by_block else "norm_by_tensor"
    named = [TYPES[spec.dtype.name], str(plan), reuse(spec), str(residual).lower()]
    if path != "registers":
        kernel += "_steps"
        named.append(str(path == "shared").lower())
    (built,) = build(spec, source, f"{kernel}<{', '.join(named)}>")
    geometry = Geometry(grid(rows, plan, spec.target), plan.threads, plan.shared_bytes)
    names = ["x", "residual", "weight", "scale", "h", "q", *(["scales"] if by_block else [])]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = dict(
            zip(spec.io.operands, operands(tensors, spec.io.operands.values()), strict=True)
        )
        if not rows or not columns:
            return nothing
        passed = [data.get(name, _NULL) for name in names]
        extents = sizes(spec, plan, tensors)
        return built.bind(stream, geometry, [*passed, *extents, numpy.float32(EPS)])

    return Prepared(bind, choice={"path": path, "plan": str(plan)})
