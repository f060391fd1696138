"""A bias per channel in PyTorch, by broadcasting."""

from __future__ import annotations

import torch

from ..backends.torch import Eager

Real = torch.Tensor


def forward(x: Real, bias: Real) -> Real:
    return x + bias[:, None, None]


def into(y: Real, x: Real, bias: Real) -> None:
    torch.add(x, bias[:, None, None], out=y)


prepare = Eager(forward, into=into, backward=lambda dy: dy.sum((0, 2, 3)))
