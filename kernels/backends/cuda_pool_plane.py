"""NCHW planes as rows in CUDA C++: what `include/pool_plane.cuh` needs from the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from ..dtypes import float32
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from .cuda_elementwise import THREADS, loads_per_thread
from .cuda_pool import divider

_LOADS = 4  # vectors of a plane that a thread asks for at once
_SHORTEST_SHARE = 8192  # elements
_SUM_COLUMNS, _SUM_ROWS = 32, 32  # threads of column_sums: a line of 128 bytes, partials at once


def prepare_plane_map(
    spec: Spec, source: Path, functor: str, y: Tensor, numbers: Tensor, inputs: list[Tensor]
) -> Prepared:
    """y = functor(a number of the plane, inputs); `functor` is a struct of `source`.

    Raises CannotPrepare where it does not compile, a plane is too large, or no grid is large
    enough.
    """
    area, channels = _area(y), y.shape[1]
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, len(inputs), width)
    element = TYPES[spec.dtype.name]
    types = ", ".join([element, *(element for _ in inputs)])
    elements = width * 8 // spec.dtype.bits
    planes = "kMany" if area < elements else "kTwo" if area % elements else "kOne"
    shape = f"PlanesOfVector::{planes}, {width}, {loads}, {reuse(spec)}"
    name = f"plane_map<{functor}<{element}>, {shape}, {types}>"
    (kernel,) = build(spec, source, name)
    blocks = blocks_for(y.elements, THREADS * loads * elements)
    sizes = (
        *(numpy.int64(y.elements), numpy.int32(area), numpy.int32(channels)),
        divider(area),
    )

    def bind(tensors: Tensors, stream: Any) -> Launch:
        written, given, *data = operands(tensors, (y, numbers, *inputs))
        if not blocks:
            return lambda: None
        return kernel.bind(stream, Geometry(blocks, THREADS), (written, given, *sizes, *data))

    return Prepared(bind)


def prepare_plane_means(spec: Spec, source: Path, y: Tensor, x: Tensor) -> Prepared:
    """y = the mean of every plane of x. Raises CannotPrepare as `prepare_plane_map`."""
    sums = _Sums(spec, x, TYPES[y.dtype.name], shares=1)
    (kernel,) = build(spec, source, sums.name)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        means, planes = operands(tensors, (y, x))
        if not sums.planes:
            return lambda: None
        arguments = sums.arguments(means, planes, 1 / sums.area)
        return kernel.bind(stream, sums.geometry, arguments)

    return Prepared(bind)


def prepare_channel_sums(spec: Spec, source: Path, total: Tensor, x: Tensor) -> Prepared:
    """total = the sum of every channel of x, over all images, in two stages.

    Raises CannotPrepare as `prepare_plane_map`.
    """
    images, channels = x.shape[:2]
    shares = _shares(images * channels, _area(x), spec.target)
    sums = _Sums(spec, x, "float", shares)
    column_sums = f"column_sums<{TYPES[total.dtype.name]}, {_SUM_COLUMNS}, {_SUM_ROWS}>"
    first, second = build(spec, source, sums.name, column_sums)
    partial = Tensor("partial", (max(images * shares, 1), channels), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        result, planes, partials = operands(tensors, (total, x, partial))
        runs: list[Callable[[], None]] = []
        if sums.planes:
            arguments = sums.arguments(partials, planes, 1.0)
            runs.append(first.bind(stream, sums.geometry, arguments))
        if channels:
            geometry = Geometry(-(-channels // _SUM_COLUMNS), _SUM_COLUMNS * _SUM_ROWS)
            extents = numpy.int32(images * shares), numpy.int32(channels)
            runs.append(second.bind(stream, geometry, (result, partials, *extents)))

        def launch() -> None:
            for run in runs:
                run()

        return launch

    return Prepared(bind, [partial])


def _area(planes: Tensor) -> int:
    """Elements of a plane. Raises CannotPrepare where they, or the planes, are too many."""
    images, channels, height, width = planes.shape
    area = height * width
    if area >= 2**30 or images * channels >= 2**31:
        raise CannotPrepare("there are fewer than 2^31 planes, of fewer than 2^30 elements")
    return area


def _shares(planes: int, area: int, target: Target) -> int:
    """Parts of a plane, where planes alone would leave multiprocessors without work."""
    wanted = -(-4 * target.multiprocessors // max(planes, 1))
    return max(1, min(wanted, area // _SHORTEST_SHARE))


class _Sums:
    """The kernel `plane_sums` of one shape: its name, geometry and arguments."""

    def __init__(self, spec: Spec, x: Tensor, result: str, shares: int) -> None:
        images, self.channels = x.shape[:2]
        self.planes, self.area, self.shares = images * self.channels, _area(x), shares
        self.item, self.width = x.dtype.bits // 8, vector_bytes(spec.target)
        vectors = self.area // shares * self.item // self.width
        lanes = next((n for n in (8, 16, 32) if vectors <= _LOADS * n), THREADS)
        shape = f"{self.width}, {lanes}, {_LOADS}, {THREADS}"
        self.name = f"plane_sums<{shape}, {result}, {TYPES[x.dtype.name]}>"
        blocks = blocks_for(self.planes * shares, THREADS // lanes)
        self.geometry = Geometry(blocks, THREADS)

    def arguments(
        self, sums: torch.Tensor, x: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor | numpy.generic, ...]:
        shift = x.data_ptr() % self.width // self.item
        extents = (self.area, self.channels, self.shares, shift)
        sizes: list[numpy.generic] = [numpy.int64(self.planes), *map(numpy.int32, extents)]
        return (sums, x, *sizes, numpy.float32(scale))
