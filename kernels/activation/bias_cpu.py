"""Bias and activation on the host; dbias is summed in the pass that makes dx."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_columns import prepare_by_column, prepare_by_column_backward
from ..spec import Prepared, Spec
from .pointwise_cpu import gelu, gelu_gradient, relu, relu_gradient

Lanes = Any


@inlined
def _added(x: Lanes, bias: Lanes) -> Lanes:
    return x + bias


@inlined
def _gelu(x: Lanes, bias: Lanes) -> Lanes:
    return gelu(x + bias)


@inlined
def _gelu_gradient(dy: Lanes, x: Lanes, bias: Lanes) -> Lanes:
    return gelu_gradient(dy, x + bias)


@inlined
def _relu(x: Lanes, bias: Lanes) -> Lanes:
    return relu(x + bias)


@inlined
def _relu_gradient(dy: Lanes, x: Lanes, bias: Lanes) -> Lanes:
    return relu_gradient(dy, x + bias)


_FUNCTIONS: dict[str, tuple[Function, Function | None]] = {
    "bias_add": (_added, None),
    "bias_gelu": (_gelu, _gelu_gradient),
    "bias_relu": (_relu, _relu_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    if direction == "forward":
        return prepare_by_column(spec, forward)
    return prepare_by_column_backward(spec, gradient)
