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
_KERNELS = {
    "adamw_8bit": ("adamw_8bit",),
    "adamw_8bit_decode_m": ("adamw_8bit_decode", "signed char", "false"),
    "adamw_8bit_decode_v": ("adamw_8bit_decode", "unsigned char", "true"),
    "adamw_8bit_encode_m": ("adamw_8bit_encode", "signed char", "false"),
    "adamw_8bit_encode_v": ("adamw_8bit_encode", "unsigned char", "true"),
}
"""Kernel by operation, and what its template takes before the number of threads."""


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    kernel_of, *types = _KERNELS[spec.operation.name]
    options = ", ".join([*types, str(THREADS), reuse(spec)])
    (kernel,) = build(spec, _SOURCE, f"{kernel_of}<{options}>")
    elements = spec.io.reads[0].elements
    steps = [numpy.float32(number) for number in (() if types else numbers())]
    blocks = blocks_for(elements, BLOCK * THREADS // WARP)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        read, written = operands(tensors, spec.io.reads), operands(tensors, spec.io.writes)
        if not elements:
            return lambda: None
        settled: list[numpy.generic] = [numpy.int64(elements), *steps]
        return kernel.bind(stream, Geometry(blocks, THREADS), (*written, *settled, *read))

    return Prepared(bind)
