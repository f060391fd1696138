"""Activations of one input in Triton, in float32.

Polynomials, and where infinity would meet a factor of zero, are those of the CUDA C++ kernels:
include/activation.cuh. `tl.where` keeps a NaN that `tl.minimum` and `tl.maximum` drop.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from math import pi, sqrt

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec
from .pointwise import ALPHA, CUBIC, NEGATIVE_SLOPE

_LOWEST = tl.constexpr(-3.4028234663852886e38)
_NEGATIVE_SLOPE = tl.constexpr(NEGATIVE_SLOPE)
_ALPHA = tl.constexpr(ALPHA)
_SLOPE = tl.constexpr(sqrt(8 / pi))  # of gelu_tanh: 2 u
_CUBIC = tl.constexpr(sqrt(8 / pi) * CUBIC)
_SATURATED = tl.constexpr(10.0)  # the slope of gelu_tanh is 0 or 1, and its exponential finite
_DENSITY = tl.constexpr(1 / sqrt(2 * pi))
_END = tl.constexpr(15.0)  # the tail of the normal distribution is 0
_MISH_END = tl.constexpr(20.0)  # the factor is 1, before exp(x)² overflows


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _sigmoid_gradient(dy, y):
    return dy * (y * (1.0 - y))


@triton.jit
def relu(x):
    return tl.where(x < 0.0, 0.0, x)


@triton.jit
def relu_gradient(dy, y):
    return tl.where(y <= 0.0, 0.0, dy)


@triton.jit
def _leaky_relu(x):
    return tl.where(x > 0.0, x, x * _NEGATIVE_SLOPE)


@triton.jit
def _leaky_relu_gradient(dy, x):
    return tl.where(x > 0.0, dy, dy * _NEGATIVE_SLOPE)


@triton.jit
def _elu(x):
    p = 0.49999251 + x * (0.16654419 + x * (0.04098504 + x * 0.00675291))
    below = tl.where(x > -0.5, x * (1.0 + x * p), tl.exp(x) - 1.0)
    return tl.where(x > 0.0, x, _ALPHA * below)


@triton.jit
def _elu_gradient(dy, x):
    return tl.where(x <= 0.0, dy * (_ALPHA * tl.exp(x)), dy)


@triton.jit
def _hardswish(x):
    inside = x * (x * (1.0 / 6.0) + 0.5)
    return tl.where(x <= -3.0, -0.0, tl.where(x >= 3.0, x, inside))


@triton.jit
def _hardswish_gradient(dy, x):
    inside = dy * (x * (1.0 / 3.0) + 0.5)
    return tl.where(x <= -3.0, 0.0, tl.where(x < 3.0, inside, dy))


@triton.jit
def _tanh(x):
    a = tl.abs(x)
    u = x * x
    p = -0.33332539 + u * (0.13311437 + u * (-0.05211956 + u * 0.01547226))
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * a))
    return tl.where(a < 0.6, x * (1.0 + u * p), tl.where(x < 0.0, -far, far))


@triton.jit
def _tanh_gradient(dy, y):
    return dy * (1.0 - y * y)


@triton.jit
def _r(a):
    """The tail of the normal distribution over exp(-a² / 2), a >= 0."""
    t = 1.0 / (1.0 + 0.3 * a)
    high = -0.0500408905 + t * (0.202440404 + t * (-0.154963373 + t * 0.0351454747))
    return t * (0.119635361 + t * (0.120659885 + t * (0.100503304 + t * (0.126619755 + t * high))))


@triton.jit
def _bounded(x):
    a = tl.abs(x)
    return tl.where(a > _END, _END, a)


@triton.jit
def gelu(x):
    a = _bounded(x)
    ramp = tl.where(x < 0.0, -0.0, x)
    return ramp - a * tl.exp(-0.5 * a * a) * _r(a)


@triton.jit
def gelu_gradient(dy, x):
    a = _bounded(x)
    tail = tl.exp(-0.5 * a * a) * (_r(a) - _DENSITY * a)
    return dy * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _gelu_tanh(x):
    share = _sigmoid(x * (_SLOPE + _CUBIC * (x * x)))
    return tl.where(x < _LOWEST, _LOWEST, x) * share


@triton.jit
def _gelu_tanh_gradient(dy, x):
    x = tl.where(x < -_SATURATED, -_SATURATED, tl.where(x > _SATURATED, _SATURATED, x))
    e = tl.exp(-x * (_SLOPE + _CUBIC * (x * x)))
    s = 1.0 / (1.0 + e)
    return dy * (s + x * (_SLOPE + 3.0 * _CUBIC * (x * x)) * (s * (e * s)))  # 1 - s = e s


@triton.jit
def _mish(x):
    e = tl.exp(tl.where(x > _MISH_END, _MISH_END, x))
    n = e * (e + 2.0)
    return tl.where(x < _LOWEST, _LOWEST, x) * (n / (n + 2.0))


@triton.jit
def _mish_gradient(dy, x):
    x = tl.where(x > _MISH_END, _MISH_END, x)
    e = tl.exp(x)
    n = e * (e + 2.0)
    d = 1.0 / (n + 2.0)
    bounded = tl.where(x < _LOWEST, _LOWEST, x)
    return dy * (d * (n + bounded * (4.0 * d * (e * (e + 1.0)))))


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
    return stream(spec, forward if direction == "forward" else gradient)
