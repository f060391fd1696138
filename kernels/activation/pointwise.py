"""Activations of one input, element by element: y = f(x), and dx = dy · f'(x).

Names and defaults are those of torch.nn.functional. Backward reads what PyTorch's reads: y for
relu, sigmoid and tanh, x for the others. Where PyTorch selects by comparing, the edges are its own:
relu keeps -0, and the slope is 1 at NaN where the last branch is x. Where x would meet a factor of
zero at infinity (gelu, gelu_tanh, mish, hardswish) y and slope are their limits, -0 and 0 or 1;
PyTorch's kernels give NaN there.
"""

from __future__ import annotations

from math import pi, sqrt

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, Reference, operation, tensors
from ..shapes import ROWS
from .silu import bounded_below

NEGATIVE_SLOPE = 0.01
ALPHA = 1.0
CUBIC = 0.044715
"""Of gelu_tanh: u = sqrt(2 / π) (x + 0.044715 x³)."""

GELU_TERMS = 2
"""Φ(x) = (1 + erf(x / sqrt(2))) / 2 as libraries compute it."""
GELU_TANH_TERMS = 4
"""Its slope as libraries compute it: (1 + t) / 2 + x / 2 · (1 - t²) · u', t = tanh(u)."""

_FAR = 100.0
"""Beyond it the slopes of gelu and mish are 0 or 1 in float64 too, once x · exp(-x) is 0."""

Real = torch.Tensor


def pointwise(
    rows: int,
    columns: int,
    dtype: DType,
    forward: Reference,
    backward: Reference,
    *,
    kept: str = "x",
    terms: int = 1,
) -> Directions:
    """y = forward(x); dx = backward(dy, kept), where `kept` is "x" or "y".

    terms: how many the formula sums.
    """
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=terms)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy, y if kept == "y" else x], writes=[dx], reference=backward),
    )


def relu_forward(x: Real) -> Real:
    return torch.where(x < 0, 0.0, x)


def relu_backward(dy: Real, y: Real) -> Real:
    """dx, of y = relu(x) or of x itself."""
    return torch.where(y <= 0, 0.0, dy)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def relu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = max(x, 0), -0 and NaN kept."""
    return pointwise(rows, columns, dtype, relu_forward, relu_backward, kept="y")


@operation(shapes=ROWS, dtypes=FLOATS)
def leaky_relu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x where x > 0, else 0.01 x (negative_slope)."""

    def forward(x: Real) -> Real:
        return torch.where(x > 0, x, NEGATIVE_SLOPE * x)

    def backward(dy: Real, x: Real) -> Real:
        return torch.where(x > 0, dy, NEGATIVE_SLOPE * dy)

    return pointwise(rows, columns, dtype, forward, backward)


@operation(shapes=ROWS, dtypes=FLOATS)
def elu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x where x > 0, else exp(x) - 1 (alpha = 1)."""

    def forward(x: Real) -> Real:
        return torch.where(x > 0, x, ALPHA * torch.expm1(x))

    def backward(dy: Real, x: Real) -> Real:
        return torch.where(x <= 0, dy * ALPHA * torch.exp(x), dy)

    return pointwise(rows, columns, dtype, forward, backward)


@operation(shapes=ROWS, dtypes=FLOATS)
def hardswish(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x · min(max(x + 3, 0), 6) / 6; the slope is 0 at -3 and 1 at 3, as in PyTorch."""

    def forward(x: Real) -> Real:
        return torch.where(x <= -3, -0.0, x * (x / 6 + 0.5).clamp(0, 1))

    def backward(dy: Real, x: Real) -> Real:
        return torch.where(x <= -3, 0.0, torch.where(x < 3, dy * (x / 3 + 0.5), dy))

    return pointwise(rows, columns, dtype, forward, backward)


@operation(shapes=ROWS, dtypes=FLOATS)
def sigmoid(rows: int, columns: int, dtype: DType) -> Directions:
    """y = 1 / (1 + exp(-x))."""

    def backward(dy: Real, y: Real) -> Real:
        return dy * (y * (1 - y))

    return pointwise(rows, columns, dtype, torch.sigmoid, backward, kept="y")


@operation(shapes=ROWS, dtypes=FLOATS)
def tanh(rows: int, columns: int, dtype: DType) -> Directions:
    """y = tanh(x)."""

    def backward(dy: Real, y: Real) -> Real:
        return dy * (1 - y * y)

    return pointwise(rows, columns, dtype, torch.tanh, backward, kept="y")


def gelu_forward(x: Real) -> Real:
    """x · Φ(x), by the complementary error function: nothing cancels in the tail."""
    return 0.5 * bounded_below(x) * torch.erfc(x * -sqrt(0.5))


def gelu_backward(dy: Real, x: Real) -> Real:
    """dy · (Φ(x) + x · Φ'(x))."""
    near = x.clamp(-_FAR, _FAR)
    density = torch.exp(-0.5 * near * near) / sqrt(2 * pi)
    return dy * (0.5 * torch.erfc(x * -sqrt(0.5)) + near * density)


@operation(shapes=ROWS, dtypes=FLOATS)
def gelu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x · Φ(x), Φ the normal distribution: the form with erf, PyTorch's default."""
    return pointwise(rows, columns, dtype, gelu_forward, gelu_backward, terms=GELU_TERMS)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def gelu_tanh(rows: int, columns: int, dtype: DType) -> Directions:
    """y = 0.5 x (1 + tanh(u)), u = sqrt(2 / π) (x + 0.044715 x³): approximate="tanh"."""
    slope = sqrt(8 / pi)

    def share(x: Real) -> Real:  # (1 + tanh(u)) / 2, which does not cancel
        return torch.sigmoid(slope * x * (1 + CUBIC * x * x))

    def forward(x: Real) -> Real:
        return bounded_below(x) * share(x)

    def backward(dy: Real, x: Real) -> Real:
        s, near = share(x), x.clamp(-_FAR, _FAR)
        return dy * (s + near * s * (1 - s) * slope * (1 + 3 * CUBIC * near * near))

    return pointwise(rows, columns, dtype, forward, backward, terms=GELU_TANH_TERMS)


@operation(shapes=ROWS, dtypes=FLOATS)
def mish(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x · tanh(log(1 + exp(x)))."""

    def share(x: Real) -> Real:
        return torch.tanh(torch.nn.functional.softplus(x))

    def forward(x: Real) -> Real:
        return bounded_below(x) * share(x)

    def backward(dy: Real, x: Real) -> Real:
        t, near = share(x), x.clamp(-1000, 1000)
        return dy * (t + near * torch.sigmoid(x) * (1 - t * t))

    return pointwise(rows, columns, dtype, forward, backward)
