"""Bias and activation in CuPy, forward: an ElementwiseKernel that finds its column."""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..backends.cupy_activation import PREAMBLE
from ..backends.cupy_norm import refuses_backward as refuses
from ..spec import Prepared, Spec

__all__ = ["prepare", "refuses"]

_ACTIVATIONS = {"bias_add": "", "bias_gelu": "gelu", "bias_relu": "relu"}


def prepare(direction: str, spec: Spec) -> Prepared:
    name, columns = spec.operation.name, spec.dims["columns"]
    body = f"y = put({_ACTIVATIONS[name]}(get(x) + get(bias[i % {columns}])))"
    kernel = Elementwise(name, ["x", "bias"], ["y"], body, raw=["bias"])
    return prepare_kernels(spec, [kernel], preamble=PREAMBLE)
