"""SiLU in CuPy: one ElementwiseKernel per direction."""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..spec import Prepared, Spec

_FORWARD = """
float v = get(x);
y = put(v == LOWEST ? -0.0f : v / (1.0f + __expf(-v)));
"""
_BACKWARD = """
const float LARGEST = 3.40282347e38f;
float v = get(x);
float s = 1.0f / (1.0f + __expf(-v));
float bounded = fminf(fmaxf(v, -LARGEST), LARGEST);  // inf * 0 would be NaN
dx = put(get(dy) * (s * (1.0f + bounded * (1.0f - s))));
"""


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        kernel = Elementwise("silu_forward", ["x"], ["y"], _FORWARD)
    else:
        kernel = Elementwise("silu_backward", ["dy", "x"], ["dx"], _BACKWARD)
    return prepare_kernels(spec, [kernel])
