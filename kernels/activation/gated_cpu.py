"""Gated activations on the host: both gradients in one pass, the exponential made once."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..spec import Prepared, Spec
from .pointwise_cpu import gelu, gelu_gradient, relu, relu_gradient
from .silu_cpu import silu, silu_gradient

Lanes = Any


@inlined
def _swiglu(gate: Lanes, up: Lanes) -> Lanes:
    return silu(gate) * up


@inlined
def _swiglu_gradient(dy: Lanes, gate: Lanes, up: Lanes) -> tuple[Lanes, Lanes]:
    return silu_gradient(dy * up, gate), dy * silu(gate)


@inlined
def _geglu(gate: Lanes, up: Lanes) -> Lanes:
    return gelu(gate) * up


@inlined
def _geglu_gradient(dy: Lanes, gate: Lanes, up: Lanes) -> tuple[Lanes, Lanes]:
    return gelu_gradient(dy * up, gate), dy * gelu(gate)


@inlined
def _reglu(gate: Lanes, up: Lanes) -> Lanes:
    return relu(gate) * up


@inlined
def _reglu_gradient(dy: Lanes, gate: Lanes, up: Lanes) -> tuple[Lanes, Lanes]:
    return relu_gradient(dy * up, gate), dy * relu(gate)


_FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "swiglu": (_swiglu, _swiglu_gradient),
    "geglu": (_geglu, _geglu_gradient),
    "reglu": (_reglu, _reglu_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    return prepare_elementwise(spec, forward if direction == "forward" else gradient)
