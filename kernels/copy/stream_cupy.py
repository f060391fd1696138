"""The copy family in CuPy: one ElementwiseKernel each, and a ReductionKernel for `read`; `raw` is a
RawModule of the CUDA C++.
"""

from __future__ import annotations

from ..backends.cupy import Elementwise, RowReduction, literal
from ..backends.cupy import prepare as prepare_kernels
from ..backends.cupy_raw import prepare_raw
from ..spec import Prepared, Spec
from .stream import FACTOR, FILL_VALUE
from .stream_cuda import prepare as prepare_cuda

VARIANTS = ("raw",)

_BODIES = {
    "copy": "y = x",
    "scale": f"y = put({literal(FACTOR)} * get(x))",
    "add": "y = put(get(a) + get(b))",
    "triad": f"y = put(get(a) + {literal(FACTOR)} * get(b))",
    "fill": f"y = put({literal(FILL_VALUE)})",
}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        return prepare_raw(prepare_cuda, direction, spec)
    name = spec.operation.name
    if name == "read":
        sums = RowReduction("read_rows", ["x"], "sums", "get(x)", "a + b", "sums = a", "0.0f")
        return prepare_kernels(spec, [sums])
    reads = [tensor.name for tensor in spec.io.reads]
    return prepare_kernels(spec, [Elementwise(f"stream_{name}", reads, ["y"], _BODIES[name])])
