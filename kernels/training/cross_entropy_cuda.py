"""Cross-entropy in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from ..backends.cuda_row_map import prepare_map
from ..spec import Prepared, Spec
from .cross_entropy import SMOOTHING

_SOURCE = Path(__file__).with_name("cross_entropy.cu")
VARIANTS = {
    "cross_entropy_forward_backward": ("in_place",),
    "cross_entropy_smoothed_forward_backward": ("in_place",),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    smoothed = "smoothed" in spec.operation.name
    smoothing = numpy.float32(SMOOTHING if smoothed else 0.0)
    backward = direction == "backward"
    kernel = "cross_entropy_backward" if backward else "cross_entropy"
    written = ("lse", "dx") if backward else ("loss", "lse", "dx")
    places = ("x", "target", "dloss", *written)

    def arguments(
        data: Sequence[torch.Tensor], extents: Sequence[numpy.generic]
    ) -> Sequence[torch.Tensor | numpy.generic]:
        given = dict(zip(spec.io.operands, data, strict=True))
        return [*(given.get(name, numpy.uint64(0)) for name in places), *extents, smoothing]

    if backward:
        return prepare_map(spec, _SOURCE, kernel, arguments, streams=1, single=True)
    gradient = "dx" in spec.io.operands
    options = [str(flag).lower() for flag in (smoothed, gradient)]
    return prepare_map(
        spec,
        _SOURCE,
        kernel,
        arguments,
        *options,
        streams=1,
        unpacked=gradient,
        single=not gradient,
        in_place={"dx": "x"} if spec.variant == "in_place" else None,
    )
