"""AdamW with moments of 8 bits in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import Geometry, blocks_for, build, operands, reuse
from ..backends.cuda_elementwise import THREADS
from ..backends.cuda_rows import WARP
from ..spec import Launch, Prepared, Spec, Tensors
from .adamw import numbers
from .adamw_8bit import BLOCK

_SOURCE = Path(__file__).with_name("adamw_8bit.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    (kernel,) = build(spec, _SOURCE, f"adamw_8bit<{THREADS}, {reuse(spec)}>")
    elements = spec.io.reads[0].elements
    blocks = blocks_for(elements, BLOCK * THREADS // WARP)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        read, written = operands(tensors, spec.io.reads), operands(tensors, spec.io.writes)
        if not elements:
            return lambda: None
        settled: list[numpy.generic] = [numpy.int64(elements), *map(numpy.float32, numbers())]
        return kernel.bind(stream, Geometry(blocks, THREADS), (*written, *settled, *read))

    return Prepared(bind)
