"""Bias and activation in Triton; dbias is summed in the pass that makes dx."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl  # noqa: F401 - a kernel's module must name it

from ..backends.triton_columns import by_column, by_column_backward
from ..spec import Prepared, Spec
from .pointwise_triton import gelu, gelu_gradient, relu, relu_gradient


@triton.jit
def _added(x, bias):
    return x + bias


@triton.jit
def _gelu(x, bias):
    return gelu(x + bias)


@triton.jit
def _gelu_gradient(dy, x, bias):
    return gelu_gradient(dy, x + bias)


@triton.jit
def _relu(x, bias):
    return relu(x + bias)


@triton.jit
def _relu_gradient(dy, x, bias):
    return relu_gradient(dy, x + bias)


_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "bias_add": (_added, None),
    "bias_gelu": (_gelu, _gelu_gradient),
    "bias_relu": (_relu, _relu_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    if direction == "forward":
        return by_column(spec, forward)
    return by_column_backward(spec, gradient)
