"""Activations of one input in Numba CUDA, in float32.

Polynomials, and where infinity would meet a factor of zero, are those of the CUDA C++ kernels:
include/activation.cuh.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ..backends.numba_assembly import device
from ..backends.numba_device import ONE, ZERO, divide, exp
from ..backends.numba_elementwise import stream
from ..spec import Prepared, Spec
from .pointwise import ALPHA, CUBIC, NEGATIVE_SLOPE

_f = np.float32
_LOWEST = _f(np.finfo(np.float32).min)
_MINUS_ZERO, _HALF, _TWO, _THREE, _FOUR = _f(-0.0), _f(0.5), _f(2), _f(3), _f(4)
_NEGATIVE_SLOPE, _ALPHA = _f(NEGATIVE_SLOPE), _f(ALPHA)
_SIXTH, _THIRD = _f(1 / 6), _f(1 / 3)
_SLOPE, _CUBIC = _f(sqrt(8 / pi)), _f(sqrt(8 / pi) * CUBIC)  # of gelu_tanh: 2 u
_CUBIC_SLOPE = _f(3 * sqrt(8 / pi) * CUBIC)
_SATURATED = _f(10)  # the slope of gelu_tanh is 0 or 1, and its exponential finite
_DENSITY, _END = _f(1 / sqrt(2 * pi)), _f(15)  # of the normal distribution; its tail is 0
_MISH_END = _f(20)  # the factor is 1, before exp(x)² overflows
_TANH_SMALL, _ELU_SMALL = _f(0.6), _f(-0.5)
_TANH = _f(-0.33332539), _f(0.13311437), _f(-0.05211956), _f(0.01547226)
_EXPM1 = _f(0.49999251), _f(0.16654419), _f(0.04098504), _f(0.00675291)
_R = (
    *(_f(0.119635361), _f(0.120659885), _f(0.100503304), _f(0.126619755)),
    *(_f(-0.0500408905), _f(0.202440404), _f(-0.154963373), _f(0.0351454747)),
)
_R_SCALE = _f(0.3)


@device
def _sigmoid(x: Any) -> Any:
    return divide(ONE, ONE + exp(-x))


@device
def _sigmoid_gradient(dy: Any, y: Any) -> Any:
    return dy * (y * (ONE - y))


@device
def relu(x: Any) -> Any:
    return ZERO if x < ZERO else x


@device
def relu_gradient(dy: Any, y: Any) -> Any:
    return ZERO if y <= ZERO else dy


@device
def _leaky_relu(x: Any) -> Any:
    return x if x > ZERO else x * _NEGATIVE_SLOPE


@device
def _leaky_relu_gradient(dy: Any, x: Any) -> Any:
    return dy if x > ZERO else dy * _NEGATIVE_SLOPE


@device
def _elu(x: Any) -> Any:
    if x > ZERO:
        return x
    if x > _ELU_SMALL:
        p = _EXPM1[0] + x * (_EXPM1[1] + x * (_EXPM1[2] + x * _EXPM1[3]))
        return _ALPHA * (x * (ONE + x * p))
    return _ALPHA * (exp(x) - ONE)


@device
def _elu_gradient(dy: Any, x: Any) -> Any:
    return dy * (_ALPHA * exp(x)) if x <= ZERO else dy


@device
def _hardswish(x: Any) -> Any:
    if x <= -_THREE:
        return _MINUS_ZERO
    return x if x >= _THREE else x * (x * _SIXTH + _HALF)


@device
def _hardswish_gradient(dy: Any, x: Any) -> Any:
    if x <= -_THREE:
        return ZERO
    return dy * (x * _THIRD + _HALF) if x < _THREE else dy


@device
def _tanh(x: Any) -> Any:
    a, u = abs(x), x * x
    if a < _TANH_SMALL:
        return x * (ONE + u * (_TANH[0] + u * (_TANH[1] + u * (_TANH[2] + u * _TANH[3]))))
    far = ONE - _TWO * divide(ONE, ONE + exp(_TWO * a))
    return -far if x < ZERO else far


@device
def _tanh_gradient(dy: Any, y: Any) -> Any:
    return dy * (ONE - y * y)


@device
def _r(a: Any) -> Any:
    """The tail of the normal distribution over exp(-a² / 2), a >= 0."""
    t = divide(ONE, ONE + _R_SCALE * a)
    high = _R[4] + t * (_R[5] + t * (_R[6] + t * _R[7]))
    return t * (_R[0] + t * (_R[1] + t * (_R[2] + t * (_R[3] + t * high))))


@device
def _bounded(x: Any) -> Any:
    a = abs(x)
    return _END if a > _END else a


@device
def gelu(x: Any) -> Any:
    a = _bounded(x)
    ramp = _MINUS_ZERO if x < ZERO else x
    return ramp - a * exp(-_HALF * a * a) * _r(a)


@device
def gelu_gradient(dy: Any, x: Any) -> Any:
    a = _bounded(x)
    tail = exp(-_HALF * a * a) * (_r(a) - _DENSITY * a)
    return dy * (tail if x < ZERO else ONE - tail)


@device
def _gelu_tanh(x: Any) -> Any:
    share = _sigmoid(x * (_SLOPE + _CUBIC * (x * x)))
    return (_LOWEST if x < _LOWEST else x) * share


@device
def _gelu_tanh_gradient(dy: Any, x: Any) -> Any:
    x = -_SATURATED if x < -_SATURATED else x
    x = _SATURATED if x > _SATURATED else x
    e = exp(-x * (_SLOPE + _CUBIC * (x * x)))
    s = divide(ONE, ONE + e)
    return dy * (s + x * (_SLOPE + _CUBIC_SLOPE * (x * x)) * (s * (e * s)))  # 1 - s = e s


@device
def _mish(x: Any) -> Any:
    e = exp(_MISH_END if x > _MISH_END else x)
    n = e * (e + _TWO)
    return (_LOWEST if x < _LOWEST else x) * (n * divide(ONE, n + _TWO))


@device
def _mish_gradient(dy: Any, x: Any) -> Any:
    x = _MISH_END if x > _MISH_END else x
    e = exp(x)
    n = e * (e + _TWO)
    d = divide(ONE, n + _TWO)
    return dy * (d * (n + (_LOWEST if x < _LOWEST else x) * (_FOUR * d * (e * (e + ONE)))))


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
