"""Activations of one input in CuPy: one ElementwiseKernel per direction."""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..backends.cupy_activation import NAMES, PREAMBLE
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    name = NAMES.get(spec.operation.name, spec.operation.name)
    reads = [tensor.name for tensor in spec.io.reads]
    if direction == "forward":
        kernel = Elementwise(f"{name}_map", reads, ["y"], f"y = put({name}(get(x)))")
    else:
        body = f"dx = put({name}_gradient(get(dy), get({reads[1]})))"
        kernel = Elementwise(f"{name}_gradient_map", reads, ["dx"], body)
    return prepare_kernels(spec, [kernel], preamble=PREAMBLE)
