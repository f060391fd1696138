"""SiLU in Triton. x · sigmoid(x) as x / (1 + exp(-x)): exp(-x) may be inf, then y is -0.

In backward x is bounded where its factor is 0 anyway, so that slopes at infinity are 0 and 1.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def silu(x):
    # x / (1 + exp(-x)) is inf / inf where x is -inf; the product with 1 / inf would be NaN too.
    return tl.where(x == float("-inf"), -0.0, x / (1.0 + tl.exp(-x)))


@triton.jit
def silu_gradient(dy, x):
    s = 1.0 / (1.0 + tl.exp(-x))
    bounded = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)  # a NaN comes through s
    return dy * (s * (1.0 + bounded * (1.0 - s)))


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, silu if direction == "forward" else silu_gradient)
