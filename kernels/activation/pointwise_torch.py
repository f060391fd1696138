"""Activations of one input in PyTorch.

Where backward reads x autograd runs; where it reads y, the operator that autograd would run is
called on it.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from .pointwise import ALPHA, NEGATIVE_SLOPE

Real = torch.Tensor


def _leaky_relu(x: Real) -> Real:
    return functional.leaky_relu(x, NEGATIVE_SLOPE)


def _elu(x: Real) -> Real:
    return functional.elu(x, ALPHA)


def _gelu_tanh(x: Real) -> Real:
    return functional.gelu(x, approximate="tanh")


def relu_backward(dy: Real, y: Real) -> Real:
    """dx, of y = relu(x) or of x itself."""
    dx: Real = torch.ops.aten.threshold_backward(dy, y, 0)
    return dx


def _sigmoid_backward(dy: Real, y: Real) -> Real:
    dx: Real = torch.ops.aten.sigmoid_backward(dy, y)
    return dx


def _tanh_backward(dy: Real, y: Real) -> Real:
    dx: Real = torch.ops.aten.tanh_backward(dy, y)
    return dx


prepare = PerOperation(
    {
        "relu": Eager(torch.relu, backward=relu_backward),
        "leaky_relu": Eager(_leaky_relu),
        "elu": Eager(_elu),
        "hardswish": Eager(functional.hardswish),
        "sigmoid": Eager(
            torch.sigmoid,
            into=lambda y, x: torch.sigmoid(x, out=y),
            backward=_sigmoid_backward,
        ),
        "tanh": Eager(torch.tanh, into=lambda y, x: torch.tanh(x, out=y), backward=_tanh_backward),
        "gelu": Eager(functional.gelu),
        "gelu_tanh": Eager(_gelu_tanh),
        "mish": Eager(functional.mish),
    }
)
