"""Bias and activation in Numba CUDA; dbias is summed in the pass that makes dx."""

from __future__ import annotations

from typing import Any

from ..backends.numba_assembly import device
from ..backends.numba_columns import by_column, by_column_backward
from ..spec import Prepared, Spec
from .pointwise_numba import gelu, gelu_gradient, relu, relu_gradient


@device
def _added(x: Any, bias: Any) -> Any:
    return x + bias


@device
def _gelu(x: Any, bias: Any) -> Any:
    return gelu(x + bias)


@device
def _gelu_gradient(dy: Any, x: Any, bias: Any) -> Any:
    return gelu_gradient(dy, x + bias)


@device
def _relu(x: Any, bias: Any) -> Any:
    return relu(x + bias)


@device
def _relu_gradient(dy: Any, x: Any, bias: Any) -> Any:
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
