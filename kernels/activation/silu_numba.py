"""SiLU in Numba CUDA. x · sigmoid(x) as x / (1 + exp(-x)), with -0 at -inf, slopes 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.numba_assembly import device
from ..backends.numba_device import ONE, divide, exp
from ..backends.numba_elementwise import stream
from ..spec import Prepared, Spec

_LOWEST = np.float32(-np.inf)
_MINUS_ZERO = np.float32(-0.0)
_LARGEST = np.finfo(np.float32).max


@device
def silu(x: Any) -> Any:
    if x == _LOWEST:  # -inf / inf
        return _MINUS_ZERO
    return x * divide(ONE, ONE + exp(-x))


@device
def silu_gradient(dy: Any, x: Any) -> Any:
    s = divide(ONE, ONE + exp(-x))
    bounded = min(max(x, -_LARGEST), _LARGEST)  # a NaN comes through s
    return dy * (s * (ONE + bounded * (ONE - s)))


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, silu if direction == "forward" else silu_gradient)
