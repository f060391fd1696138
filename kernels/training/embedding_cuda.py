"""Embedding in CUDA C++."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import Any

import numpy
import torch

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from ..backends.cuda_elementwise import THREADS
from ..backends.cuda_rows import WARP
from ..dtypes import float32, int32
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

_SOURCE = Path(__file__).with_name("embedding.cu")
_LOADS = 4  # vectors of a row that a thread has on their way
_AHEAD = 8  # rows of dy
_PIECE = 32  # tokens, kPiece of embedding.cuh


def prepare(direction: str, spec: Spec) -> Prepared:
    return _forward(spec) if direction == "forward" else _backward(spec)


def _access(spec: Spec) -> int:
    """Bytes of an access: what divides a row, so that each begins where a vector may."""
    return gcd(spec.dims["columns"] * spec.dtype.bits // 8, vector_bytes(spec.target))


def _rows(spec: Spec, width: int, tensors: Tensors) -> dict[str, torch.Tensor]:
    """The operands by name. Raises ValueError for a matrix that begins between two vectors."""
    named = list(spec.io.operands.values())
    found = dict(zip((t.name for t in named), operands(tensors, named), strict=True))
    for tensor in named:
        if len(tensor.shape) > 1 and found[tensor.name].data_ptr() % width:
            raise ValueError(f"{tensor.name} must begin on {width} bytes; copy the slice")
    return found


def _forward(spec: Spec) -> Prepared:
    tokens, columns = spec.dims["tokens"], spec.dims["columns"]
    width = _access(spec)
    vectors = columns * spec.dtype.bits // 8 // max(width, 1)
    lanes = min(1 << max(-(-vectors // _LOADS) - 1, 0).bit_length(), THREADS)
    arguments = f"{width}, {lanes}, {_LOADS}, {THREADS}, {reuse(spec)}"
    (kernel,) = build(spec, _SOURCE, f"embedding<{arguments}, {TYPES[spec.dtype.name]}>")
    blocks = blocks_for(tokens, THREADS // lanes)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        given = _rows(spec, width, tensors)
        if not tokens or not columns:
            return lambda: None
        extents = (numpy.int64(tokens), numpy.int32(columns))
        vocabulary = numpy.int64(spec.dims["vocabulary"])
        return kernel.bind(
            stream,
            Geometry(blocks, THREADS),
            (given["y"], *extents, given["index"], given["table"], vocabulary),
        )

    return Prepared(bind)


def _backward(spec: Spec) -> Prepared:
    tokens, columns = spec.dims["tokens"], spec.dims["columns"]
    width, element = _access(spec), TYPES[spec.dtype.name]
    whole = f"embedding_backward<{width}, {_AHEAD}, {THREADS}, {reuse(spec)}, {element}>"
    seams = f"embedding_seams<{width}, {THREADS}, {reuse(spec)}, {element}>"
    kernels = build(spec, _SOURCE, whole, seams)
    pieces = -(-tokens // _PIECE)
    tiles = -(-columns * spec.dtype.bits // 8 // (WARP * max(width, 1)))
    geometry = Geometry(blocks_for(pieces * tiles, THREADS // WARP), THREADS)
    scratch = [Tensor("partials", (pieces, 2, columns), float32)]
    scratch += [Tensor("seams", (pieces,), int32)]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        given = _rows(spec, width, tensors)
        if not tokens or not columns:
            return lambda: None
        sums, seam = operands(tensors, scratch)
        extents = (numpy.int64(tokens), numpy.int32(columns))
        begin = (given["dtable"], sums, seam, *extents, given["before"])
        sorted_ = (given["dy"], given["order"], given["slots"])
        first = kernels[0].bind(stream, geometry, (*begin, *sorted_))
        second = kernels[1].bind(stream, geometry, begin)

        def launch() -> None:
            first()
            second()

        return launch

    return Prepared(bind, scratch)
