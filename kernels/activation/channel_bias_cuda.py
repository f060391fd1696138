"""A bias per channel in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool_plane import prepare_channel_sums, prepare_plane_map
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("channel_bias.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    (written,) = spec.io.writes
    if direction == "forward":
        x, bias = spec.io.reads
        return prepare_plane_map(spec, _SOURCE, "AddBias", written, bias, [x])
    (dy,) = spec.io.reads
    return prepare_channel_sums(spec, _SOURCE, written, dy)
