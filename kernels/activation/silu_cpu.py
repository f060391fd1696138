"""SiLU on the host: one polynomial exponential per element hides behind the memory.

With e = exp(x), sigmoid is e / (1 + e) and one minus it 1 / (1 + e), so that neither cancels. x is
bounded where e is exactly 0, which gives silu(-inf) = -88 · 0 = -0, and where the slope is 1.
"""

from __future__ import annotations

from typing import Any

from ..backends.cpu import inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..backends.cpu_math import EXP_LARGEST, EXP_ZERO, below, exp, fma, reciprocal, splat, where
from ..spec import Prepared, Spec

Lanes = Any


@inlined
def _bounded_below(x: Lanes) -> Lanes:
    low = splat(EXP_ZERO)
    return where(below(x, low), low, x)


@inlined
def _bounded_above(x: Lanes) -> Lanes:
    high = splat(EXP_LARGEST)
    return where(below(high, x), high, x)


@inlined
def _forward(x: Lanes) -> Lanes:
    x = _bounded_below(x)
    e = exp(_bounded_above(x))
    return x * (e * reciprocal(e + splat(1.0)))


@inlined
def _backward(dy: Lanes, x: Lanes) -> Lanes:
    x = _bounded_above(_bounded_below(x))
    e = exp(x)
    rest = reciprocal(e + splat(1.0))
    return dy * (e * rest * fma(x, rest, splat(1.0)))


def prepare(direction: str, spec: Spec) -> Prepared:
    function = _forward if direction == "forward" else _backward
    return prepare_elementwise(spec, function, spec.dtype.name)
