"""Gated activations in Triton: both gradients in one pass."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - a kernel's module must name it

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec
from .pointwise_triton import gelu, gelu_gradient, relu, relu_gradient
from .silu_triton import silu, silu_gradient


@triton.jit
def swiglu(gate, up):
    return silu(gate) * up


@triton.jit
def _swiglu_gradient(dy, gate, up):
    return silu_gradient(dy * up, gate), dy * silu(gate)


@triton.jit
def _geglu(gate, up):
    return gelu(gate) * up


@triton.jit
def _geglu_gradient(dy, gate, up):
    return gelu_gradient(dy * up, gate), dy * gelu(gate)


@triton.jit
def _reglu(gate, up):
    return relu(gate) * up


@triton.jit
def _reglu_gradient(dy, gate, up):
    return relu_gradient(dy * up, gate), dy * relu(gate)


_FUNCTIONS = {
    "swiglu": (swiglu, _swiglu_gradient),
    "geglu": (_geglu, _geglu_gradient),
    "reglu": (_reglu, _reglu_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    return stream(spec, forward if direction == "forward" else gradient)
