"""Layer normalization in PyTorch: `torch.nn.functional.layer_norm`.

Backward is the operator that autograd itself calls, since a gradient of the bias needs a bias,
which no backward reads. It is given mean and rstd as torch's own forward leaves them.
"""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from ..spec import Spec
from .layer_norm import EPS


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, EPS)


def saved(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    _, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, None, EPS)
    return dy, x, weight, mean, rstd


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    # The last argument but one stands for the bias, whose values have no part in its gradient.
    gradients: tuple[torch.Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        dy, x, weight.shape, mean, rstd, weight, weight, [True, True, True]
    )
    return gradients


def rounds_statistics(direction: str, spec: Spec) -> str | None:
    """On the CPU mean and rstd have the dtype of x, which is too coarse for dweight."""
    if direction == "backward" and spec.target.kind == "cpu" and spec.dtype.bits < 32:
        return f"torch keeps mean and rstd in {spec.dtype} on the CPU"
    return None


prepare = Eager(forward, backward=backward, saved=saved, refuses=rounds_statistics)
