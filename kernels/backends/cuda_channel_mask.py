"""batch_norm, residual and relu in CUDA C++: how `include/channel_mask.cuh` is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..normalization.batch_norm import EPS, MOMENTUM
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from .cuda import TYPES, Geometry, build, operands, reuse
from .cuda_channel import (
    GRADIENTS,
    STATISTICS,
    extents_of,
    in_turn,
    merging,
    partials_of,
    plan_of,
)
from .cuda_rows import BLOCK, nothing


def prepare_masked(direction: str, spec: Spec, source: Path) -> Prepared:
    """Three kernels each. Raises CannotPrepare where they do not compile."""
    return (_forward if direction == "forward" else _backward)(spec, source)


def _forward(spec: Spec, source: Path) -> Prepared:
    plan, channels = plan_of(spec, 2, masked=True), spec.dims["channels"]
    row_bytes = numpy.int32(spec.io.operands["mask"].shape[-1])
    element = TYPES[spec.dtype.name]
    whole = plan_of(spec, 1)
    moments, merge, rewrite = build(
        spec,
        source,
        f"channel_first_moments<{element}, {whole.plan}>",
        STATISTICS,
        f"masked_forward<{element}, {plan.plan}, {reuse(spec)}>",
    )
    partials = partials_of(3, whole, channels)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        of = dict(zip(spec.io.operands, data, strict=True))
        (sums,) = operands(tensors, [partials])
        if not channels:
            return nothing
        running = of["running_mean"], of["running_var"], of["updated_mean"], of["updated_var"]
        saved = of["mean"], of["rstd"]
        shares = numpy.int32(whole.shares), numpy.int32(channels)
        settings = numpy.float32(MOMENTUM), numpy.float32(EPS)
        images = of["x"], of["residual"], of["y"], of["mask"]
        extents = (*extents_of(spec, plan, tensors), row_bytes)
        return in_turn(
            moments.bind(
                stream,
                Geometry(whole.blocks, BLOCK),
                (of["x"], sums, *extents_of(spec, whole, tensors)),
            ),
            merge.bind(stream, merging(channels), (sums, *running, *saved, *shares, *settings)),
            rewrite.bind(
                stream,
                Geometry(plan.blocks, BLOCK),
                (*images, of["weight"], of["bias"], *saved, *extents),
            ),
        )

    return Prepared(bind, [partials], choice={"plan": plan.plan, "shares": plan.shares})


def _backward(spec: Spec, source: Path) -> Prepared:
    plan, channels = plan_of(spec, 2, masked=True), spec.dims["channels"]
    row_bytes = numpy.int32(spec.io.operands["mask"].shape[-1])
    element = TYPES[spec.dtype.name]
    reduce, merge, rewrite = build(
        spec,
        source,
        f"masked_sums<{element}, {plan.plan}>",
        GRADIENTS,
        f"masked_backward<{element}, {plan.plan}, {reuse(spec)}>",
    )
    partials = partials_of(2, plan, channels)
    means = Tensor("means", (2, channels), float32)
    values = spec.io.operands["x"].elements // max(channels, 1)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        dy, x, mask, *parameters = operands(tensors, spec.io.reads)
        dx, dresidual, dweight, dbias = operands(tensors, spec.io.writes)
        sums, mean_of = operands(tensors, [partials, means])
        if not channels:
            return nothing
        extents = (*extents_of(spec, plan, tensors), row_bytes)
        shares = numpy.int32(plan.shares), numpy.int32(channels), numpy.float32(1 / values)
        grid = Geometry(plan.blocks, BLOCK)
        made = dx, dresidual, mean_of
        return in_turn(
            reduce.bind(stream, grid, (dy, x, mask, sums, *parameters, *extents)),
            merge.bind(stream, merging(channels), (sums, dweight, dbias, mean_of, *shares)),
            rewrite.bind(stream, grid, (dy, x, mask, *made, *parameters, *extents)),
        )

    return Prepared(bind, [partials, means], choice={"plan": plan.plan, "shares": plan.shares})
