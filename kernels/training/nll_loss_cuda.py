"""Negative log-likelihood in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from ..backends.cuda_elementwise import THREADS
from ..backends.cuda_rows import nothing
from ..spec import Launch, Prepared, Spec, Tensors
from .cross_entropy import SMOOTHING

_SOURCE = Path(__file__).with_name("nll_loss.cu")
_LOADS = 4


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    smoothed = "smoothed" in spec.operation.name
    numbers: list[numpy.generic] = [numpy.int64(rows), numpy.int64(columns)]
    of_blocks = f"{TYPES[spec.dtype.name]}, {vector_bytes(spec.target)}"
    blocks = blocks_for(rows, 1)
    if direction == "backward":
        numbers.append(numpy.float32(SMOOTHING if smoothed else 0.0))
        kernel = f"nll_loss_backward<{of_blocks}, {reuse(spec)}>"
    elif smoothed:
        numbers.append(numpy.float32(SMOOTHING))
        kernel = f"nll_loss_smoothed<{of_blocks}, {_LOADS}, {THREADS}>"
    else:
        blocks = blocks_for(rows, THREADS)
        kernel = f"nll_loss<{TYPES[spec.dtype.name]}>"
    (built,) = build(spec, _SOURCE, kernel)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not rows:
            return nothing
        return built.bind(stream, Geometry(blocks, THREADS), [*data, *numbers])

    return Prepared(bind)
