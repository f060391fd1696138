"""Pooling of NHWC images in CUDA C++: what `include/pool_nhwc.cuh` needs from the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse
from .cuda_pool import pointers

_THREADS = 128
_SHORTEST_BAND = 4  # rows: one in four or eight is then loaded twice, from L2


def vector_width(channels: int, itemsize: int) -> int:
    """Bytes of the widest access that divides the channels of a pixel.

    16 at most: a window of 32-byte vectors would take too many registers.
    """
    return next(width for width in (16, 8, 4, 2) if channels * itemsize % width == 0)


def _bands(rows: int, threads: int, target: Target) -> int:
    """Bands of `rows` where `threads`, one per column, would leave part of a device idle."""
    wanted = target.multiprocessors * target.threads_per_multiprocessor
    return max(1, min(-(-wanted // max(threads, 1)), rows // _SHORTEST_BAND))


def prepare_nhwc(
    direction: str,
    spec: Spec,
    source: Path,
    rule: str,
    moved: Tensor,
    declared: Sequence[Tensor],
) -> Prepared:
    """Windows of `moved` (x), or of its gradient (dx), by the rule of include/pool_rules.cuh.

    declared: the operands of the rule, in its order. Raises CannotPrepare where it does not
    compile, a row of pixels has 2^30 elements, or no grid is large enough.
    """
    windows = next(t for t in spec.io.operands.values() if t.name in {"y", "dy"})
    images, height, width, channels = moved.shape
    _, out_height, out_width, _ = windows.shape
    if (width + spec.dims["stride"]) * channels >= 2**30:
        raise CannotPrepare("a row of pixels has fewer than 2^30 elements")
    item = spec.dtype.bits // 8
    vector = vector_width(channels, item)
    element = f"{rule}<{TYPES[spec.dtype.name]}>"
    shape = (vector, spec.dims["kernel"], spec.dims["stride"], reuse(spec), _THREADS)
    arguments = ", ".join(map(str, [element, *shape, *pointers(spec, declared)]))
    (kernel,) = build(spec, source, f"pool_{direction}_nhwc<{arguments}>")
    padding, stride = spec.dims["padding"], spec.dims["stride"]
    rows, columns = out_height, out_width
    if direction == "backward":  # cells of stride x stride elements
        rows, columns = (-(-(length + padding) // stride) for length in (height, width))
    vectors = columns * channels * item // vector
    bands = _bands(rows, images * vectors, spec.target)
    band_rows = -(-rows // bands)
    bands = -(-rows // band_rows)
    blocks = blocks_for(images * bands * -(-vectors // _THREADS), 1)
    numbers = (height, width, out_height, out_width, channels, padding, bands, band_rows)
    sizes = [numpy.int32(number) for number in numbers]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        first, *data = operands(tensors, [moved, *declared])
        if not blocks:
            return lambda: None
        for tensor in (moved, *declared):
            wanted = vector // item * (tensor.dtype.bits // 8)
            if tensors[tensor.name].data_ptr() % wanted:
                raise ValueError(f"{tensor.name} must begin on {wanted} bytes; copy the slice")
        return kernel.bind(stream, Geometry(blocks, _THREADS), (first, *sizes, *data))

    return Prepared(bind)
