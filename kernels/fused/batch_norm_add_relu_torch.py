"""Batch normalization, residual and relu in PyTorch, the three calls people write.

Backward is the two operators that autograd would run; relu's reads a y, which is made of the bits
when buffers are bound.
"""

from __future__ import annotations

import torch

from ..activation.pointwise_torch import relu_backward
from ..backends.torch import Eager
from ..normalization import batch_norm_torch as norm
from .batch_norm_add_relu import passed

Real = torch.Tensor


def forward(
    x: Real, residual: Real, weight: Real, bias: Real, mean: Real, var: Real
) -> tuple[Real, ...]:
    h, *updated = norm.forward(x, weight, bias, mean, var)
    return torch.relu(h + residual), *updated


def saved(dy: Real, x: Real, mask: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    return dy, x, passed({"x": x, "mask": mask}), weight, mean, rstd


def backward(dy: Real, x: Real, y: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    dresidual = relu_backward(dy, y)
    dx, *gradients = norm.backward(dresidual, x, weight, mean, rstd)
    return dx, dresidual, *gradients


prepare = Eager(forward, backward=backward, saved=saved)
