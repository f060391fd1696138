"""Clipping of gradients in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from ..backends.cuda_elementwise import THREADS, loads_per_thread
from ..spec import Launch, Prepared, Spec, Tensors
from .grad_clip import LARGEST

_SOURCE = Path(__file__).with_name("grad_clip.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    (y,) = spec.io.writes
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, 1, width)
    options = f"{width}, {loads}, {reuse(spec)}, {TYPES[spec.dtype.name]}"
    (kernel,) = build(spec, _SOURCE, f"grad_clip<{options}>")
    blocks = blocks_for(y.elements, THREADS * loads * (width * 8 // spec.dtype.bits))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        output, g, norm = operands(tensors, (y, *spec.io.reads))
        if not blocks:
            return lambda: None
        extents = (numpy.int64(y.elements), numpy.float32(LARGEST))
        return kernel.bind(stream, Geometry(blocks, THREADS), (output, *extents, norm, g))

    return Prepared(bind)
