"""Optimizer steps in CUDA C++: what `include/optimizer.cuh` needs from the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from ..spec import Launch, Prepared, Spec, Tensors
from .cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from .cuda_elementwise import THREADS, loads_per_thread

_NULL = numpy.uint64(0)


def prepare_update(
    spec: Spec, source: Path, kernel: str, rule: str, numbers: Sequence[float], *, places: int
) -> Prepared:
    """Outputs = rule::apply(reads, in order), element by element, with `numbers` as float32.

    `kernel` of `source` has `places` for arrays that are written, the last of a type of its own.
    Raises CannotPrepare where it does not compile or no grid is large enough.
    """
    inputs, outputs = list(spec.io.reads), list(spec.io.writes)
    width = vector_bytes(spec.target)
    loads = loads_per_thread(spec.target, len(inputs), width)
    types = [TYPES[t.dtype.name] for t in (outputs[0], outputs[-1], *inputs)]
    options = (rule, len(outputs), width, loads, reuse(spec), *types)
    (built,) = build(spec, source, f"{kernel}<{', '.join(map(str, options))}>")
    elements = outputs[0].elements
    widest = max(tensor.dtype.bits for tensor in (*outputs, *inputs))
    blocks = blocks_for(elements, THREADS * loads * (width * 8 // widest))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        read, written = operands(tensors, inputs), operands(tensors, outputs)
        if not elements:
            return lambda: None
        absent: list[numpy.generic] = [_NULL] * (places - len(written))
        settled: list[numpy.generic] = [numpy.int64(elements), *map(numpy.float32, numbers)]
        arguments: list[torch.Tensor | numpy.generic] = [*written, *absent, *settled, *read]
        return built.bind(stream, Geometry(blocks, THREADS), arguments)

    return Prepared(bind)
