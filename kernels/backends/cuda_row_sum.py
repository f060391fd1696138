"""Row sums in CUDA C++: what `include/row_sum.cuh` needs from the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..spec import Launch, Prepared, Spec, Tensors
from .cuda import MAX_BLOCKS, TYPES, Geometry, build, operands, vector_bytes
from .cuda_elementwise import THREADS, loads_per_thread


def prepare_row_sum(spec: Spec, source: Path) -> Prepared:
    """sums = x.sum(1). Raises CannotPrepare where it does not compile."""
    (x,), (sums,) = spec.io.reads, spec.io.writes
    rows, columns = x.shape
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, 1, width)
    name = f"row_sum<{width}, {loads}, {THREADS}, {TYPES[x.dtype.name]}>"
    (kernel,) = build(spec, source, name)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        output, data = operands(tensors, (sums, x))
        if not rows:
            return lambda: None
        geometry = Geometry(min(rows, MAX_BLOCKS), THREADS)
        arguments = (output, data, numpy.int64(rows), numpy.int64(columns))
        return kernel.bind(stream, geometry, arguments)

    return Prepared(bind)
