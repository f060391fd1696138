"""SiLU on the host: one polynomial exponential per element hides behind the memory.

x is bounded below where its sigmoid is exactly 0, which gives silu(-inf) = -88 · 0 = -0, and above
where the slope is 1.
"""

from __future__ import annotations

from typing import Any

from ..backends.cpu import inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..backends.cpu_math import (
    EXP_LARGEST,
    EXP_ZERO,
    fma,
    larger,
    sigmoid_parts,
    smaller,
    splat,
)
from ..spec import Prepared, Spec

Lanes = Any


@inlined
def silu(x: Lanes) -> Lanes:
    sigmoid, _ = sigmoid_parts(x)
    return larger(x, splat(EXP_ZERO)) * sigmoid


@inlined
def silu_gradient(dy: Lanes, x: Lanes) -> Lanes:
    bounded = smaller(larger(x, splat(EXP_ZERO)), splat(EXP_LARGEST))
    sigmoid, rest = sigmoid_parts(x)
    return dy * (sigmoid * fma(bounded, rest, splat(1.0)))


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, silu if direction == "forward" else silu_gradient)
