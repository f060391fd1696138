"""Normalization by groups of channels in CUDA C++: how `include/channel_group.cuh` is launched.

Forward normalizes slabs as rows are: in registers while they fit, in shared memory, or read again;
`choice["path"]` says which. Backward sums planes, adds the sums up, and reads the planes again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..normalization.group_norm import EPS
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse
from .cuda_channel import Extents, image_shift, in_turn
from .cuda_row_map import map_plan
from .cuda_rows import BLOCK, WARP, RowPlan, cut, grid, longest_row, nothing, resident

_COLUMNS, _ROWS = 32, 32  # threads of column_sums: a line of 128 bytes, partials at once
_VECTORS = 2  # of a thread in flight
_LONGEST_OF_A_WARP = 512  # vectors: a longer plane has a whole block


def plane_plan(pixels: int, itemsize: int, target: Target) -> RowPlan:
    """Of backward: planes of two images read together."""
    width, ragged = cut(pixels, itemsize, target)
    vectors = longest_row(pixels, width // itemsize, ragged)
    wanted = -(-vectors // _VECTORS)
    lanes = min(WARP, 1 << (wanted - 1).bit_length()) if wanted else 1
    lanes = BLOCK if vectors > _LONGEST_OF_A_WARP else lanes
    registers = 40 + 2 * _VECTORS * width // 4 + 16 * ragged
    blocks = resident(BLOCK, -(-registers // 8) * 8, 0, target)
    return RowPlan(width, BLOCK, lanes, _VECTORS, ragged, blocks)


def prepare_group_norm(direction: str, spec: Spec, source: Path) -> Prepared:
    """Raises CannotPrepare where it does not compile or a slab has 2^31 elements."""
    images, groups = spec.io.operands["mean"].shape
    *_, height, width = spec.io.operands["x"].shape
    pixels, group_channels = height * width, spec.dims["channels"] // max(groups, 1)
    if pixels * group_channels >= 2**31:
        raise CannotPrepare("a group of a sample has fewer than 2^31 elements")
    extents = int(images), int(groups), int(group_channels), int(pixels)
    return (_forward if direction == "forward" else _backward)(spec, source, *extents)


def quotient_by(divisor: int) -> Extents:
    """(multiplier, bits): n * multiplier >> bits is n // divisor, for every n below 2^31."""
    bits = 31 + (divisor - 1).bit_length()
    return numpy.uint32(-(-(1 << bits) // divisor)), numpy.int32(bits)


def _forward(
    spec: Spec, source: Path, images: int, groups: int, group_channels: int, pixels: int
) -> Prepared:
    itemsize, elements = spec.dtype.bits // 8, group_channels * pixels
    path, plan = map_plan(elements, itemsize, spec.target, streams=1, parameters=1)
    one = "kVector" if pixels * itemsize % plan.bytes == 0 else "kElement"
    one = "OneChannel::" + ("kSlab" if group_channels == 1 else one)
    named = [TYPES[spec.dtype.name], str(plan), reuse(spec), one]
    kernel = "group_norm_forward"
    if path != "registers":
        kernel += "_steps"
        named.append(str(path == "shared").lower())
    slabs = images * groups
    if slabs >= 2**31:
        raise CannotPrepare("there are fewer than 2^31 groups of samples")
    (built,) = build(spec, source, f"{kernel}<{', '.join(named)}>")
    geometry = Geometry(grid(slabs, plan, spec.target), plan.threads, plan.shared_bytes)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not slabs or not elements:
            return nothing
        sizes: Extents = (
            numpy.int64(slabs),
            numpy.int32(elements),
            numpy.int32(image_shift(spec, plan.bytes, plan.ragged, tensors)),
            numpy.float32(1 / elements),
            numpy.float32(EPS),
            *map(numpy.int32, (groups, group_channels, pixels)),
            *quotient_by(groups),
            *quotient_by(pixels),
        )
        return built.bind(stream, geometry, (*data, *sizes))

    return Prepared(bind, choice={"path": path, "plan": str(plan)})


def _backward(
    spec: Spec, source: Path, images: int, groups: int, group_channels: int, pixels: int
) -> Prepared:
    plan = plane_plan(pixels, spec.dtype.bits // 8, spec.target)
    element, channels = TYPES[spec.dtype.name], groups * group_channels
    add, mean, rewrite, column_sums = build(
        spec,
        source,
        f"plane_sums<{element}, {plan}>",
        f"slab_means<{element}>",
        f"plane_backward<{element}, {plan}, {reuse(spec)}>",
        f"column_sums<{element}, {_COLUMNS}, {_ROWS}>",
    )
    slabs, planes = images * groups, images * channels
    dx, dweight, dbias = spec.io.writes
    partials = [
        Tensor(f"partial_{of.name}", (images, channels), float32) for of in (dbias, dweight)
    ]
    means = Tensor("means", (2, slabs), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        dy, x, weight, mean_of, rstd = operands(tensors, spec.io.reads)
        out, *gradients = operands(tensors, (dx, dbias, dweight))
        *sums, of_slabs = operands(tensors, (*partials, means))
        if not channels:
            return nothing
        columns = Geometry(-(-channels // _COLUMNS), _COLUMNS * _ROWS)
        counts = numpy.int32(images), numpy.int32(channels)
        totals = [
            column_sums.bind(stream, columns, (total, of, *counts))
            for total, of in zip(gradients, sums, strict=True)
        ]
        if not planes or not pixels:
            return in_turn(*totals)
        shift = image_shift(spec, plan.bytes, plan.ragged, tensors)
        extents: Extents = (
            numpy.int64(planes),
            *map(numpy.int32, (group_channels, pixels, shift)),
        )
        blocks = Geometry(grid(planes, plan, spec.target), BLOCK)
        data, of = (dy, x, mean_of, rstd), (weight, of_slabs)
        inverse = numpy.float32(1 / (group_channels * pixels))
        per_slab: Extents = (
            numpy.int64(slabs),
            *map(numpy.int32, (groups, group_channels)),
            inverse,
        )
        warps = Geometry(blocks_for(slabs, BLOCK // WARP), BLOCK)
        return in_turn(
            add.bind(stream, blocks, (*data, *sums, *extents)),
            mean.bind(stream, warps, (*sums, *of, *per_slab)),
            *totals,
            rewrite.bind(stream, blocks, (*data, *of, out, *extents, numpy.int32(channels))),
        )

    return Prepared(bind, [*partials, means], choice={"plan": str(plan)})
