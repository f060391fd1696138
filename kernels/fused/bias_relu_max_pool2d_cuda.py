"""Bias, relu and max-pooling in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_pool import prepare_pool
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("bias_relu_max_pool2d.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    if direction == "forward":
        x, bias = spec.io.reads
        operands = [*spec.io.outputs, bias]
        return prepare_pool(direction, spec, _SOURCE, "BiasReluMax", x, operands)
    dy, offset, *_ = spec.io.reads
    dx, dbias = spec.io.writes
    rule = "BiasReluMaxGradient"
    return prepare_pool(direction, spec, _SOURCE, rule, dx, [dy, offset], sums=dbias)
