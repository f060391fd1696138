"""Residual add and layer normalization in PyTorch, the two calls people write.

Backward is the two operators that autograd itself calls.
"""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from ..normalization import layer_norm_torch as norm

Real = torch.Tensor


def forward(x: Real, residual: Real, weight: Real, bias: Real) -> tuple[Real, Real]:
    h = x + residual
    return h, norm.forward(h, weight, bias)


def saved(
    dy: Real, dh: Real, h: Real, weight: Real, mean: Real, rstd: Real
) -> tuple[torch.Tensor, ...]:
    dy, h, weight, mean, rstd = norm.saved(dy, h, weight, mean, rstd)
    return dy, dh, h, weight, mean, rstd


def backward(dy: Real, dh: Real, h: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    dnorm, dweight, dbias = norm.backward(dy, h, weight, mean, rstd)
    return dnorm + dh, dweight, dbias


prepare = Eager(forward, backward=backward, saved=saved, refuses=norm.rounds_statistics)
