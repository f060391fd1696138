"""Activations of one input in CUDA C++: the struct of include/activation.cuh has the same name."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_elementwise import prepare_elementwise
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("pointwise.cu")


def struct(name: str, spec: Spec) -> str:
    """C++ of the activation `name` ("gelu_tanh") on elements of this type: `GeluTanh<float>`."""
    words = "".join(word.capitalize() for word in name.split("_"))
    return f"{words}<{TYPES[spec.dtype.name]}>"


def prepare(direction: str, spec: Spec) -> Prepared:
    function = struct(spec.operation.name, spec)
    if direction == "backward":
        function = f"Gradient<{function}>"
    return prepare_elementwise(spec, _SOURCE, function)
