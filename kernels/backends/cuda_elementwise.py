"""Elementwise operations in CUDA C++: what `include/elementwise.cuh` needs from the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..spec import Launch, Prepared, Spec, Tensors
from ..target import Target
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes

THREADS = 256
"""Full occupancy on every architecture, 1536 threads per multiprocessor (GB10) included."""

_BYTES_IN_FLIGHT = 40 * 1024
"""Per multiprocessor, what the fastest memories need (H200: 25 to 40 KB)."""


def loads_per_thread(target: Target, inputs: int, width: int) -> int:
    """Vectors of `width` bytes a thread takes from each input, 1 to 4.

    Enough that half of the resident threads keep `_BYTES_IN_FLIGHT` on their way.
    """
    threads = target.threads_per_multiprocessor // 2
    loads = 1
    while loads < 4 and threads * width * max(inputs, 1) * loads < _BYTES_IN_FLIGHT:
        loads *= 2
    return loads


def prepare_elementwise(spec: Spec, source: Path, functor: str) -> Prepared:
    """Outputs, one or two, = functor::apply(reads, in order); `functor` is a struct of `source`.

    Raises CannotPrepare where it does not compile or no grid is large enough.
    """
    inputs, outputs = list(spec.io.reads), list(spec.io.outputs)
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, len(inputs), width)
    types = ", ".join(TYPES[t.dtype.name] for t in (outputs[0], *inputs))
    kernel_name = "elementwise" if len(outputs) == 1 else "elementwise_pair"
    name = f"{kernel_name}<{functor}, {width}, {loads}, {reuse(spec)}, {types}>"
    (kernel,) = build(spec, source, name)
    elements = outputs[0].elements
    widest = max(tensor.dtype.bits for tensor in (*outputs, *inputs))
    tile = THREADS * loads * (width * 8 // widest)
    blocks = blocks_for(elements, tile)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, (*outputs, *inputs))
        y, x = data[: len(outputs)], data[len(outputs) :]
        if not elements:
            return lambda: None
        return kernel.bind(stream, Geometry(blocks, THREADS), (*y, numpy.int64(elements), *x))

    return Prepared(bind)
