"""Normalization by channel in CUDA C++: how `include/channel*.cuh` are launched.

A block is a share of the values of a channel (NCHW), or of the rows of a tile of channels (NHWC).
Training reduces every share in one kernel, merges the shares in a second, and rewrites the images
in a third. Plans are pure functions of a shape and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from ..dtypes import float32
from ..normalization.batch_norm import EPS, MOMENTUM
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import MAX_BLOCKS, TYPES, Geometry, build, operands, reuse
from .cuda_rows import BLOCK, WARP, cut, longest_row, nothing, resident

Extents = tuple[numpy.generic, ...]
Arguments = tuple[torch.Tensor | numpy.generic, ...]

_COLUMNS, _ROWS = 32, 32  # threads of the kernels that merge shares: a line, shares at once
STATISTICS = f"channel_statistics<{_COLUMNS}, {_ROWS}>"
GRADIENTS = f"channel_gradients<{_COLUMNS}, {_ROWS}>"
_VECTORS = 2  # of a thread in flight, NCHW
_STEPS = 4  # of a share, at least: what a block costs before its first load is then little
_WAVES = 4  # of blocks, where channels leave the choice: the last wave is then little
_MOST_SHARES = 512  # of a channel
_NULL = numpy.uint64(0)  # a pointer that nobody follows


@dataclass(frozen=True)
class ChannelPlan:
    """`plan` as C++ spells it, the blocks of a launch, and the extents that kernels are given.

    layout: of the images, "first" or "last": which of `include/channel_*.cuh`.
    """

    layout: str
    plan: str
    bytes: int
    ragged: bool
    blocks: int
    shares: int
    extents: Extents


def first_plan(
    images: int, channels: int, pixels: int, itemsize: int, target: Target, *, streams: int
) -> ChannelPlan:
    """Of NCHW images, `streams` of which are read together."""
    width, ragged = cut(pixels, itemsize, target)
    elements = width // itemsize
    vectors = longest_row(pixels, elements, ragged)
    return _first_plan(
        (images, channels, pixels, vectors),
        width,
        ragged,
        target,
        40 + _VECTORS * width // 4 * streams,
    )


def masked_plan(
    images: int, channels: int, pixels: int, itemsize: int, target: Target, *, streams: int
) -> ChannelPlan:
    """Of NCHW images with a bit per element: a byte of bits a thread, or 32 bits a warp."""
    elements = 1 if pixels % 8 else 8
    vectors = -(-pixels // WARP) * WARP if elements == 1 else pixels // 8
    width, alike = elements * itemsize, WARP if elements == 1 else 1
    registers = 48 + _VECTORS * width // 4 * streams
    return _first_plan((images, channels, pixels, vectors), width, False, target, registers, alike)


def _first_plan(
    extents: tuple[int, int, int, int],
    width: int,
    ragged: bool,
    target: Target,
    registers: int,
    alike: int = 1,
) -> ChannelPlan:
    """extents: images, channels, pixels, vectors of a plane. Shares are multiples of `alike`."""
    images, channels, pixels, vectors = extents
    blocks = resident(BLOCK, -(-(registers + 16 * ragged) // 8) * 8, 0, target)
    wanted = _WAVES * target.multiprocessors * blocks // max(channels, 1)
    most = images * vectors // (BLOCK * _VECTORS * _STEPS)
    shares = max(1, min(wanted, most, _MOST_SHARES))
    each = -(-images * vectors // (shares * alike)) * alike
    shares = -(-images * vectors // each) if each else 0
    plan = f"RowPlan<{width}, {BLOCK}, {BLOCK}, {_VECTORS}, {str(ragged).lower()}, {blocks}>"
    numbers: Extents = (
        numpy.int64(images),
        *map(numpy.int32, (channels, pixels, 0, vectors)),
        numpy.int64(each),
    )
    return ChannelPlan("first", plan, width, ragged, shares * channels, shares, numbers)


def last_plan(
    rows: int, channels: int, itemsize: int, target: Target, *, streams: int
) -> ChannelPlan:
    """Of NHWC images, rows of channels; `streams` images are read together."""
    width = itemsize if channels * itemsize % 16 else 16
    vectors = channels * itemsize // width
    tiles = max(1, -(-vectors // BLOCK))
    lanes = max(1, -(-vectors // tiles))
    loads = 4 // streams
    elements = width // itemsize
    registers = 32 + (2 + streams) * elements + loads * streams * 4
    blocks = resident(BLOCK, -(-registers // 8) * 8, BLOCK * 8 * elements, target)
    step = BLOCK // lanes * loads
    shares = max(1, target.multiprocessors * blocks // tiles)
    each = -(-rows // (shares * step)) * step
    shares = -(-rows // each) if each else 0
    plan = f"LastPlan<{width}, {BLOCK}, {loads}, {blocks}>"
    extents: Extents = (numpy.int64(rows), *map(numpy.int32, (channels, lanes)), numpy.int64(each))
    return ChannelPlan("last", plan, width, False, shares * tiles * (channels > 0), shares, extents)


def plan_of(spec: Spec, streams: int, *, masked: bool = False) -> ChannelPlan:
    """masked: with a bit per element.

    Raises CannotPrepare where an image has 2^31 pixels, or no grid is large enough.
    """
    images, channels, height, width = (
        spec.dims[name] for name in ("images", "channels", "height", "width")
    )
    pixels, itemsize = height * width, spec.dtype.bits // 8
    if pixels >= 2**31:
        raise CannotPrepare("an image has fewer than 2^31 pixels")
    if masked:
        plan = masked_plan(images, channels, pixels, itemsize, spec.target, streams=streams)
    elif spec.operation.name.endswith("_nhwc"):
        plan = last_plan(images * pixels, channels, itemsize, spec.target, streams=streams)
    else:
        plan = first_plan(images, channels, pixels, itemsize, spec.target, streams=streams)
    if plan.blocks > MAX_BLOCKS:
        raise CannotPrepare(f"{plan.blocks} blocks exceed the largest grid, {MAX_BLOCKS}")
    return plan


def image_shift(spec: Spec, bytes_: int, ragged: bool, tensors: Tensors) -> int:
    """Elements that the images begin past an access of `bytes_`.

    Raises ValueError naming a tensor that begins where no plan cuts it like the others.
    """
    width = bytes_ * 8 // spec.dtype.bits
    images = [operand for operand in spec.io.operands.values() if len(operand.shape) == 4]
    shifts = {
        image.name: tensors[image.name].data_ptr() * 8 // image.dtype.bits % width
        for image in images
    }
    first, shift = next(iter(shifts.items()))
    for name, past in shifts.items():
        if past and not ragged:
            raise ValueError(f"{name} must begin on {bytes_} bytes; copy the slice")
        if past != shift:
            raise ValueError(f"{name} and {first} must begin alike, modulo {width} elements")
    return shift


def extents_of(spec: Spec, plan: ChannelPlan, tensors: Tensors) -> Extents:
    """The extents of `plan`, with where the images begin (NCHW).

    Raises ValueError naming a tensor that begins where this plan cannot cut it.
    """
    shift = image_shift(spec, plan.bytes, plan.ragged, tensors)
    if plan.layout == "first":
        return (*plan.extents[:3], numpy.int32(shift), *plan.extents[4:])
    neighbours = 4 * plan.bytes * 8 // spec.dtype.bits
    for operand in spec.io.operands.values():
        if len(operand.shape) == 1 and tensors[operand.name].data_ptr() % neighbours:
            raise ValueError(f"{operand.name} must begin on {neighbours} bytes; copy the slice")
    return plan.extents


def prepare_inference(spec: Spec, source: Path, f: str = "Unchanged") -> Prepared:
    """y = f(normalized x) by the running statistics: elementwise, once over the images."""
    plan = plan_of(spec, 1)
    element = TYPES[spec.dtype.name]
    name = f"channel_{plan.layout}_forward<{element}, {plan.plan}, {reuse(spec)}, {f}, false>"
    (kernel,) = build(spec, source, name)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        x, weight, bias, mean, var, y = operands(tensors, spec.io.operands.values())
        if not y.numel():
            return nothing
        extents = extents_of(spec, plan, tensors)
        arguments: Arguments = (x, y, weight, bias, mean, var, numpy.float32(EPS), *extents)
        return kernel.bind(stream, Geometry(plan.blocks, BLOCK), arguments)

    return Prepared(bind, choice={"plan": plan.plan, "shares": plan.shares})


def prepare_training(direction: str, spec: Spec, source: Path, f: str = "Unchanged") -> Prepared:
    """Forward or backward of y = f(normalized x), three kernels each.

    Backward reads the bias where f is not linear. Raises CannotPrepare where it does not compile.
    """
    return (_forward if direction == "forward" else _backward)(spec, source, f)


def partials_of(values: int, plan: ChannelPlan, channels: int) -> Tensor:
    """What blocks leave of their shares."""
    return Tensor("partials", (values, plan.shares, channels), float32)


def merging(channels: int) -> Geometry:
    """Of the kernels that merge shares."""
    return Geometry(-(-channels // _COLUMNS), _COLUMNS * _ROWS)


def _forward(spec: Spec, source: Path, f: str) -> Prepared:
    plan, channels = plan_of(spec, 1), spec.dims["channels"]
    element = TYPES[spec.dtype.name]
    moments, merge, rewrite = build(
        spec,
        source,
        f"channel_{plan.layout}_moments<{element}, {plan.plan}>",
        STATISTICS,
        f"channel_{plan.layout}_forward<{element}, {plan.plan}, {reuse(spec)}, {f}, true>",
    )
    partials = partials_of(3, plan, channels)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        x, weight, bias, *running, y, new_mean, new_var, mean, rstd = operands(
            tensors, spec.io.operands.values()
        )
        (sums,) = operands(tensors, [partials])
        if not channels:
            return nothing
        extents = extents_of(spec, plan, tensors)
        shares = numpy.int32(plan.shares), numpy.int32(channels)
        settings = numpy.float32(MOMENTUM), numpy.float32(EPS)
        kept = numpy.float32(-1)
        grid = Geometry(plan.blocks, BLOCK)
        return in_turn(
            moments.bind(stream, grid, (x, sums, *extents)),
            merge.bind(
                stream,
                merging(channels),
                (sums, *running, new_mean, new_var, mean, rstd, *shares, *settings),
            ),
            rewrite.bind(stream, grid, (x, y, weight, bias, mean, rstd, kept, *extents)),
        )

    return Prepared(bind, [partials], choice={"plan": plan.plan, "shares": plan.shares})


def _backward(spec: Spec, source: Path, f: str) -> Prepared:
    plan, channels = plan_of(spec, 2), spec.dims["channels"]
    element = TYPES[spec.dtype.name]
    reduce, merge, rewrite = build(
        spec,
        source,
        f"channel_{plan.layout}_sums<{element}, {plan.plan}, {f}>",
        GRADIENTS,
        f"channel_{plan.layout}_backward<{element}, {plan.plan}, {reuse(spec)}, {f}>",
    )
    partials = partials_of(2, plan, channels)
    means = Tensor("means", (2, channels), float32)
    values = spec.io.operands["x"].elements // max(channels, 1)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        of = dict(zip(spec.io.operands, operands(tensors, spec.io.operands.values()), strict=True))
        sums, mean_of = operands(tensors, [partials, means])
        if not channels:
            return nothing
        extents = extents_of(spec, plan, tensors)
        parameters = of["weight"], of.get("bias", _NULL), of["mean"], of["rstd"]
        shares = numpy.int32(plan.shares), numpy.int32(channels), numpy.float32(1 / values)
        grid = Geometry(plan.blocks, BLOCK)
        data = of["dy"], of["x"]
        return in_turn(
            reduce.bind(stream, grid, (*data, sums, *parameters, *extents)),
            merge.bind(
                stream, merging(channels), (sums, of["dweight"], of["dbias"], mean_of, *shares)
            ),
            rewrite.bind(stream, grid, (*data, of["dx"], mean_of, *parameters, *extents)),
        )

    return Prepared(bind, [partials, means], choice={"plan": plan.plan, "shares": plan.shares})


def in_turn(*launches: Callable[[], None]) -> Launch:
    """One launch after the other."""

    def launch() -> None:
        for run in launches:
            run()

    return launch
