"""Norms of gradients in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, vector_bytes
from ..backends.cuda_elementwise import THREADS, loads_per_thread
from ..dtypes import float32, int32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors
from .grad_norm import PIECE, parameter_sizes

_SOURCE = Path(__file__).with_name("grad_norm.cu")
_LAST_THREADS = 1024


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, 1, width)
    options = f"{width}, {loads}, {THREADS}, {PIECE}, {TYPES[spec.dtype.name]}"
    kernels = build(spec, _SOURCE, f"grad_squares<{options}>", f"grad_norms<{_LAST_THREADS}>")
    sizes = parameter_sizes(**spec.dims)
    pieces = blocks_for(sum(-(-size // PIECE) for size in sizes), 1)
    scratch = [Tensor("squares", (pieces,), float32), Tensor("firsts", (len(sizes),), int32)]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        read, written = operands(tensors, spec.io.reads), operands(tensors, spec.io.writes)
        left, count = operands(tensors, scratch), numpy.int32(len(sizes))
        last = kernels[1].bind(
            stream, Geometry(1, _LAST_THREADS), (*written, *left, count, numpy.int32(pieces))
        )
        if not pieces:
            return last
        first = kernels[0].bind(stream, Geometry(pieces, THREADS), (*left, *read, count))

        def launch() -> None:
            first()
            last()

        return launch

    return Prepared(bind, scratch)
