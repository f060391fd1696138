"""Strided and gathered reads in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse
from ..backends.cuda_elementwise import THREADS
from ..spec import Launch, Prepared, Spec, Tensors

_SOURCE = Path(__file__).with_name("indexed.cu")
_ELEMENTS = 8  # of a thread, each a sector at worst: 256 bytes of them on their way
_INDEX_VECTORS = 4


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    (y,) = spec.io.writes
    element = TYPES[spec.dtype.name]
    if spec.operation.name.startswith("strided"):
        stride = spec.operation.name.rpartition("_")[2]
        name = f"strided_read<{stride}, {_ELEMENTS}, {reuse(spec)}, {element}>"
        tile = THREADS * _ELEMENTS
    else:
        index = spec.io.operands["index"].dtype
        name = f"gather<{_INDEX_VECTORS}, {reuse(spec)}, {element}, {TYPES[index.name]}>"
        tile = THREADS * _INDEX_VECTORS * (128 // index.bits)
    (kernel,) = build(spec, _SOURCE, name)
    blocks = blocks_for(y.elements, tile)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        output, *inputs = operands(tensors, (y, *spec.io.reads))
        if not blocks:
            return lambda: None
        count = numpy.int64(y.elements)
        return kernel.bind(stream, Geometry(blocks, THREADS), [output, count, *inputs])

    return Prepared(bind)
