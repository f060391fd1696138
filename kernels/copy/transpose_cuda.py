"""Transposition in CUDA C++: an image is a matrix of channels and pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse
from ..spec import Launch, Prepared, Spec, Tensors

_SOURCE = Path(__file__).with_name("transpose.cu")
_TILE, _THREADS = 64, 256


def matrices(spec: Spec) -> tuple[int, int, int]:
    """(how many, rows, columns) of what is transposed."""
    dims = spec.dims
    if spec.operation.name == "transpose":
        return 1, dims["rows"], dims["columns"]
    channels, pixels = dims["channels"], dims["height"] * dims["width"]
    if spec.operation.name == "nchw_to_nhwc":
        return dims["images"], channels, pixels
    return dims["images"], pixels, channels


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    count, rows, columns = matrices(spec)
    (kernel,) = build(spec, _SOURCE, f"transpose<{TYPES[spec.dtype.name]}, {reuse(spec)}>")
    blocks = blocks_for(count * -(-rows // _TILE) * -(-columns // _TILE), 1)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        y, x = operands(tensors, (*spec.io.writes, *spec.io.reads))
        if not blocks:
            return lambda: None
        extents = numpy.int64(rows), numpy.int64(columns)
        return kernel.bind(stream, Geometry(blocks, _THREADS), (y, x, *extents))

    return Prepared(bind)
