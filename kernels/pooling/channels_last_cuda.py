"""Pooling of NHWC images in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool_nhwc import prepare_nhwc
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("channels_last.cu")
_RULES = {"avg_pool2d_nhwc": "Mean", "max_pool2d_nhwc": "Max"}


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    rule = _RULES[spec.operation.name]
    if direction == "forward":
        (x,) = spec.io.reads
        return prepare_nhwc(direction, spec, _SOURCE, rule, x, spec.io.outputs)
    (dx,) = spec.io.writes
    return prepare_nhwc(direction, spec, _SOURCE, f"{rule}Gradient", dx, spec.io.reads)
