"""Softmax in PyTorch, as people write it; backward is the operator that autograd itself calls."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .softmax import SCALE


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def scaled_masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(mask.view(torch.bool), x * SCALE, -torch.inf), -1)


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    position = torch.arange(x.shape[-1], device=x.device)
    return torch.softmax(x.masked_fill(position > position[:, None], -torch.inf), -1)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
    return gradient


def log_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)
    return gradient


def scaled_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return backward(dy, y) * SCALE


prepare = PerOperation(
    {
        "softmax": Eager(softmax, backward=backward),
        "log_softmax": Eager(log_softmax, backward=log_backward),
        "scaled_masked_softmax": Eager(scaled_masked_softmax, backward=scaled_backward),
        "causal_softmax": Eager(causal_softmax, backward=backward),
    }
)
