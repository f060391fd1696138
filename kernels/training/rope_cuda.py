"""Rotary position embedding in CUDA C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse
from ..backends.cuda_elementwise import THREADS
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors

_SOURCE = Path(__file__).with_name("rope.cu")
_PAIRS = {"rope_half": "Pairs::kHalf", "rope_interleaved": "Pairs::kInterleaved"}
_HEADS = 4  # of a thread: 64 or 128 bytes on their way
_BUSY = 0.9  # share of a block's threads that have work


def widest(length: int, itemsize: int) -> int:
    """Elements of the widest access, up to 16 bytes, that divides `length`."""
    width = 16 // itemsize
    while length % width:
        width //= 2
    return width


def tokens_of_block(of_token: int) -> int:
    """The fewest tokens whose work keeps a block's threads busy."""
    for tokens in range(1, THREADS):
        work = tokens * of_token
        if work >= _BUSY * THREADS * -(-work // THREADS):
            return tokens
    return THREADS


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or a token is too long for 32 bits."""
    tokens, q_heads, k_heads, width = (int(spec.dims[name]) for name in spec.operation.dims)
    if max(q_heads, k_heads) * width >= 2**31:
        raise CannotPrepare("the heads of a token have fewer than 2^31 elements")
    half = spec.operation.name == "rope_half"
    elements = widest(width // 2 if half else width, spec.dtype.bits // 8)
    arguments = f"{_PAIRS[spec.operation.name]}, {TYPES[spec.dtype.name]}, {elements}, {_HEADS}"
    (kernel,) = build(spec, _SOURCE, f"rope<{arguments}, {reuse(spec)}>")
    groups = -(-q_heads // _HEADS) + -(-k_heads // _HEADS)
    of_token = groups * (width // (2 * elements if half else elements))
    together = tokens_of_block(of_token)
    blocks = blocks_for(tokens, together)
    sign = numpy.float32(1 if direction == "forward" else -1)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, (*spec.io.writes, *spec.io.reads))
        if not blocks or not of_token:
            return lambda: None
        pairs = elements if half else elements // 2
        accesses = [elements * one.element_size() for one in data[:4]] + [4 * pairs] * 2
        aligned = all(one.data_ptr() % a == 0 for one, a in zip(data, accesses, strict=True))
        extents: list[numpy.generic] = [numpy.int64(tokens)]
        extents += [numpy.int32(one) for one in (q_heads, k_heads, width, together)]
        last: list[numpy.generic] = [sign, numpy.int32(aligned)]
        return kernel.bind(stream, Geometry(blocks, THREADS), [*data, *extents, *last])

    return Prepared(bind)
