"""Gated activations in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_elementwise import prepare_elementwise
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("gated.cu")
_ACTIVATIONS = {"swiglu": "Silu", "geglu": "Gelu", "reglu": "Relu"}


def prepare(direction: str, spec: Spec) -> Prepared:
    form = "Gated" if direction == "forward" else "GatedGradient"
    activation = f"{_ACTIVATIONS[spec.operation.name]}<{TYPES[spec.dtype.name]}>"
    return prepare_elementwise(spec, _SOURCE, f"{form}<{activation}>")
