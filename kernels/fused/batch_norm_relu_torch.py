"""Batch normalization and relu in PyTorch, the two calls people write.

Backward is the two operators that autograd would run, one after the other; y, which relu's reads,
is made when buffers are bound.
"""

from __future__ import annotations

import torch

from ..activation.pointwise_torch import relu_backward
from ..backends.torch import Eager, PerOperation
from ..normalization import batch_norm_torch as norm

Real = torch.Tensor


def inference(x: Real, weight: Real, bias: Real, mean: Real, var: Real) -> Real:
    return torch.relu(norm.inference(x, weight, bias, mean, var))


def forward(x: Real, weight: Real, bias: Real, mean: Real, var: Real) -> tuple[Real, ...]:
    h, *updated = norm.forward(x, weight, bias, mean, var)
    return torch.relu(h), *updated


def saved(dy: Real, x: Real, weight: Real, bias: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    wide = [of[:, None, None] for of in (mean, rstd * weight, bias)]
    y = torch.relu((x.float() - wide[0]) * wide[1] + wide[2]).to(x.dtype)
    return dy, x, weight, y, mean, rstd


def backward(dy: Real, x: Real, weight: Real, y: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    return norm.backward(relu_backward(dy, y), x, weight, mean, rstd)


prepare = PerOperation(
    {
        "batch_norm_inference_relu": Eager(inference),
        "batch_norm_relu": Eager(forward, backward=backward, saved=saved),
    }
)
