"""Batch normalization in PyTorch: `torch.nn.functional.batch_norm`.

NHWC images are channels-last views of NCHW ones, as PyTorch has them. Training overwrites the
running statistics it is given: here it is given copies, of a few kilobytes. Backward is the
operator that autograd itself calls, since a gradient of the bias needs a bias, which no backward
reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from .batch_norm import EPS, MOMENTUM

Real = torch.Tensor


def inference(x: Real, weight: Real, bias: Real, mean: Real, var: Real) -> Real:
    return functional.batch_norm(x, mean, var, weight, bias, eps=EPS)


def forward(x: Real, weight: Real, bias: Real, mean: Real, var: Real) -> tuple[Real, ...]:
    mean, var = mean.clone(), var.clone()
    y = functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS)
    return y, mean, var


def backward(dy: Real, x: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    gradients: tuple[Real, ...] = torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, None, None, mean, rstd, True, EPS, [True, True, True]
    )
    return gradients


def _last(function: Callable[..., Real | tuple[Real, ...]]) -> Callable[..., tuple[Real, ...]]:
    """`function` of NHWC images, which it sees as NCHW with the strides of NHWC."""

    def of_last(*given: Real) -> tuple[Real, ...]:
        made = function(*(t.permute(0, 3, 1, 2) if t.dim() == 4 else t for t in given))
        images, *others = [made] if isinstance(made, torch.Tensor) else made
        return images.permute(0, 2, 3, 1), *others

    return of_last


prepare = PerOperation(
    {
        "batch_norm_inference": Eager(inference),
        "batch_norm_inference_nhwc": Eager(_last(inference)),
        "batch_norm": Eager(forward, backward=backward),
        "batch_norm_nhwc": Eager(_last(forward), backward=_last(backward)),
    }
)
