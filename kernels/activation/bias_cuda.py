"""Bias and activation in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_bias import prepare_bias
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("bias.cu")
_STRUCTS = {"bias_add": "Identity<T>", "bias_gelu": "Activated<Gelu<T>>"}
_STRUCTS["bias_relu"] = "Activated<Relu<T>>"


def prepare(direction: str, spec: Spec) -> Prepared:
    functor = _STRUCTS[spec.operation.name].replace("<T>", f"<{TYPES[spec.dtype.name]}>")
    return prepare_bias(direction, spec, _SOURCE, functor)
