"""Rows divided by their length, in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from ..backends.cuda_row_map import prepare_map
from ..spec import Prepared, Spec
from .l2_norm import EPS

_SOURCE = Path(__file__).with_name("l2_norm.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    def arguments(
        data: Sequence[torch.Tensor], extents: Sequence[numpy.generic]
    ) -> Sequence[torch.Tensor | numpy.generic]:
        rows, columns, shift, _ = extents
        return [*data, rows, columns, shift, numpy.float32(EPS)]

    streams = 1 if direction == "forward" else 2
    return prepare_map(spec, _SOURCE, f"l2_norm_{direction}", arguments, streams=streams)
