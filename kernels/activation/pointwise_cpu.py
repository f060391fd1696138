"""Activations of one input on the host, in float32, on polynomials: no call, no table.

Where x would meet a factor of zero at infinity it is bounded first, so that limits are those
stated. `larger` and `smaller` keep a NaN of their first operand, comparisons send it the way that
PyTorch's do.
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any

from ..backends.cpu import inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..backends.cpu_math import (
    EXP_ZERO,
    absolute,
    at_most,
    below,
    exp,
    exp_down,
    expm1,
    fma,
    larger,
    sigmoid_parts,
    smaller,
    splat,
    where,
    with_sign,
    zeros,
)
from ..spec import Prepared, Spec
from .pointwise import ALPHA, CUBIC, NEGATIVE_SLOPE

Lanes = Any

_SLOPE = sqrt(8 / pi)  # of gelu_tanh: 2 u at 0
_FAR = -1e4  # every activation that is bounded below there is 0
_SATURATED = 16.0  # gelu_tanh: beyond it the slope is 0 or 1 in float32
_DENSITY = 1 / sqrt(2 * pi)
_END = sqrt(-2 * EXP_ZERO)  # exp(-a² / 2) is 0 from here on
_MISH_END = 20.0  # the factor is 1, before exp(x)² overflows
_TANH_END = 15 * log(2)


@inlined
def relu(x: Lanes) -> Lanes:
    return where(below(x, zeros()), zeros(), x)


@inlined
def relu_gradient(dy: Lanes, y: Lanes) -> Lanes:
    return where(at_most(y, zeros()), zeros(), dy)


@inlined
def _leaky_relu(x: Lanes) -> Lanes:
    return where(below(zeros(), x), x, x * splat(NEGATIVE_SLOPE))


@inlined
def _leaky_relu_gradient(dy: Lanes, x: Lanes) -> Lanes:
    return where(below(zeros(), x), dy, dy * splat(NEGATIVE_SLOPE))


@inlined
def _elu(x: Lanes) -> Lanes:
    negative = expm1(smaller(larger(x, splat(EXP_ZERO)), splat(1.0)))
    return where(below(zeros(), x), x, with_sign(splat(ALPHA) * negative, x))


@inlined
def _elu_gradient(dy: Lanes, x: Lanes) -> Lanes:
    return where(at_most(x, zeros()), dy * splat(ALPHA) * exp_down(smaller(x, zeros())), dy)


@inlined
def _hardswish(x: Lanes) -> Lanes:
    share = smaller(larger(fma(x, splat(1 / 6), splat(0.5)), zeros()), splat(1.0))
    return where(at_most(x, splat(-3.0)), splat(-0.0), x * share)


@inlined
def _hardswish_gradient(dy: Lanes, x: Lanes) -> Lanes:
    inside = where(below(x, splat(3.0)), dy * fma(x, splat(1 / 3), splat(0.5)), dy)
    return where(at_most(x, splat(-3.0)), zeros(), inside)


@inlined
def _sigmoid(x: Lanes) -> Lanes:
    share, _ = sigmoid_parts(x)
    return share


@inlined
def _sigmoid_gradient(dy: Lanes, y: Lanes) -> Lanes:
    return dy * (y * (splat(1.0) - y))


@inlined
def _tanh(x: Lanes) -> Lanes:
    """m / (m + 2) with m = exp(2 |x|) - 1: a small x keeps its digits."""
    m = expm1(smaller(absolute(x) * splat(2.0), splat(2 * _TANH_END)))
    return with_sign(m / (m + splat(2.0)), x)


@inlined
def _tanh_gradient(dy: Lanes, y: Lanes) -> Lanes:
    return dy * fma(-y, y, splat(1.0))


@inlined
def _r(a: Lanes) -> tuple[Lanes, Lanes]:
    """Numerator and denominator of Q(a) / exp(-a² / 2), Q the tail of the normal distribution.

    Of degree 4 each, fitted to the least relative error for 0 <= a <= 13.3: 2**-22. No term is
    negative, so that nothing cancels.
    """
    over = fma(splat(2.36935549e-07), a, splat(0.0143770035))
    over = fma(fma(over, a, splat(0.107670635)), a, splat(0.339984328))
    under = fma(splat(0.0360657498), a, splat(0.269333005))
    under = fma(fma(under, a, splat(0.894552708)), a, splat(1.47784626))
    return fma(over, a, splat(0.49999994)), fma(under, a, splat(1.0))


@inlined
def gelu(x: Lanes) -> Lanes:
    """x - a Q(a) or -a Q(a), a = |x|: nothing cancels."""
    a = smaller(absolute(x), splat(_END))
    over, under = _r(a)
    tail = exp(a * a * splat(-0.5)) * (a * over) / under
    return where(below(x, zeros()), splat(-0.0), x) - tail


@inlined
def gelu_gradient(dy: Lanes, x: Lanes) -> Lanes:
    a = smaller(absolute(x), splat(_END))
    over, under = _r(a)
    tail = exp(a * a * splat(-0.5)) * fma(splat(-_DENSITY), a, over / under)
    return dy * where(below(x, zeros()), tail, splat(1.0) - tail)


@inlined
def _gelu_tanh(x: Lanes) -> Lanes:
    """x sigmoid(2 u): 1 + tanh(u) would cancel in the tail."""
    share, _ = sigmoid_parts(x * fma(x * x, splat(_SLOPE * CUBIC), splat(_SLOPE)))
    return larger(x, splat(_FAR)) * share


@inlined
def _gelu_tanh_gradient(dy: Lanes, x: Lanes) -> Lanes:
    x = smaller(larger(x, splat(-_SATURATED)), splat(_SATURATED))
    square = x * x
    share, rest = sigmoid_parts(x * fma(square, splat(_SLOPE * CUBIC), splat(_SLOPE)))
    slope = fma(square, splat(3 * _SLOPE * CUBIC), splat(_SLOPE))
    return dy * fma(x * slope, share * rest, share)


@inlined
def _mish(x: Lanes) -> Lanes:
    """x n / (n + 2), n = e (e + 2), e = exp(x)."""
    e = exp_down(smaller(x, splat(_MISH_END)))
    n = e * (e + splat(2.0))
    return larger(x, splat(_FAR)) * (n / (n + splat(2.0)))


@inlined
def _mish_gradient(dy: Lanes, x: Lanes) -> Lanes:
    """(n + x n' 2 / (n + 2)) / (n + 2), n' = 2 e (e + 1)."""
    x = smaller(larger(x, splat(EXP_ZERO)), splat(_MISH_END))
    e = exp(x)
    n = e * (e + splat(2.0))
    d = splat(1.0) / (n + splat(2.0))
    return dy * (d * fma(x, splat(4.0) * d * (e * (e + splat(1.0))), n))


_FUNCTIONS = {
    "relu": (relu, relu_gradient),
    "leaky_relu": (_leaky_relu, _leaky_relu_gradient),
    "elu": (_elu, _elu_gradient),
    "hardswish": (_hardswish, _hardswish_gradient),
    "sigmoid": (_sigmoid, _sigmoid_gradient),
    "tanh": (_tanh, _tanh_gradient),
    "gelu": (gelu, gelu_gradient),
    "gelu_tanh": (_gelu_tanh, _gelu_tanh_gradient),
    "mish": (_mish, _mish_gradient),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    forward, gradient = _FUNCTIONS[spec.operation.name]
    return prepare_elementwise(spec, forward if direction == "forward" else gradient)
