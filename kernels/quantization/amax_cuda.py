"""The largest magnitude of a tensor in CUDA C++: one number a block, then one of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, build, operands, vector_bytes
from ..backends.cuda_elementwise import THREADS
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

_SOURCE = Path(__file__).with_name("amax.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    (x,), (amax,) = spec.io.reads, spec.io.writes
    width = vector_bytes(spec.target)
    loads = 64 // width  # reads alone: all of the bandwidth waits for loads
    first, second = build(
        spec,
        _SOURCE,
        f"amax_of_blocks<{width}, {loads}, {THREADS}, {TYPES[x.dtype.name]}>",
        f"amax_of_partials<{THREADS}>",
    )
    tiles = -(-x.elements // (THREADS * loads * (width * 8 // x.dtype.bits)))
    resident = spec.target.threads_per_multiprocessor // THREADS * spec.target.multiprocessors
    blocks = min(tiles, resident)
    partials = Tensor("partials", (max(blocks, 1),), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data, result, scratch = operands(tensors, (x, amax, partials))
        join = second.bind(stream, Geometry(1, THREADS), (result, scratch, numpy.int32(blocks)))
        if not blocks:
            return join
        arguments = scratch, numpy.int64(x.elements), data
        read = first.bind(stream, Geometry(blocks, THREADS), arguments)

        def launch() -> None:
            read()
            join()

        return launch

    return Prepared(bind, scratch=[partials])
