"""Max-pooling in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool import prepare_pool
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("max_pool2d.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    if direction == "forward":
        (x,) = spec.io.reads
        return prepare_pool(direction, spec, _SOURCE, "Max", x, spec.io.outputs)
    (dx,) = spec.io.writes
    return prepare_pool(direction, spec, _SOURCE, "MaxGradient", dx, spec.io.reads)
