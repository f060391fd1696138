"""SiLU in Triton. x · sigmoid(x) as x / (1 + exp(-x)): exp(-x) may be inf, then y is -0."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec


@triton.jit
def _forward(x):
    # x / (1 + exp(-x)) is inf / inf where x is -inf; the product with 1 / inf would be NaN too.
    return tl.where(x == float("-inf"), -0.0, x / (1.0 + tl.exp(-x)))


@triton.jit
def _backward(dy, x):
    s = 1.0 / (1.0 + tl.exp(-x))
    return dy * s * (1.0 + x * (1.0 - s))


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _forward if direction == "forward" else _backward)
