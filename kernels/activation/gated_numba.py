"""Gated activations in Numba CUDA: both gradients in one pass."""

from __future__ import annotations

from typing import Any

from ..backends.numba_assembly import device
from ..backends.numba_elementwise import stream
from ..spec import Prepared, Spec
from .pointwise_numba import gelu, gelu_gradient, relu, relu_gradient
from .silu_numba import silu, silu_gradient


@device
def _swiglu(gate: Any, up: Any) -> Any:
    return silu(gate) * up


@device
def _swiglu_gradient(dy: Any, gate: Any, up: Any) -> Any:
    return silu_gradient(dy * up, gate), dy * silu(gate)


@device
def _geglu(gate: Any, up: Any) -> Any:
    return gelu(gate) * up


@device
def _geglu_gradient(dy: Any, gate: Any, up: Any) -> Any:
    return gelu_gradient(dy * up, gate), dy * gelu(gate)


@device
def _reglu(gate: Any, up: Any) -> Any:
    return relu(gate) * up


@device
def _reglu_gradient(dy: Any, gate: Any, up: Any) -> Any:
    return relu_gradient(dy * up, gate), dy * relu(gate)


_FUNCTIONS = {
    "swiglu": (_swiglu, _swiglu_gradient),
    "geglu": (_geglu, _geglu_gradient),
    "reglu": (_reglu, _reglu_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    return stream(spec, forward if direction == "forward" else gradient)
