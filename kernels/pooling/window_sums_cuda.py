"""Pooling by sums over windows in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool import prepare_pool
from ..backends.cuda_pool_adaptive import prepare_adaptive
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("window_sums.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    if spec.operation.name == "adaptive_avg_pool2d":
        return prepare_adaptive(direction, spec, _SOURCE)
    rule = "Norm2" if spec.operation.name == "lp_pool2d" else "Mean"
    if direction == "forward":
        (x,) = spec.io.reads
        return prepare_pool(direction, spec, _SOURCE, rule, x, spec.io.writes)
    (dx,) = spec.io.writes
    return prepare_pool(direction, spec, _SOURCE, f"{rule}Gradient", dx, spec.io.reads)
