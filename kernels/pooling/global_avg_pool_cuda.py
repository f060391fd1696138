"""The mean of every plane in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool_plane import prepare_plane_map, prepare_plane_means
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("global_avg_pool.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    (read,), (written,) = spec.io.reads, spec.io.writes
    if direction == "forward":
        return prepare_plane_means(spec, _SOURCE, written, read)
    return prepare_plane_map(spec, _SOURCE, "Spread", written, read, [])
