"""Launches the kernel that has the name of the operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
from membound.kernels.backends.cuda import Geometry, build, operands
from membound.kernels.spec import Launch, Prepared, Spec, Tensors

_THREADS = 256
_GEOMETRIES = {
    "greedy": Geometry(132, _THREADS, shared_bytes=190 * 1024),  # beside 40 KiB of its own
    "crowded": Geometry(132, 2 * 1024),
    "waiting": Geometry(132, _THREADS),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    (kernel,) = build(spec, Path(__file__).with_suffix(".cu").with_stem("unsound"), _kernel(spec))
    elements = spec.io.writes[0].elements
    geometry = _GEOMETRIES.get(spec.operation.name, Geometry(elements // 4 // _THREADS, _THREADS))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        y, x = operands(tensors, (*spec.io.writes, *spec.io.reads))
        return kernel.bind(stream, geometry, (y, x, numpy.int64(elements)))

    return Prepared(bind)


def _kernel(spec: Spec) -> str:
    return "sound" if spec.operation.name == "crowded" else spec.operation.name
