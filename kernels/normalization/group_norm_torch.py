"""Group and instance normalization in PyTorch.

Backward calls the operators that autograd itself calls, since a gradient of the bias needs a bias,
which no backward reads: for instance_norm those of a batch normalization of one image that has
every sample's channels. They are given mean and rstd as torch's own forward leaves them.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from .group_norm import EPS

Real = torch.Tensor


def group_forward(x: Real, weight: Real, bias: Real, *, groups: int) -> Real:
    return functional.group_norm(x, groups, weight, bias, EPS)


def _sizes(x: Real) -> tuple[int, int, int]:
    images, channels, height, width = x.shape
    return images, channels, height * width


def group_saved(
    dy: Real, x: Real, weight: Real, mean: Real, rstd: Real, *, groups: int
) -> tuple[Real, ...]:
    _, mean, rstd = torch.native_group_norm(x, weight, None, *_sizes(x), groups, EPS)
    return dy, x, weight, mean, rstd


def group_backward(
    dy: Real, x: Real, weight: Real, mean: Real, rstd: Real, *, groups: int
) -> tuple[Real, ...]:
    gradients: tuple[Real, ...] = torch.ops.aten.native_group_norm_backward(
        dy, x, mean, rstd, weight, *_sizes(x), groups, [True, True, True]
    )
    return gradients


def instance_forward(x: Real, weight: Real, bias: Real) -> Real:
    return functional.instance_norm(x, weight=weight, bias=bias, eps=EPS)


def _one(x: Real) -> Real:
    """The channels of all samples as those of one image."""
    images, channels, height, width = x.shape
    return x.reshape(1, images * channels, height, width)


def instance_saved(dy: Real, x: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    weights = weight.repeat(x.shape[0])
    _, mean, rstd = torch.native_batch_norm(_one(x), weights, None, None, None, True, 0.0, EPS)
    return dy, x, weights, mean, rstd


def instance_backward(dy: Real, x: Real, weights: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    dx, *gradients = torch.ops.aten.native_batch_norm_backward(
        *(_one(dy), _one(x), weights, None, None, mean, rstd, True, EPS, [True, True, True])
    )
    return dx.view(x.shape), *(of.view(x.shape[:2]).sum(0) for of in gradients)


prepare = PerOperation(
    {
        "group_norm": Eager(group_forward, backward=group_backward, saved=group_saved),
        "instance_norm": Eager(instance_forward, backward=instance_backward, saved=instance_saved),
    }
)
