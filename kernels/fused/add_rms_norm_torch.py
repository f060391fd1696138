"""Residual add and RMSNorm in PyTorch, the two calls people write; backward by autograd."""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from ..normalization.rms_norm_torch import forward as rms_norm


def forward(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + residual
    return h, rms_norm(h, weight)


def graph(h: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """From h on: the sum passes its gradient to x and to residual as it is."""
    return rms_norm(h, weight), h.view_as(h)


prepare = Eager(forward, graph=graph)
