"""Gated activations in CuPy: one ElementwiseKernel per direction, of two outputs in backward."""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..backends.cupy_activation import PREAMBLE
from ..spec import Prepared, Spec

_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def prepare(direction: str, spec: Spec) -> Prepared:
    name = spec.operation.name
    f = _ACTIVATIONS[name]
    if direction == "forward":
        kernel = Elementwise(name, ["gate", "up"], ["y"], f"y = put({f}(get(gate)) * get(up))")
    else:
        body = f"dgate = put({f}_gradient(get(dy) * get(up), get(gate)));\n"
        body += f"dup = put(get(dy) * {f}(get(gate)))"
        kernel = Elementwise(f"{name}_gradient", ["dy", "gate", "up"], ["dgate", "dup"], body)
    return prepare_kernels(spec, [kernel], preamble=PREAMBLE)
