"""The mean of every plane in PyTorch; its gradient is a view, and so made whole."""

from __future__ import annotations

import torch

from ..backends.torch import Eager

Real = torch.Tensor


def forward(x: Real) -> Real:
    return x.mean((2, 3))


def backward(dy: Real, *, height: int, width: int) -> Real:
    share = dy / (height * width)
    return share[:, :, None, None].expand(-1, -1, height, width).contiguous()


prepare = Eager(forward, backward=backward)
