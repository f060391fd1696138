"""SiLU on the host: one polynomial exponential per element hides behind the memory."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..backends.cpu_math import SIGMOID_ZERO, below, fma, sigmoid, splat, where
from ..spec import Prepared, Spec

Lanes = Any


@inlined
def _forward(x: Lanes) -> Lanes:
    # -inf times a sigmoid of 0 would be NaN.
    return where(below(x, splat(SIGMOID_ZERO)), splat(-0.0), x * sigmoid(x))


@inlined
def _backward(dy: Lanes, x: Lanes) -> Lanes:
    s = sigmoid(x)
    return dy * s * fma(x, splat(1.0) - s, splat(1.0))


def prepare(direction: str, spec: Spec) -> Prepared:
    function = _forward if direction == "forward" else _backward
    return prepare_elementwise(spec, function, spec.dtype.name)
